package deploy

import (
	"maps"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/provision"
)

// A machine in a capacity block, and one that its cloud runs for a limited time, ends at a known time without
// a notice. It is replaced in advance, like a machine with a rebalance recommendation.

// endingBy returns the running replicas that their cloud terminates by a time.
func endingBy(have []provision.Object, at time.Time) map[string]bool {
	ids := map[string]bool{}
	for _, o := range have {
		if o.Kind == provision.KindReplica && o.TerminatedReason == "" && o.Offering != nil && o.Offering.EndsBy(at) {
			ids[o.ID] = true
		}
	}
	return ids
}

// drainedBeforeEnd returns the replicas that balancers stop using because they end soon. A replica is included only
// if another replica of its model is ready and does not end soon.
func drainedBeforeEnd(draining map[string]bool, have []provision.Object, seen map[string]AgentReport, now time.Time) map[string]bool {
	ids := endingBy(have, now.Add(provision.DrainBeforeEnd))
	serves := map[string]bool{} // models
	for _, o := range have {
		if o.Kind == provision.KindReplica && !ids[o.ID] && !draining[o.ID] && seen[o.ID].Phase == agent.PhaseReady {
			serves[o.Labels["model"]] = true
		}
	}
	for _, o := range have {
		if ids[o.ID] && !serves[o.Labels["model"]] {
			delete(ids, o.ID)
		}
	}
	return ids
}

// setNeedReplacement sets the replicas that need replacement now.
func (rc *Reconciler) setNeedReplacement(dp *Deployer, s *observation, seen map[string]AgentReport) {
	due := rc.dueForReplacement(s, seen)
	dp.Ending = endingBy(s.have, time.Now().Add(provision.ReplaceBeforeEnd))
	maps.Copy(due, dp.Ending)
	for id := range interrupted(s.have, seen) {
		if !isMaintenance(seen[id]) {
			dp.Ending[id] = true
		}
	}
	dp.NeedReplacement = needReplacement(s.have, seen, due)
}

// reservationsChanged reports whether a reservation of a region has started or ended since it was read.
func (dp *Deployer) reservationsChanged(r service.Region, readAt, now time.Time) bool {
	passed := func(t time.Time) bool { return t.After(readAt) && !t.After(now) }
	for _, v := range dp.reservations.ByRegion[r] {
		if passed(v.Starts) || passed(v.Ends) {
			return true
		}
	}
	return false
}
