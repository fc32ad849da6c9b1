package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"skyserve/internal/controller"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/static"
)

var _ controller.Actuator = (*Reconciler)(nil)

// Current implements controller.Actuator: the service at the last observation, without regions that
// have never responded. It returns an error before the first observation.
func (rc *Reconciler) Current() (controller.CurrentState, error) {
	v, err := rc.lastView()
	if err != nil {
		return controller.CurrentState{}, err
	}
	decided, err := rc.decisions()
	if err != nil {
		return controller.CurrentState{}, err
	}
	s := currentState(v, decided)
	s.Starts, s.Machines, s.States = startsOf(v, rc.now()), machinesOf(v), statesOf(v, s.Replicas, decided)
	rc.mu.Lock()
	s.Launches = rc.shownLaunches
	rc.mu.Unlock()
	return s, nil
}

// currentState returns the state of a service with its decisions about replicas.
func currentState(v *serviceView, decided ReplicaDecisions) controller.CurrentState {
	s := controller.CurrentState{Spec: v.spec}
	notServing := interrupted(v.have, v.seen)
	maps.Copy(notServing, replaced(v.have, v.seen, v.settlingSpot))
	maps.Copy(notServing, pendingReplacements(v.have, v.seen, v.settlingSpot, notServing))
	for id := range v.unhealthy {
		notServing[id] = true
	}
	for _, o := range v.have {
		if o.Kind != provision.KindReplica || o.TerminatedReason != "" {
			continue
		}
		r := controller.CurrentReplica{ID: o.ID, Model: o.Labels["model"], Region: o.Region, GPU: gpuTypeOf(o), Drained: notServing[o.ID] || decided.IsDrained(o.ID) || cloud.IsOverprovisioned(o), Donation: decided.Donation(o.ID)}
		if o.Offering != nil {
			r.Class = provision.ReplicaClassOf(*o.Offering)
		}
		if Reachable(o) {
			r.URL = engineURL(o)
		}
		s.Replicas = append(s.Replicas, r)
	}
	for _, c := range staticReplicas(v.spec) {
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

// Apply implements controller.Actuator. Excess cloud machines are returned to the cloud, since they
// cannot be donated. The next iteration delivers the change
// to balancers.
func (rc *Reconciler) Apply(ctx context.Context, change controller.CapacityChange, checkLeadership func() error) (launched []string, err error) {
	if !rc.reconcileMu.TryLock() {
		return nil, fmt.Errorf("%w: the controller is reconciling it", controller.ErrBusy)
	}
	defer rc.reconcileMu.Unlock()
	unlock, err := rc.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	bs, err := rc.loadBundle(ctx)
	if err != nil {
		return nil, err
	}
	s, err := rc.observe(ctx, bs)
	if err != nil {
		return nil, err
	}
	if err := checkLeadership(); err != nil {
		return nil, err
	}
	if err := rc.storeDecisions(ctx, s.spec, s.knownObjects(), change); err != nil {
		return nil, err
	}
	failure := errors.Join(s.unreachableParts(change), rc.removeMachines(ctx, bs, s.have, change.Remove, "removed by the scaling strategy", rc.progress))
	launched, err = rc.launchReplicas(ctx, bs, change.Launch)
	replaced, refused := rc.replaceReplicas(ctx, bs, change.Replace)
	rc.launches.addHeld(err, rc.now())
	failure = errors.Join(failure, rc.storeLaunches(ctx, s))
	return append(launched, replaced...), errors.Join(failure, err, refused)
}

// removeMachines deletes machines; progress receives why.
func (rc *Reconciler) removeMachines(ctx context.Context, bs *bundleState, have []provision.Object, ids []string, why string, progress provision.ProgressFunc) error {
	return bs.deployer.removeMachines(ctx, slices.DeleteFunc(slices.Clone(have), func(r provision.Object) bool {
		return r.Kind != provision.KindReplica || !slices.Contains(ids, r.ID)
	}), why, progress)
}

// launchReplicas launches replicas and returns the IDs of those with capacity.
func (rc *Reconciler) launchReplicas(ctx context.Context, bs *bundleState, launches []controller.ReplicaLaunch) (launched []string, err error) {
	if len(launches) == 0 {
		return nil, nil
	}
	s, err := rc.observe(ctx, bs)
	if err != nil {
		return nil, err
	}
	offersErr := rc.limitPlanning(ctx, bs, s)
	more := map[cloud.ReplicaGroup]provision.ClassCounts{}
	for _, l := range launches {
		g := cloud.ReplicaGroup{Model: l.Model, Region: l.Region}
		if more[g] == nil {
			more[g] = provision.ClassCounts{}
		}
		more[g][l.Class] += l.Count
	}
	_, objects, err := bs.deployer.launchMore(ctx, s.have, more, rc.progress)
	for _, o := range objects {
		if o.Kind == provision.KindReplica {
			launched = append(launched, o.ID)
		}
	}
	slices.Sort(launched)
	s.have = withLaunched(s.have, objects)
	return launched, errors.Join(offersErr, err, rc.countReplicas(ctx, bs, s))
}

// storeDecisions stores which replicas drain for a change, before the change starts. It deletes
// decisions about replicas that no longer exist, since their IDs may be reused.
func (rc *Reconciler) storeDecisions(ctx context.Context, spec *service.Spec, have []provision.Object, change controller.CapacityChange) error {
	was, err := rc.decisions()
	if err != nil {
		return err
	}
	next := was
	for _, d := range change.Drain {
		donation := d.Donation
		if i := slices.IndexFunc(have, func(o provision.Object) bool { return o.ID == d.ID }); i >= 0 && !cloud.RunsOnThisComputer(have[i].Region) {
			donation.Until = donation.Since // cloud machines cannot be donated
		}
		next = next.WithDonated(d.ID, donation)
	}
	for _, id := range change.Reclaim {
		next = next.Reclaimed(id)
	}
	for _, id := range change.Remove {
		now := rc.now().UTC().Round(0)
		next = next.Reclaimed(id).WithDonated(id, service.Donation{Since: now, Until: now})
	}
	next = next.withRemoved(next.drainingHandles(have))
	next = next.onlyExisting(have, spec)
	if was.equal(next) {
		return nil
	}
	return rc.writeDecisions(ctx, next)
}

// isStaticReplica reports whether a replica is a machine of a static region.
func isStaticReplica(spec *service.Spec, id string) bool {
	return slices.ContainsFunc(staticReplicas(spec), func(c service.ReplicaConfig) bool { return c.ID == id })
}

// StaticReplicas returns the replicas of static regions.
func StaticReplicas(spec *service.Spec) []service.ReplicaConfig { return staticReplicas(spec) }

// staticReplicas returns the replicas of static regions.
func staticReplicas(spec *service.Spec) []service.ReplicaConfig {
	var all []service.ReplicaConfig
	for _, r := range spec.Regions {
		if r.Name.Cloud() == service.CloudStatic {
			all = append(all, static.Replicas(spec, r)...)
		}
	}
	return all
}
