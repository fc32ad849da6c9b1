package fleet

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"

	"skyserve/internal/controller"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/static"
)

var _ controller.Actuator = (*Reconciler)(nil)

// fileLeaving is where it is kept, beside what the controller was handed, which replicas
// are emptied before they are removed. Where it is lost they serve on until a strategy
// gives them up again.
const fileLeaving = "leaving.json"

// Current implements controller.Actuator: the service as it was seen at the last look, less
// regions that never answered. It is an error before the first.
func (k *Reconciler) Current() (controller.CurrentState, error) {
	v, err := k.seenLast()
	if err != nil {
		return controller.CurrentState{}, err
	}
	decided, err := k.decisions()
	if err != nil {
		return controller.CurrentState{}, err
	}
	return currentState(v, decided), nil
}

// currentState is what there is of a service, with the replicas that were given up and when.
func currentState(v *view, decided Decisions) controller.CurrentState {
	s := controller.CurrentState{Spec: v.spec}
	leave := going(v.have, v.seen)
	maps.Copy(leave, replaced(v.have, v.seen))
	maps.Copy(leave, spare(v.have, v.seen, leave))
	for _, o := range v.have {
		if o.Kind != provision.KindReplica || o.Gone != "" {
			continue
		}
		r := controller.CurrentReplica{ID: o.ID, Model: o.Labels["model"], Region: o.Region, GPU: gpuOf(o), Drained: leave[o.ID] || decided.IsDrained(o.ID), Donation: decided.Donation(o.ID)}
		if o.Offering != nil {
			r.On = provision.ClassOf(*o.Offering)
		}
		if Reachable(o) {
			r.URL = engineURL(o)
		}
		s.Replicas = append(s.Replicas, r)
	}
	for _, c := range attachedOf(v.spec) {
		s.Replicas = append(s.Replicas, controller.CurrentReplica{
			ID: c.ID, Model: c.Model, Region: c.Region, GPU: c.GPU, URL: c.URL, Drained: decided.IsDrained(c.ID), Donation: decided.Donation(c.ID),
		})
	}
	rank := func(r service.Region) int {
		return slices.IndexFunc(v.spec.Regions, func(s service.RegionSpec) bool { return s.Name == r })
	}
	slices.SortStableFunc(s.Replicas, func(a, b controller.CurrentReplica) int {
		return cmp.Or(rank(a.Region)-rank(b.Region), cmp.Compare(a.Model, b.Model), cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
	})
	return s
}

// Apply implements controller.Actuator. Machines that are given up go back to the cloud:
// there is nobody to lend them to. The next look tells balancers of what changed.
func (k *Reconciler) Apply(ctx context.Context, change controller.Change, may func() error) (launched []string, err error) {
	if !k.working.TryLock() {
		return nil, controller.ErrBusy
	}
	defer k.working.Unlock()
	unlock, err := k.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	o, err := k.open(ctx)
	if err != nil {
		return nil, err
	}
	s, err := k.observe(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := may(); err != nil {
		return nil, err
	}
	if err := k.keepLeaving(s.spec, s.all(), change); err != nil {
		return nil, err
	}
	failure := errors.Join(s.beyond(change), k.remove(ctx, o, s.have, change.Remove, "given up"))
	launched, err = k.launch(ctx, o, change.Launch)
	replaced, refused := k.exchange(ctx, o, change.Replace)
	return append(launched, replaced...), errors.Join(failure, err, refused)
}

// remove ends machines; why is logged.
func (k *Reconciler) remove(ctx context.Context, o *opened, have []provision.Object, ids []string, why string) error {
	return o.fleet.remove(ctx, slices.DeleteFunc(slices.Clone(have), func(r provision.Object) bool {
		return r.Kind != provision.KindReplica || !slices.Contains(ids, r.ID)
	}), why, k.progress)
}

// launch makes so many more replicas, and returns the ids of those that could be had.
func (k *Reconciler) launch(ctx context.Context, o *opened, orders []controller.Launching) (launched []string, err error) {
	if len(orders) == 0 {
		return nil, nil
	}
	s, err := k.observe(ctx, o)
	if err != nil {
		return nil, err
	}
	silent := k.plans(ctx, o, s)
	more := map[cloud.Group]provision.Counts{}
	for _, l := range orders {
		g := cloud.Group{Model: l.Model, Region: l.Region}
		if more[g] == nil {
			more[g] = provision.Counts{}
		}
		more[g][l.On] += l.Count
	}
	before := map[string]bool{}
	for _, r := range s.have {
		before[r.ID] = r.Gone == ""
	}
	_, err = o.fleet.launchMore(ctx, s.have, more, k.progress)
	after, failed := o.fleet.list(ctx)
	for _, r := range after {
		if r.Kind == provision.KindReplica && r.Gone == "" && !before[r.ID] {
			launched = append(launched, r.ID)
		}
	}
	return launched, errors.Join(silent, err, failed)
}

// fileOfDecisions is where it is kept which replicas are sent nothing.
func (k *Reconciler) fileOfDecisions() string {
	if k.Decisions != "" {
		return k.Decisions
	}
	return filepath.Join(k.Dir, fileLeaving)
}

// decisions are what was decided about replicas.
func (k *Reconciler) decisions() (Decisions, error) { return ReadDecisions(k.fileOfDecisions()) }

// keepLeaving keeps which replicas leave once a change is made, before it is begun. Of one
// that is no longer there nothing is kept: another may get its id.
func (k *Reconciler) keepLeaving(spec *service.Spec, have []provision.Object, change controller.Change) error {
	was, err := k.decisions()
	if err != nil {
		return err
	}
	next := was
	for _, d := range change.Donate {
		how := d.Donation
		if i := slices.IndexFunc(have, func(o provision.Object) bool { return o.ID == d.ID }); i >= 0 && !cloud.IsHere(have[i].Region) {
			how.Until = how.Since // there is nobody to lend it to
		}
		next = next.WithDonated(d.ID, how)
	}
	for _, id := range change.Reclaim {
		next = next.Reclaimed(id)
	}
	next = next.about(func(id string) bool { return runs(have, id) || isAttached(spec, id) })
	if was.equal(next) {
		return nil
	}
	return next.Write(k.fileOfDecisions())
}

// isAttached says whether a replica is a machine of a static region.
func isAttached(spec *service.Spec, id string) bool {
	return slices.ContainsFunc(attachedOf(spec), func(c service.ReplicaConfig) bool { return c.ID == id })
}

// attachedOf are the replicas of static regions.
func attachedOf(spec *service.Spec) []service.ReplicaConfig {
	var all []service.ReplicaConfig
	for _, r := range spec.Regions {
		if r.Name.Cloud() == service.CloudStatic {
			all = append(all, static.Replicas(spec, r)...)
		}
	}
	return all
}
