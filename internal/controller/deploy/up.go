package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Up applies a plan and reports progress. Where a region has no capacity for replicas, it replans
// them in other regions, until all are placed or no region has capacity; then the error joins the
// *AllOfferingsExhaustedError of each, and the other replicas are running. It returns the final plan. It is idempotent and
// safe to run again after a crash.
func (dp *Deployer) Up(ctx context.Context, p *MachinePlan, progress provision.ProgressFunc) (*MachinePlan, error) {
	p, _, err := dp.UpSelected(ctx, p, func(provision.Change) bool { return true }, progress)
	return p, err
}

// UpSelected is Up for the selected changes, of the plan and of those that replace it. It also returns the other changes of
// the final plan.
func (dp *Deployer) UpSelected(ctx context.Context, p *MachinePlan, selected func(provision.Change) bool, progress provision.ProgressFunc) (final *MachinePlan, others provision.Changes, err error) {
	short := map[cloud.ReplicaGroup]int{}
	var capacityFailure error // the last one
	others = p.removeOthers(selected)
	for {
		result, failure := provision.Apply(ctx, p.Changes, dp.launcher(), dp.applyOptions(p, progress))
		p.useReplacements()
		if failure == nil {
			return p, others, errors.Join(dp.missingError(p, capacityFailure), p.heldError())
		}
		if ctx.Err() != nil {
			return p, others, failure
		}
		exhausted, only := exhaustedErrors(failure)
		if !only || len(exhausted) == 0 { // held launches have no fallback region
			return p, others, errors.Join(failure, p.heldError())
		}
		for _, r := range exhausted {
			if !dp.addMissing(short, p, r) {
				return p, others, failure // a balancer has no fallback region
			}
		}
		capacityFailure = failure
		next, err := dp.planWithMissing(ctx, short)
		if err != nil {
			return p, others, errors.Join(failure, err)
		}
		next.Applied = slices.Concat(p.Applied, result.Done)
		p, others = next, next.removeOthers(selected)
		if len(p.Changes) == 0 {
			return p, others, errors.Join(dp.missingError(p, failure), p.heldError())
		}
	}
}

// removeOthers removes the changes that are not selected, and returns them.
func (p *MachinePlan) removeOthers(selected func(provision.Change) bool) (others provision.Changes) {
	var chosen provision.Changes
	for _, c := range p.Changes {
		if selected(c) {
			chosen = append(chosen, c)
		} else {
			others = append(others, c)
		}
	}
	p.Changes = chosen
	return others
}

// launcher returns the provider that launches machines.
func (dp *Deployer) launcher() provision.Provider {
	p := dp.Provider
	if dp.launched != nil {
		p = collectingProvider{p, dp.launched}
	}
	if dp.Enrolments != nil {
		p = recordingProvider{p, dp.Enrolments}
	}
	return p
}

// launchedObjects are the objects that were launched, whether or not they have ended since.
type launchedObjects struct {
	mu      sync.Mutex
	objects []provision.Object
}

// collectingProvider launches objects and collects them.
type collectingProvider struct {
	provision.Provider
	launched *launchedObjects
}

// Launch implements provision.Provider.
func (c collectingProvider) Launch(ctx context.Context, desired provision.Desired) (provision.Object, error) {
	o, err := c.Provider.Launch(ctx, desired)
	if err == nil {
		c.launched.mu.Lock()
		defer c.launched.mu.Unlock()
		c.launched.objects = append(c.launched.objects, o)
	}
	return o, err
}

// missingError returns the error of an applied plan with missing replicas.
func (dp *Deployer) missingError(p *MachinePlan, failure error) error {
	for _, n := range p.Missing {
		if n > 0 {
			return &MissingReplicasError{Missing: p.Missing, Err: failure}
		}
	}
	return nil
}

// addMissing records that a replica has no capacity in its region; false for anything else.
func (dp *Deployer) addMissing(short map[cloud.ReplicaGroup]int, p *MachinePlan, r *provision.AllOfferingsExhaustedError) bool {
	for _, desired := range p.Desired {
		if desired.ID == r.ID && desired.Region == r.Region && cloud.IsOverprovisioned(provision.Object{Labels: desired.Labels}) {
			return true // it is omitted until its offerings are tried again
		}
		if desired.ID == r.ID && desired.Region == r.Region && desired.Kind == provision.KindReplica {
			short[cloud.ReplicaGroup{Model: desired.Labels["model"], Region: desired.Region}]++
			return true
		}
	}
	return false
}

// exhaustedErrors returns the *provision.AllOfferingsExhaustedError in an error, and whether it contains nothing else.
func exhaustedErrors(err error) (exhausted []*provision.AllOfferingsExhaustedError, only bool) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		var r *provision.AllOfferingsExhaustedError
		if held := new(provision.HeldError); errors.As(err, &held) {
			return nil, true
		}
		if errors.As(err, &r) {
			return []*provision.AllOfferingsExhaustedError{r}, true
		}
		return nil, false
	}
	only = true
	for _, e := range joined.Unwrap() {
		more, all := exhaustedErrors(e)
		exhausted, only = append(exhausted, more...), only && all
	}
	return exhausted, only
}

// drainRunning returns what drains an object before it is terminated; nil = nothing. An object that does not respond is
// not drained: its requests never complete.
func (dp *Deployer) drainRunning() func(context.Context, provision.Object) {
	if dp.Drain == nil {
		return nil
	}
	return func(ctx context.Context, o provision.Object) {
		if _, dead := dp.replaced[o.Handle]; !dead {
			dp.Drain(ctx, o)
		}
	}
}

// applyOptions returns the options for applying a plan.
func (dp *Deployer) applyOptions(p *MachinePlan, progress provision.ProgressFunc) provision.ApplyOptions {
	return provision.ApplyOptions{
		Parallel: parallel, Progress: progress, WaitReady: dp.WaitReady, Drain: dp.drainRunning(), Now: dp.Now, Exhausted: &dp.exhausted, Gate: dp.Gate,
		Surge: func(ctx context.Context, c provision.Change) (*provision.Replacement, error) {
			return dp.surge(ctx, p, c)
		},
	}
}

// parallel is the maximum number of concurrent changes. Each has one call in flight at a time, and
// each region at most provision.MaxCallsPerHost; this number lets a service of a dozen regions start
// at the speed of its slowest.
const parallel = 128

// MissingReplicasError means that replicas of a service are missing because no region has capacity.
type MissingReplicasError struct {
	Missing map[cloud.ReplicaGroup]int
	// Err joins the last *provision.AllOfferingsExhaustedErrors; nil if the plan that was applied lacked these replicas already
	// (MachinePlan.Missing).
	Err error
}

// Error returns a message with the missing replicas.
func (e *MissingReplicasError) Error() string {
	groups := slices.SortedFunc(maps.Keys(e.Missing), func(a, b cloud.ReplicaGroup) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Model, b.Model))
	})
	var parts []string
	for _, g := range groups {
		if n := e.Missing[g]; n > 0 {
			noun := "replicas"
			if n == 1 {
				noun = "replica"
			}
			parts = append(parts, fmt.Sprintf("%d %s of %s in %s", n, noun, g.Model, g.Region))
		}
	}
	text := "no capacity in any region for " + strings.Join(parts, ", ")
	if e.Err != nil {
		text += ":\n" + e.Err.Error()
	}
	return text
}

// Unwrap returns Err.
func (e *MissingReplicasError) Unwrap() error { return e.Err }
