package controller

import (
	"slices"

	"skyserve/provision"
)

// mismatch is the difference between the replica classes of a group's replicas and the plan. It is
// zero where the plan has no counts or a replica's class is unknown.
type mismatch struct {
	missing []provision.ReplicaClass // the class of each missing replica: one entry per replica
	// unplanned contains the IDs of active replicas that are not part of the plan: their class is not
	// planned, or they are beyond the planned count of their class.
	unplanned map[string]bool
}

// newMismatch compares active replicas with the planned counts by class.
func newMismatch(counts provision.ClassCounts, replicas []groupReplica) mismatch {
	if counts == nil {
		return mismatch{}
	}
	var active []provision.Object
	for _, r := range replicas {
		if !r.isActive() {
			continue
		}
		if r.Class == (provision.ReplicaClass{}) {
			return mismatch{}
		}
		active = append(active, provision.Object{ID: r.ID, Offering: &provision.Offering{GPU: r.Class.GPU, GPUs: r.Class.GPUs, Capacity: r.Class.Capacity}})
	}
	matched, missing := counts.Match(active)
	out := mismatch{missing: missing, unplanned: map[string]bool{}}
	for i, o := range active {
		if _, fits := matched[i]; !fits {
			out.unplanned[o.ID] = true
		}
	}
	return out
}

// launches returns the launches of n new replicas, missing classes first.
func (m mismatch) launches(g modelRegion, n int) []ReplicaLaunch {
	var out []ReplicaLaunch
	for i := range n {
		class := provision.ReplicaClass{}
		if i < len(m.missing) {
			class = m.missing[i]
		}
		if at := slices.IndexFunc(out, func(l ReplicaLaunch) bool { return l.Class == class }); at >= 0 {
			out[at].Count++
			continue
		}
		out = append(out, ReplicaLaunch{g.model, g.region, 1, class})
	}
	return out
}

// removable returns how many of n replicas can be removed. It returns 0 while replicas of other classes serve
// in place of a missing planned class: one of them may have more capacity than a replica of the planned class.
func (m mismatch) removable(n int) int {
	if len(m.missing) > 0 && len(m.unplanned) > 0 {
		return 0
	}
	return n
}

// nextReplacement returns the one replica to replace by a missing class; nil where no class is missing, no
// replica is unplanned, or an active replica is not ready.
func (g replicaGroup) nextReplacement() []ReplicaReplacement {
	if len(g.mismatch.missing) == 0 || len(g.mismatch.unplanned) == 0 {
		return nil
	}
	for _, r := range g.replicas {
		if r.isActive() && !r.ready() {
			return nil
		}
	}
	for _, id := range g.removalCandidates(len(g.replicas)) {
		if g.mismatch.unplanned[id] {
			return []ReplicaReplacement{{id, g.mismatch.missing[0]}}
		}
	}
	return nil
}
