package controller

import (
	"fmt"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// Models that scale to zero (service.Spec.ScalesToZero) get their first replica when requests wait, and lose their last
// ones after a time without requests. Both are decided here, for all regions of a model together. The strategy decides
// the rest, and also starts a first replica for a planned load (loadPlanned).

// failedStartDelay is the time for which a region in which a first replica could not be launched is
// avoided, if there is another one: capacity rarely returns within seconds.
const failedStartDelay = time.Minute

// modelGroups are the groups of one model, in the order of service.yaml.
type modelGroups struct {
	model  string
	groups []replicaGroup
}

// scaleToZeroModels returns the groups of the models that scale to zero.
func (in *scalingInputs) scaleToZeroModels(groups []replicaGroup) (all []modelGroups) {
	for i := range in.current.Spec.Models {
		name := in.current.Spec.Models[i].Name
		if !in.current.Spec.ScalesToZero(name) {
			continue
		}
		m := modelGroups{model: name}
		for _, g := range groups {
			if g.model == name {
				m.groups = append(m.groups, g)
			}
		}
		all = append(all, m)
	}
	return all
}

// scaleToZeroChanges returns the changes of the models that scale to zero: they start first replicas and
// drain last ones. handled contains the models that the strategy must not change in this iteration: those
// with such a change, and those without replicas for which no load is planned.
func (s *scaler) scaleToZeroChanges(in *scalingInputs, groups []replicaGroup) (changes []scalingChange, handled map[string]bool) {
	handled = map[string]bool{}
	for _, m := range in.scaleToZeroModels(groups) {
		var own []scalingChange
		switch {
		case m.activeCount() == 0:
			own = s.firstReplica(in, m)
			handled[m.model] = len(own) > 0 || !in.loadPlanned(m)
		case in.failedBalancers == 0: // otherwise an unreported request may be in flight
			own = s.lastReplicas(in, m)
			handled[m.model] = len(own) > 0
		}
		changes = append(changes, own...)
	}
	return changes, handled
}

// activeCount returns the number of the model's active replicas.
func (m modelGroups) activeCount() (n int) {
	for _, g := range m.groups {
		n += g.activeCount()
	}
	return n
}

// firstReplica returns the change that starts the first replica of a model for which requests wait;
// none where no region may have a replica now, or the previous start was so recent that the replica
// may not be observed yet.
func (s *scaler) firstReplica(in *scalingInputs, m modelGroups) []scalingChange {
	waiting := 0
	for _, g := range m.groups {
		waiting += in.waitingRequests(g)
		if in.now.Sub(s.previousEvents[g.modelRegion]) < cooldown || in.now.Sub(s.lastStarts[g.modelRegion]) < cooldown {
			return nil
		}
	}
	g := s.firstReplicaGroup(in, m)
	if waiting == 0 || g == nil {
		return nil
	}
	b := &changeBuilder{scalingInputs: in, group: *g, reason: waitingReason(waiting)}
	b.fromZero = true
	if ids := in.claimDonated(*g, 1, false); len(ids) > 0 {
		b.capacity.Reclaim = ids
		b.addAction(telemetry.EventScaleFromZero, ids)
	} else {
		b.addLaunch(1)
		b.addAction(telemetry.EventScaleFromZero, nil)
	}
	return []scalingChange{b.scalingChange}
}

func waitingReason(n int) string { return "no replica, " + printable.Count(n, "queued request") }

// firstReplicaGroup returns the group that gets the first replica; nil if no region may have a replica now.
// It prefers regions in which no start failed recently, then a group with a donated replica, which is ready
// at once, and then the group where most requests wait. Among equals it returns the first in service.yaml.
func (s *scaler) firstReplicaGroup(in *scalingInputs, m modelGroups) *replicaGroup {
	var best *replicaGroup
	rank := func(g *replicaGroup) [3]int {
		donated, noFailure := 0, 0
		if g.hasDonated() {
			donated = 1
		}
		if in.now.Sub(s.lastFailedStarts[g.modelRegion]) >= failedStartDelay {
			noFailure = 1
		}
		return [3]int{noFailure, donated, in.waitingRequests(*g)}
	}
	for i := range m.groups {
		g := &m.groups[i]
		if !g.hasDonated() && len(g.replicas) >= g.bounds.Max {
			continue
		}
		if best == nil || greater(rank(g), rank(best)) {
			best = g
		}
	}
	return best
}

// greater compares two ranks by their first difference.
func greater(a, b [3]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] > b[i]
		}
	}
	return false
}

// hasDonated reports whether a donated replica can be reclaimed.
func (g replicaGroup) hasDonated() bool {
	for _, r := range g.replicas {
		if r.isDonated() {
			return true
		}
	}
	return false
}

// waitingRequests returns the number of requests queued for a group's model in its region, including
// deferred ones; 0 where the region's balancers do not report it.
func (in *scalingInputs) waitingRequests(g replicaGroup) int {
	if m := in.modelReport(g); m != nil {
		return m.Queued + m.Deferred
	}
	return 0
}

// lastReplicas returns the changes that drain all replicas of a model without requests; none while it
// is in use or a load is planned.
func (s *scaler) lastReplicas(in *scalingInputs, m modelGroups) (changes []scalingChange) {
	idle, known := in.idleTime(m)
	after := in.current.Spec.Autoscale.ScaleToZeroAfter
	if !known || after <= 0 || idle < after || in.loadPlanned(m) {
		return nil
	}
	for _, g := range m.groups {
		ids := g.activeIDs()
		if len(ids) == 0 {
			continue
		}
		mode := scaleInModeOf(g.region, s.autoscale)
		b := &changeBuilder{scalingInputs: in, group: g}
		b.reason = fmt.Sprintf("scaled to zero: no requests for %s", idle.Truncate(time.Second))
		b.drain(ids, mode, telemetry.EventScaleToZero)
		changes = append(changes, b.scalingChange)
	}
	return changes
}

// activeIDs returns the IDs of the active replicas.
func (g replicaGroup) activeIDs() (ids []string) {
	for _, r := range g.replicas {
		if r.isActive() {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// idleTime returns the time since the model was last in use in any region; false where a region does
// not report it.
func (in *scalingInputs) idleTime(m modelGroups) (idle time.Duration, known bool) {
	for i, g := range m.groups {
		r := in.modelReport(g)
		if r == nil || r.IdleMillis == nil {
			return 0, false
		}
		here := time.Duration(*r.IdleMillis) * time.Millisecond
		if r.Queued+r.Deferred > 0 {
			here = 0
		}
		if i == 0 || here < idle {
			idle = here
		}
	}
	return idle, len(m.groups) > 0
}

// minPlannedShare is the planned load, as a share of the throughput of one replica, from which a plan
// keeps or starts a replica of a model without requests. Without this threshold, every forecast above
// zero would plan a replica, and a few requests a week would keep it forever.
const minPlannedShare = 0.05

// loadPlanned reports whether the strategy follows the plan in force, and that plan has a relevant
// load for the model.
func (in *scalingInputs) loadPlanned(m modelGroups) bool {
	if !plan.UsesPlan(in.current.Spec.Autoscale.Strategy) {
		return false
	}
	share := 0.0
	for _, g := range m.groups {
		switch t := in.targets[g.modelRegion]; {
		case t == nil || t.Count == 0:
		case t.ReplicaTPS <= 0:
			return true // its share is unknown
		default:
			share += t.PeakTPS / t.ReplicaTPS
		}
	}
	return share >= minPlannedShare
}

// groupsKeepingOne returns the groups in which a strategy keeps one replica although their minimum is 0.
// For each model that scales to zero, this is the first group with a ready replica, or else the first with a
// starting one.
func (in *scalingInputs) groupsKeepingOne(groups []replicaGroup) map[modelRegion]bool {
	keep := map[modelRegion]bool{}
	for _, m := range in.scaleToZeroModels(groups) {
		var first *replicaGroup
		for i := range m.groups {
			g := &m.groups[i]
			if g.activeCount() > 0 && (first == nil || g.readyCount() > 0 && first.readyCount() == 0) {
				first = g
			}
		}
		if first != nil {
			keep[first.modelRegion] = true
		}
	}
	return keep
}

// readyCount returns the number of ready replicas.
func (g replicaGroup) readyCount() (n int) {
	for _, r := range g.replicas {
		if r.ready() {
			n++
		}
	}
	return n
}

// recordStart records whether the first replica of a model was started, if that is what the change does.
func (s *scaler) recordStart(c scalingChange, err error) {
	if !c.fromZero || len(c.actions) == 0 {
		return
	}
	e := &c.actions[0]
	if at := (modelRegion{e.model, e.region}); err != nil {
		s.lastFailedStarts[at] = e.at
	} else {
		s.lastStarts[at], s.startedFromZero = e.at, true
	}
}
