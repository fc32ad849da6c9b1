package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Deployer plans and applies changes to the machines of one service in clouds.
type Deployer struct {
	surging sync.Mutex // held by surge: replicas of several regions are replaced at the same time
	Spec    *service.Spec
	// Owner is the owner of the service: provision.Desired.Owner.
	Owner string
	// Provider combines all clouds of the service.
	Provider provision.Provider
	// UserData returns the cloud-init document of a machine.
	UserData func(cloud.MachineInput) (string, error)
	// WaitReady returns when a machine is working; nil = it only needs to be launched.
	WaitReady func(ctx context.Context, o provision.Object) error
	// Drain returns when a machine has no outstanding requests; nil = no draining.
	Drain func(ctx context.Context, o provision.Object)
	// Enrolments records launched balancers; nil = not recorded.
	Enrolments *Enrolments
	// ListObserved lists the existing objects; nil = list them with Provider.
	ListObserved func(ctx context.Context) ([]provision.Object, error)
	// Now is the clock for the time in which offerings without capacity are not retried; nil = time.Now.
	Now func() time.Time

	// NeedReplacement (machines that their cloud interrupts, or whose reservation ends), Ending (those of them that
	// do not come back), Counts, DesiredCounts, HostedZoneID, HealthChecks and FederatedAccount are those of
	// cloud.LayoutInput.
	NeedReplacement  map[string]bool
	Ending           map[string]bool
	Counts           map[cloud.ReplicaGroup]provision.ClassCounts
	DesiredCounts    map[cloud.ReplicaGroup]int
	HostedZoneID     string
	HealthChecks     []string
	FederatedAccount string
	// Binaries are those of cloud.LayoutInput.
	Binaries map[string]provision.Binary
	// Build is the hash of the binary for machines on this computer; empty = unchanged.
	Build string
	// Gate admits launches within Bounds; nil = all. Unlisted are existing objects that ListObserved omits, whose
	// cost counts.
	Gate     *provision.LaunchGate
	Bounds   provision.LaunchBounds
	Unlisted []provision.Object
	// Filter selects the changes to apply; nil = all.
	Filter func(*MachinePlan, provision.Change) bool

	exhausted provision.ExhaustedOfferings
	replaced  map[string]string                      // see PlanReplacing
	launched  *launchedObjects                       // what launchMore launches; nil = it does not run
	offers    map[service.Region]provision.Offerings // at list prices
	prices    Prices

	reservations cloud.Reservations
	scores       spotScores
}

// MachinePlan contains the necessary changes of machines and other objects in clouds. It is not a capacity plan
// (package plan).
type MachinePlan struct {
	Observed []provision.Object
	Desired  []provision.Desired
	Changes  provision.Changes
	// Applied are the changes of the same run that earlier plans completed: Up plans again where a region has no capacity,
	// and UpAndAwait where a machine has ended. Changes does not contain them.
	Applied provision.Changes
	// Missing is the number of replicas without capacity in any region, by model and the region of service.yaml
	// that they belong to.
	Missing map[cloud.ReplicaGroup]int
	// Held are the launches that Deployer.Bounds do not admit now; Changes does not contain them.
	Held []*provision.HeldError
	// Unpriced contains, by region, the error of a cloud that returned no prices or incomplete ones;
	// built-in list prices are used for them.
	Unpriced map[service.Region]error

	replaced []replacedReplica                            // see useReplacements, in order
	counts   map[cloud.ReplicaGroup]provision.ClassCounts // Deployer.Counts when the plan was made
}

// CostPerHour returns the hourly cost of the machines in USD, before and after the changes.
func (p *MachinePlan) CostPerHour() (now, then float64) {
	for _, o := range p.Observed {
		if o.TerminatedReason == "" {
			now += o.CostPerHour
		}
	}
	return now, now + p.Changes.CostPerHour()
}

// ChangesBilling reports whether the plan creates or deletes billed machines, which requires confirmation.
func (p *MachinePlan) ChangesBilling() bool {
	return slices.ContainsFunc(p.Changes, func(c provision.Change) bool {
		machine := (c.Kind() == provision.KindBalancer || c.Kind() == provision.KindReplica) && !cloud.RunsOnThisComputer(c.Region())
		return machine && c.Action != provision.ActionReload
	})
}

// Plan observes the clouds and returns the necessary changes without applying them. Errors include
// *provision.SpecError, *provision.CredentialsError, and *provision.OwnedError where the name
// belongs to another owner's service.
func (dp *Deployer) Plan(ctx context.Context) (*MachinePlan, error) {
	if err := cloud.Validate(dp.Spec); err != nil {
		return nil, err
	}
	if err := dp.readPrices(ctx); err != nil {
		return nil, err
	}
	return dp.planWithMissing(ctx, nil)
}

// planWithMissing is Plan with the number of replicas that had no capacity.
func (dp *Deployer) planWithMissing(ctx context.Context, short map[cloud.ReplicaGroup]int) (*MachinePlan, error) {
	have, err := dp.listObjects(ctx)
	if err != nil {
		return nil, err
	}
	return dp.planAfterRun(have, short)
}

// planAfterRun is planFor after an earlier run, which may have ended before it deleted a replaced replica. The plan keeps
// the replacement of such a replica, which has another ID. A replica that PlanReplacing replaces needs none: it gets
// another machine with its own ID.
func (dp *Deployer) planAfterRun(have []provision.Object, short map[cloud.ReplicaGroup]int) (*MachinePlan, error) {
	if dp.NeedReplacement == nil && dp.Counts == nil {
		dp.NeedReplacement = withReplacement(have)
		for _, o := range have {
			if _, replaced := dp.replaced[o.Handle]; replaced {
				delete(dp.NeedReplacement, o.ID)
			}
		}
		defer func() { dp.NeedReplacement = nil }()
	}
	return dp.planFor(have, short)
}

// planFor returns the changes for a list of existing objects.
func (dp *Deployer) planFor(have []provision.Object, short map[cloud.ReplicaGroup]int) (*MachinePlan, error) {
	l, err := cloud.BuildLayout(cloud.LayoutInput{
		Spec: dp.Spec, Owner: dp.Owner, Offerings: withKnownPrices(dp.offers, dp.prices), Reservations: dp.reservations, Have: have, Now: dp.clock()(), Shortfall: short, NeedReplacement: dp.NeedReplacement, Ending: dp.Ending, Counts: dp.Counts, DesiredCounts: dp.DesiredCounts, HostedZoneID: dp.HostedZoneID, HealthChecks: dp.HealthChecks, FederatedAccount: dp.FederatedAccount, Binaries: dp.Binaries, UserData: dp.UserData,
		SpotPenalty: func(o provision.Offering) float64 { return dp.spotHistory().RecentEvents(o, dp.clock()()) }, SpotScore: dp.scores.scoreOf,
		Interrupted: func(r service.Region) bool {
			return dp.spotHistory().InterruptedSince(r, dp.clock()().Add(-fallbackWindow))
		},
		Exhausted: func(o provision.Offering) bool { return dp.exhausted.Covers(o, dp.clock()()) },
	})
	if err != nil {
		return nil, err
	}
	for i := range l.Desired {
		if l.Desired[i].Machine != nil && cloud.RunsOnThisComputer(l.Desired[i].Region) {
			l.Desired[i].BuildHash = dp.Build
		}
	}
	p := &MachinePlan{
		Observed: have, Desired: l.Desired, Changes: provision.Diff(l.Desired, dp.clearReplacedHashes(have)), Missing: l.Unplaced, Unpriced: dp.prices.Unknown, counts: dp.Counts,
	}
	for i, c := range p.Changes {
		if reason, ok := dp.replacementReason(c); ok {
			p.Changes[i].Reason = reason
		}
		if c.Action == provision.ActionLaunch && c.Desired.OfferingReason != "" {
			p.Changes[i].Reason += "; " + c.Desired.OfferingReason
		}
	}
	if dp.Filter != nil {
		p.Changes = slices.DeleteFunc(p.Changes, func(c provision.Change) bool { return !dp.Filter(p, c) })
	}
	dp.removeHeldLaunches(p)
	return p, nil
}

// listObjects returns the objects of the service; an error where the service belongs to another owner.
func (dp *Deployer) listObjects(ctx context.Context) ([]provision.Object, error) {
	if dp.ListObserved != nil {
		return dp.ListObserved(ctx)
	}
	have, err := dp.Provider.List(ctx, dp.Spec.Name)
	if err != nil {
		return nil, err
	}
	return have, dp.checkOwner(have)
}

// checkOwner returns an error where objects belong to another owner.
func (dp *Deployer) checkOwner(have []provision.Object) error {
	for _, o := range have {
		if o.Owner == "" && (cloud.RunsOnThisComputer(o.Region) || o.Region == "") {
			continue // a process from a version without owners for local machines
		}
		if o.Owner != dp.Owner {
			return &provision.OwnedError{Resource: "the service " + dp.Spec.Name, Where: string(o.Region), Owner: o.Owner}
		}
	}
	return nil
}

// readOfferings reads the offerings of every cloud region concurrently.
func (dp *Deployer) readOfferings(ctx context.Context) error {
	dp.offers = map[service.Region]provision.Offerings{}
	return dp.joinErrors(dp.queryOfferings(ctx, cloud.ManagedRegions(dp.Spec)))
}

// joinErrors joins the errors of cloud regions, in their order; nil without any.
func (dp *Deployer) joinErrors(failed map[service.Region]error) error {
	var all []error
	for _, r := range cloud.ManagedRegions(dp.Spec) {
		all = append(all, failed[r])
	}
	return errors.Join(all...)
}

// queryOfferings reads the offerings of regions concurrently and returns the failures; failed regions keep
// their previous offerings.
func (dp *Deployer) queryOfferings(ctx context.Context, regions []service.Region) map[service.Region]error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	wg.Go(func() { dp.queryReservations(ctx, regions) })
	failed := map[service.Region]error{}
	for _, r := range regions {
		wg.Go(func() {
			offers, err := dp.Provider.Offerings(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[r] = fmt.Errorf("listing the offerings of %s: %w", r, err)
				return
			}
			dp.offers[r] = offers
		})
	}
	wg.Wait()
	return failed
}

// clock returns the clock of the deployer.
func (dp *Deployer) clock() func() time.Time {
	if dp.Now != nil {
		return dp.Now
	}
	return time.Now
}

// spotHistory returns the deployer's history of spot machines.
func (dp *Deployer) spotHistory() *provision.SpotHistory {
	if dp.exhausted.Spot == nil {
		dp.exhausted.Spot = &provision.SpotHistory{}
	}
	return dp.exhausted.Spot
}

// recordInterruptions adds the spot machines that their cloud is interrupting, or has interrupted, to the
// history, so that their zones are tried last. Maintenance and rebalance recommendations are not
// included.
func (dp *Deployer) recordInterruptions(have []provision.Object, seen map[string]AgentReport) {
	interruptedIDs := interrupted(have, seen)
	for _, o := range have {
		if o.Interrupted || interruptedIDs[o.ID] && !isMaintenance(seen[o.ID]) {
			dp.spotHistory().AddInterrupted(o, dp.clock()())
		}
	}
}
