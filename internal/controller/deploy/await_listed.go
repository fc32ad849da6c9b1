package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"skyserve/provision"
	"skyserve/provision/cloud"
)

// minLocateInterval and maxLocateInterval are the initial and maximum polling intervals for objects that are
// not ready yet: a machine gets its address within a few seconds.
const (
	minLocateInterval = 250 * time.Millisecond
	maxLocateInterval = 2 * time.Second
	// unlistedAfterListing and unlistedAfterLaunch are how long a machine that was listed before, or was
	// launched, must be missing in the lists of its cloud until it counts as ended. Lists of EC2 are
	// consistent within seconds.
	unlistedAfterListing = 10 * time.Second
	unlistedAfterLaunch  = time.Minute
	// maxReplans is how often UpAndAwait and ApplyDesired plan again because a machine ended: a machine that ends
	// every time has a cause that an operator must find.
	maxReplans = 3
)

// MachineEndedError is the error of a desired machine that ended after the clouds were observed for the
// plan.
type MachineEndedError struct {
	ID     string
	Reason string // from the cloud
}

// Error returns the machine and the reason.
func (e *MachineEndedError) Error() string {
	return fmt.Sprintf("waiting for %s: the machine has ended: %s", e.ID, e.Reason)
}

// UpAndAwait applies a plan as Up does, and returns the objects that await returns. While await returns a
// *MachineEndedError, it plans again and applies the difference, up to maxReplans times: the clouds may
// have listed a machine as running that was ending. replanned is called with each such error and the new
// plan. Then it updates the firewalls that admit machines by address. It returns the last plan.
func (dp *Deployer) UpAndAwait(ctx context.Context, p *MachinePlan, progress provision.ProgressFunc, await func(context.Context, *MachinePlan) ([]provision.Object, error), replanned func(*MachineEndedError, *MachinePlan)) (*MachinePlan, []provision.Object, error) {
	var have []provision.Object
	err := retryEnded(func() (err error) {
		if p, err = dp.Up(ctx, p, progress); err == nil {
			have, err = await(ctx, p)
		}
		return err
	}, func(ended *MachineEndedError) error {
		next, err := dp.Plan(ctx)
		if err != nil {
			return errors.Join(ended, err)
		}
		next.Applied = slices.Concat(p.Applied, p.Changes)
		replanned(ended, next)
		p = next
		return nil
	})
	if err == nil {
		err = dp.AdmitPeers(ctx, have, progress)
	}
	return p, have, err
}

// retryEnded calls apply again while it returns a *MachineEndedError, up to maxReplans times. Before each of these
// calls it calls replan, whose error ends the calls.
func retryEnded(apply func() error, replan func(*MachineEndedError) error) error {
	for attempt := 0; ; attempt++ {
		err := apply()
		var ended *MachineEndedError
		if !errors.As(err, &ended) || attempt == maxReplans {
			return err
		}
		if err := replan(ended); err != nil {
			return err
		}
	}
}

// AdmitPeers repairs the firewalls whose rules contain addresses of machines, which are unknown before the launch.
func (dp *Deployer) AdmitPeers(ctx context.Context, have []provision.Object, progress provision.ProgressFunc) error {
	if dp.Filter != nil || !cloud.ReplicatesStore(dp.Spec) {
		return nil
	}
	return dp.repair(ctx, have, provision.KindFirewall, progress)
}

// GrantRecords repairs the identity that may change the records of the public name, whose health checks are unknown
// before the name is published.
func (dp *Deployer) GrantRecords(ctx context.Context, have []provision.Object, healthChecks []string, progress provision.ProgressFunc) error {
	dp.HealthChecks = healthChecks
	return dp.repair(ctx, have, provision.KindIdentity, progress)
}

// repair repairs the existing objects of a kind that differ from the desired ones.
func (dp *Deployer) repair(ctx context.Context, have []provision.Object, kind provision.ObjectKind, progress provision.ProgressFunc) error {
	p, err := dp.planFor(have, nil)
	if err != nil {
		return err
	}
	p.Changes = slices.DeleteFunc(p.Changes, func(c provision.Change) bool {
		return c.Kind() != kind || c.Action != provision.ActionRepair
	})
	_, err = provision.Apply(ctx, p.Changes, dp.launcher(), dp.applyOptions(p, progress))
	return err
}

// AwaitListed returns the objects of a service once the cloud lists every desired machine of p (or,
// with Filter, every launched one) with its addresses, and no machine that p removed: lists of clouds
// are eventually consistent. It fails with a *MachineEndedError if a desired machine has ended since the
// objects of p were listed. When ctx ends first, the error contains one machine that is not listed as
// expected.
func (dp *Deployer) AwaitListed(ctx context.Context, p *MachinePlan) ([]provision.Object, error) {
	watch := dp.newListingWatch(p)
	for wait := minLocateInterval; ; wait = min(maxLocateInterval, 2*wait) {
		have, err := dp.listObjects(ctx)
		if err != nil {
			return nil, err
		}
		if ended := watch.ended(time.Now(), have); ended != nil {
			return nil, ended
		}
		id := dp.firstUnlisted(p, have)
		if id == "" {
			return have, nil
		}
		if !sleep(ctx, wait) {
			return nil, fmt.Errorf("waiting for the cloud to list the current state of %s: %w", id, context.Cause(ctx))
		}
	}
}

// AwaitAddress returns the objects of a service once the cloud lists a launched machine with its address. It fails with a
// *MachineEndedError if that machine has ended.
func (dp *Deployer) AwaitAddress(ctx context.Context, o provision.Object) ([]provision.Object, error) {
	for wait := minLocateInterval; ; wait = min(maxLocateInterval, 2*wait) {
		have, err := dp.listObjects(ctx)
		if err != nil {
			return nil, err
		}
		for _, listed := range have {
			switch {
			case listed.Handle != o.Handle || listed.ID != o.ID:
			case listed.TerminatedReason != "":
				return nil, &MachineEndedError{o.ID, listed.TerminatedReason}
			case listed.PrivateIP.IsValid() && (listed.Kind != provision.KindBalancer || listed.PublicIP.IsValid()):
				return have, nil
			}
		}
		if !sleep(ctx, wait) {
			return nil, fmt.Errorf("waiting for the address of %s: %w", o.ID, context.Cause(ctx))
		}
	}
}

// listingWatch finds the desired machines of a plan that have ended since its objects were listed. Some clouds
// list a machine that has ended, with the reason; EC2 no longer lists it.
type listingWatch struct {
	plan    *MachinePlan
	awaited func(provision.Desired) bool
	listed  map[string]bool      // IDs that were listed for the plan or since
	missing map[string]time.Time // the first listing without a machine, by ID
}

func (dp *Deployer) newListingWatch(p *MachinePlan) *listingWatch {
	w := &listingWatch{plan: p, listed: map[string]bool{}, missing: map[string]time.Time{}}
	w.awaited = func(d provision.Desired) bool { return dp.awaitsListing(p, d) }
	for _, o := range p.Observed {
		if o.TerminatedReason == "" && !p.removes(o) {
			w.listed[o.ID] = true
		}
	}
	return w
}

// ended returns the error of a machine that has ended, by another listing; nil = none has.
func (w *listingWatch) ended(now time.Time, have []provision.Object) *MachineEndedError {
	for _, d := range w.plan.Desired {
		switch {
		case !w.awaited(d):
			continue
		case isListed(have, d.ID):
			w.listed[d.ID] = true
			delete(w.missing, d.ID)
			continue
		case w.missing[d.ID].IsZero():
			w.missing[d.ID] = now
		}
		limit := unlistedAfterLaunch
		if w.listed[d.ID] {
			limit = unlistedAfterListing
		}
		if reason := w.reasonOf(d.ID, have); reason != "" {
			return &MachineEndedError{d.ID, reason}
		}
		if now.Sub(w.missing[d.ID]) >= limit {
			return &MachineEndedError{d.ID, "its cloud no longer lists it"}
		}
	}
	return nil
}

// reasonOf returns why the machine of an ID ended after the plan was made; empty if its cloud does not report it.
func (w *listingWatch) reasonOf(id string, have []provision.Object) string {
	for _, o := range have {
		before := slices.ContainsFunc(w.plan.Observed, func(old provision.Object) bool { return old.Handle == o.Handle && old.TerminatedReason != "" })
		if o.ID == id && o.TerminatedReason != "" && !before && !w.plan.removes(o) {
			return o.TerminatedReason
		}
	}
	return ""
}

// removes reports whether the plan replaces or terminates an object.
func (p *MachinePlan) removes(o provision.Object) bool {
	return slices.ContainsFunc(p.Changes, func(c provision.Change) bool {
		return (c.Action == provision.ActionReplace || c.Action == provision.ActionTerminate) && c.Observed.Handle == o.Handle
	})
}

// awaitsListing reports whether AwaitListed waits for a desired object: for every machine or, with Filter,
// for every launched one.
func (dp *Deployer) awaitsListing(p *MachinePlan, desired provision.Desired) bool {
	launched := slices.ContainsFunc(p.Changes, func(c provision.Change) bool { return c.Desired.ID == desired.ID })
	return desired.Machine != nil && (dp.Filter == nil || launched)
}

// isListed reports whether a machine with an ID exists.
func isListed(have []provision.Object, id string) bool {
	return slices.ContainsFunc(have, func(o provision.Object) bool { return o.ID == id && o.TerminatedReason == "" })
}

// firstUnlisted returns the ID of a machine that is not listed as expected; empty = all are.
func (dp *Deployer) firstUnlisted(p *MachinePlan, have []provision.Object) string {
	for _, o := range have {
		if o.Offering == nil || o.TerminatedReason != "" {
			continue
		}
		if p.removes(o) || !o.PrivateIP.IsValid() || o.Kind == provision.KindBalancer && !o.PublicIP.IsValid() {
			return o.ID
		}
	}
	for _, desired := range p.Desired {
		if dp.awaitsListing(p, desired) && !isListed(have, desired.ID) {
			return desired.ID
		}
	}
	return ""
}
