package deploy

import (
	"context"
	"errors"
	"maps"
	"slices"

	"skyserve/internal/controller"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Clouds list a machine that was removed like one that was lost, or neither. The decisions about replicas therefore contain
// the desired count of each model in each region: the number of replicas that were there at once and that neither an operator
// nor a strategy has removed since. What is missing is launched, also above replicas.min. Who removes a replica says so
// before: a strategy drains it first, an operator's command announces it (ReplicaScaler.AnnounceRemoval). Strategies and
// commands for services on this computer count what they have launched without listing it, because it may end at once.

// DesiredCount is the desired count of a model in a region.
type DesiredCount struct {
	Model  string         `json:"model"`
	Region service.Region `json:"region"`
	Count  int            `json:"count"`
	// Replicas are the sorted handles of the replicas that existed when they were last counted.
	Replicas []string `json:"replicas"`
}

// replicaCounts is one count of the existing replicas.
type replicaCounts struct {
	spec  *service.Spec
	owner string // of the service
	// have are the existing objects, needReplacement the replicas of cloud.LayoutInput.
	have            []provision.Object
	needReplacement map[string]bool
	// removed are the handles of the replicas that are being removed, which may still exist.
	removed map[string]bool
	// unresponsive are the regions whose replicas are unknown; nil = none is.
	unresponsive map[service.Region]error
}

// withCounts returns d with the desired counts after a count. Counts rise to the number of replicas that exist, and are
// limited to replicas.min and max. Those of models and regions that the service no longer has are deleted.
func (d ReplicaDecisions) withCounts(now replicaCounts) ReplicaDecisions {
	if d.Owner != now.owner { // of an earlier service with this name, in a store that outlived it
		d.Owner, d.Desired = now.owner, nil
	}
	d = d.withRemoved(now.removed)
	before := d.desiredByGroup()
	existing := cloud.CountedReplicas(now.spec, now.have, now.needReplacement)
	d.Desired = nil
	for _, r := range cloud.ManagedRegions(now.spec) {
		for _, m := range now.spec.Models {
			g := cloud.ReplicaGroup{Model: m.Name, Region: r}
			c, known := before[g]
			handles, managed := existing[g]
			if !managed || !known && now.unresponsive[r] != nil {
				continue
			}
			if now.unresponsive[r] == nil {
				handles = slices.DeleteFunc(handles, func(handle string) bool { return now.removed[handle] })
				slices.Sort(handles)
				c = DesiredCount{Model: m.Name, Region: r, Count: max(c.Count, len(handles)), Replicas: handles}
			}
			b := now.spec.BoundsFor(m.Name, r)
			c.Count = min(max(c.Count, b.Min), b.Max)
			d.Desired = append(d.Desired, c)
		}
	}
	return d
}

// withRemoved returns d after replicas, given by their handles, are removed. The desired count of their model and region is
// then the number of the others that were last counted: those that have ended before are no longer desired.
func (d ReplicaDecisions) withRemoved(handles map[string]bool) ReplicaDecisions {
	d.Desired = slices.Clone(d.Desired)
	for i, c := range d.Desired {
		rest := slices.DeleteFunc(slices.Clone(c.Replicas), func(handle string) bool { return handles[handle] })
		if len(rest) < len(c.Replicas) {
			d.Desired[i].Count, d.Desired[i].Replicas = len(rest), rest
		}
	}
	return d
}

// desiredByGroup returns the desired counts by model and region.
func (d ReplicaDecisions) desiredByGroup() map[cloud.ReplicaGroup]DesiredCount {
	counts := map[cloud.ReplicaGroup]DesiredCount{}
	for _, c := range d.Desired {
		counts[cloud.ReplicaGroup{Model: c.Model, Region: c.Region}] = c
	}
	return counts
}

// DesiredCounts returns the desired counts of a service with an owner, for Deployer.DesiredCounts.
func (d ReplicaDecisions) DesiredCounts(owner string) map[cloud.ReplicaGroup]int {
	counts := map[cloud.ReplicaGroup]int{}
	if d.Owner != owner {
		return counts
	}
	for g, c := range d.desiredByGroup() {
		counts[g] = c.Count
	}
	return counts
}

// drainingHandles returns the handles of the replicas that drain before they are removed.
func (d ReplicaDecisions) drainingHandles(have []provision.Object) map[string]bool {
	handles := map[string]bool{}
	for _, o := range have {
		if donation := d.Donation(o.ID); donation != nil && donation.Draining() && o.Kind == provision.KindReplica {
			handles[o.Handle] = true
		}
	}
	return handles
}

// equalCounts reports whether two contain the same desired counts.
func (d ReplicaDecisions) equalCounts(other ReplicaDecisions) bool {
	return d.Owner == other.Owner && slices.EqualFunc(d.Desired, other.Desired, func(a, b DesiredCount) bool {
		return a.Model == b.Model && a.Region == b.Region && a.Count == b.Count && slices.Equal(a.Replicas, b.Replicas)
	})
}

// countReplicas counts the replicas of an observation, stores the desired counts, and makes the deployer use them. If they
// cannot be stored, nothing is launched.
func (rc *Reconciler) countReplicas(ctx context.Context, bs *bundleState, s *observation) error {
	was, err := rc.decisions()
	if err != nil {
		return err
	}
	removed, err := rc.announcedRemovals(ctx) // after the observation: who removes a replica announces it before
	if err != nil {
		return err
	}
	maps.Copy(removed, was.drainingHandles(s.have))
	next := was.withCounts(replicaCounts{spec: s.spec, owner: bs.deployer.Owner, have: s.have, needReplacement: bs.deployer.NeedReplacement, removed: removed, unresponsive: s.unresponsive})
	bs.deployer.DesiredCounts = next.DesiredCounts(bs.deployer.Owner)
	if was.equal(next) {
		return nil
	}
	return rc.writeDecisions(ctx, next)
}

// announcedRemovals returns the handles of the replicas that operators' commands are removing from clouds. A record that
// cannot be decoded is logged: it must not stop replacements.
func (rc *Reconciler) announcedRemovals(ctx context.Context) (map[string]bool, error) {
	handles := map[string]bool{}
	if rc.DecisionsFile != "" {
		return handles, nil // commands change it, too
	}
	var r telemetry.Removals
	err := rc.storeRecords.Read(ctx, telemetry.RemovalsRecord, &r)
	if errors.Is(err, controller.ErrDamagedRecord) {
		rc.log().Warn("a record in the store is damaged; it is ignored", "record", telemetry.RemovalsRecord, "err", err)
		return handles, nil
	}
	for handle := range r.Current(rc.now()) {
		handles[handle] = true
	}
	return handles, err
}

// RemovedReplicas returns the replicas that changes terminate.
func RemovedReplicas(changes provision.Changes) (removed []provision.Object) {
	for _, c := range changes {
		if c.Action == provision.ActionTerminate && c.Kind() == provision.KindReplica {
			removed = append(removed, c.Observed)
		}
	}
	return removed
}

// announceRemoval stores that replicas are removed, before that.
func (s *ReplicaScaler) announceRemoval(ctx context.Context, changes provision.Changes) error {
	removed, handles := RemovedReplicas(changes), map[string]bool{}
	if len(removed) == 0 {
		return nil
	}
	if s.AnnounceRemoval != nil {
		s.AnnounceRemoval(ctx, removed)
	}
	if err := s.CountReplicas(ctx); err != nil { // those that were launched since the last count
		return err
	}
	have, err := s.listObjects(ctx)
	if err != nil {
		return err
	}
	next := s.Decisions
	for _, o := range removed {
		if isEndedHere(o) {
			next = next.withEndedRemoved(o, have)
		} else {
			handles[o.Handle] = true
		}
	}
	return s.storeCounts(next.withRemoved(handles))
}

// countLaunched stores the desired counts of a service on this computer after replicas were launched beside others.
func (s *ReplicaScaler) countLaunched(have, launched []provision.Object) error {
	if cloud.UsesClouds(s.Spec) {
		return nil
	}
	return s.countExisting(withLaunched(have, launched))
}

// withLaunched returns the objects of a list and those that were launched after it, as if none had ended since.
func withLaunched(have, launched []provision.Object) []provision.Object {
	return slices.Concat(slices.DeleteFunc(slices.Clone(have), func(o provision.Object) bool {
		return slices.ContainsFunc(launched, func(l provision.Object) bool { return l.Handle == o.Handle })
	}), launched)
}

// CountReplicas stores the desired counts of a service on this computer after a change. Those of a service in clouds are in
// its store, to which only its controller writes.
func (s *ReplicaScaler) CountReplicas(ctx context.Context) error {
	if cloud.UsesClouds(s.Spec) {
		return nil
	}
	have, err := s.listObjects(ctx)
	if err != nil {
		return err
	}
	return s.countExisting(have)
}

// countExisting is CountReplicas of a service on this computer that has these objects.
func (s *ReplicaScaler) countExisting(have []provision.Object) error {
	return s.storeCounts(s.Decisions.withCounts(replicaCounts{spec: s.Spec, owner: s.Owner, have: have, needReplacement: withReplacement(have), removed: s.Decisions.drainingHandles(have)}))
}

// storeCounts stores decisions with other desired counts.
func (s *ReplicaScaler) storeCounts(next ReplicaDecisions) error {
	if next.equal(s.Decisions) {
		return nil
	}
	s.Decisions, s.DesiredCounts = next, next.DesiredCounts(s.Owner)
	return s.Store(next)
}
