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
	Spec *service.Spec
	// Owner is the owner of the service: provision.Desired.Owner.
	Owner string
	// Provider combines all clouds of the service.
	Provider provision.Provider
	// UserData returns the cloud-init document of a machine.
	UserData func(cloud.MachineInput) (string, error)
	// Settle returns when a machine is working; nil = it only needs to be launched.
	Settle func(ctx context.Context, o provision.Object) error
	// Drain returns when a machine has no outstanding requests; nil = no draining.
	Drain func(ctx context.Context, o provision.Object)
	// Enrolments records launched balancers; nil = not recorded.
	Enrolments *Enrolments
	// Have lists the existing objects; nil = list them with Provider.
	Have func(ctx context.Context) ([]provision.Object, error)
	// Now is the clock for the time in which offerings without capacity are not retried; nil = time.Now.
	Now func() time.Time

	// Terminating (machines that their cloud interrupts), Ending (machines whose reservation ends), Counts
	// and ZoneID are those of cloud.Input.
	Terminating map[string]bool
	Ending      map[string]bool
	Counts      map[cloud.ReplicaGroup]provision.ClassCounts
	ZoneID      string
	// Programs are those of cloud.Input.
	Programs map[string]provision.Program
	// Build is the hash of the binary for machines on this computer; empty = unchanged.
	Build string
	// Gate admits launches within Bounds; nil = all. Unlisted are existing objects that Have omits, whose
	// cost counts.
	Gate     *provision.LaunchGate
	Bounds   provision.LaunchBounds
	Unlisted []provision.Object
	// Only selects the changes to apply; nil = all.
	Only func(*Plan, provision.Change) bool

	exhausted provision.ExhaustedOfferings
	replaced  map[string]string                      // see PlanReplacing
	offers    map[service.Region]provision.Offerings // at list prices
	prices    Prices

	reservations cloud.Reservations
	scores       spotScores
}

// Plan contains the necessary changes in the clouds.
type Plan struct {
	Have    []provision.Object
	Wants   []provision.Desired
	Changes provision.Changes
	// Missing is the number of replicas without capacity in any region, by model and home region.
	Missing map[cloud.ReplicaGroup]int
	// Held are the launches that Deployer.Bounds do not admit now; Changes does not contain them.
	Held []*provision.HeldError
	// Unpriced contains, by region, the error of a cloud that returned no prices or incomplete ones;
	// built-in list prices are used for them.
	Unpriced map[service.Region]error
}

// CostPerHour returns the hourly cost of the machines in USD, before and after the changes.
func (p *Plan) CostPerHour() (now, then float64) {
	for _, o := range p.Have {
		if o.TerminatedReason == "" {
			now += o.CostPerHour
		}
	}
	return now, now + p.Changes.CostPerHour()
}

// ChangesBilling reports whether the plan creates or deletes billed machines, which requires confirmation.
func (p *Plan) ChangesBilling() bool {
	return slices.ContainsFunc(p.Changes, func(c provision.Change) bool {
		machine := (c.Kind() == provision.KindBalancer || c.Kind() == provision.KindReplica) && !cloud.RunsOnThisComputer(c.Region())
		return machine && c.Action != provision.ActionReload
	})
}

// Plan observes the clouds and returns the necessary changes without applying them. Errors include
// *provision.SpecError, *provision.CredentialsError, and *provision.OwnedError where the name
// belongs to another owner's service.
func (f *Deployer) Plan(ctx context.Context) (*Plan, error) {
	if err := cloud.Validate(f.Spec); err != nil {
		return nil, err
	}
	if err := f.readPrices(ctx); err != nil {
		return nil, err
	}
	return f.planWithShortfall(ctx, nil)
}

// planWithShortfall is Plan with the number of replicas that had no capacity.
func (f *Deployer) planWithShortfall(ctx context.Context, short map[cloud.ReplicaGroup]int) (*Plan, error) {
	have, err := f.listObjects(ctx)
	if err != nil {
		return nil, err
	}
	return f.planFor(have, short)
}

// planFor returns the changes for a list of existing objects.
func (f *Deployer) planFor(have []provision.Object, short map[cloud.ReplicaGroup]int) (*Plan, error) {
	l, err := cloud.BuildLayout(cloud.Input{
		Spec: f.Spec, Owner: f.Owner, Offerings: priced(f.offers, f.prices), Reservations: f.reservations, Have: have, Now: f.clock()(), Shortfall: short, Terminating: f.Terminating, Ending: f.Ending, Counts: f.Counts, ZoneID: f.ZoneID, Programs: f.Programs, UserData: f.UserData,
		SpotPenalty: func(o provision.Offering) float64 { return f.spotHistory().Penalty(o, f.clock()()) }, SpotScore: f.scores.of,
		Interrupted: func(r service.Region) bool {
			return f.spotHistory().InterruptedSince(r, f.clock()().Add(-fallbackWindow))
		},
		Exhausted: func(o provision.Offering) bool { return f.exhausted.Covers(o, f.clock()()) },
	})
	if err != nil {
		return nil, err
	}
	for i := range l.Desired {
		if l.Desired[i].Machine != nil && cloud.RunsOnThisComputer(l.Desired[i].Region) {
			l.Desired[i].BuildHash = f.Build
		}
	}
	p := &Plan{
		Have: have, Wants: l.Desired, Changes: provision.Diff(l.Desired, f.markReplaced(have)), Missing: l.Unplaced, Unpriced: f.prices.Unknown,
	}
	for i, c := range p.Changes {
		if reason, is := f.replacementReason(c); is {
			p.Changes[i].Reason = reason
		}
		if c.Action == provision.ActionLaunch && c.Desired.OfferingReason != "" {
			p.Changes[i].Reason += "; " + c.Desired.OfferingReason
		}
	}
	if f.Only != nil {
		p.Changes = slices.DeleteFunc(p.Changes, func(c provision.Change) bool { return !f.Only(p, c) })
	}
	f.cutLaunches(p)
	return p, nil
}

// listObjects returns the objects of the service; an error where the service belongs to another owner.
func (f *Deployer) listObjects(ctx context.Context) ([]provision.Object, error) {
	if f.Have != nil {
		return f.Have(ctx)
	}
	have, err := f.Provider.List(ctx, f.Spec.Name)
	if err != nil {
		return nil, err
	}
	return have, f.checkOwner(have)
}

// checkOwner returns an error where objects belong to another owner.
func (f *Deployer) checkOwner(have []provision.Object) error {
	for _, o := range have {
		if o.Owner == "" && (cloud.RunsOnThisComputer(o.Region) || o.Region == "") {
			continue // a process from a version without owners for local machines
		}
		if o.Owner != f.Owner {
			return &provision.OwnedError{Resource: "the service " + f.Spec.Name, Where: string(o.Region), Owner: o.Owner}
		}
	}
	return nil
}

// readOfferings reads the offerings of every cloud region concurrently.
func (f *Deployer) readOfferings(ctx context.Context) error {
	f.offers = map[service.Region]provision.Offerings{}
	return f.joinErrors(f.queryOfferings(ctx, cloud.ManagedRegions(f.Spec)))
}

// joinErrors joins the errors of cloud regions, in their order; nil without any.
func (f *Deployer) joinErrors(failed map[service.Region]error) error {
	var all []error
	for _, r := range cloud.ManagedRegions(f.Spec) {
		all = append(all, failed[r])
	}
	return errors.Join(all...)
}

// queryOfferings reads the offerings of regions concurrently and returns the failures; failed regions keep
// their previous offerings.
func (f *Deployer) queryOfferings(ctx context.Context, regions []service.Region) map[service.Region]error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	wg.Go(func() { f.queryReservations(ctx, regions) })
	failed := map[service.Region]error{}
	for _, r := range regions {
		wg.Go(func() {
			offers, err := f.Provider.Offerings(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[r] = fmt.Errorf("listing the offerings of %s: %w", r, err)
				return
			}
			f.offers[r] = offers
		})
	}
	wg.Wait()
	return failed
}

// clock returns the clock of the deployer.
func (f *Deployer) clock() func() time.Time {
	if f.Now != nil {
		return f.Now
	}
	return time.Now
}

// spotHistory returns the deployer's history of spot machines.
func (f *Deployer) spotHistory() *provision.SpotHistory {
	if f.exhausted.Spot == nil {
		f.exhausted.Spot = &provision.SpotHistory{}
	}
	return f.exhausted.Spot
}

// recordInterruptions adds the spot machines that their cloud is interrupting, or has interrupted, to the
// history, so that their zones are tried last. Maintenance and rebalance recommendations are not
// included.
func (f *Deployer) recordInterruptions(have []provision.Object, seen map[string]AgentReport) {
	taken := interrupted(have, seen)
	for _, o := range have {
		if o.Interrupted || taken[o.ID] && !isMaintenance(seen[o.ID]) {
			f.spotHistory().AddInterrupted(o, f.clock()())
		}
	}
}
