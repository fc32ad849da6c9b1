package deploy

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"skyserve/internal/agent"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// A machine with a rebalance recommendation is likely to be interrupted at short notice. It is
// replaced in advance where replicas.max allows another replica: it serves until its replacement is
// ready, and is deleted once it has drained.

// recommended returns the ready replicas with a rebalance recommendation.
func recommended(have []provision.Object, seen map[string]AgentReport) map[string]bool {
	ids := map[string]bool{}
	for _, o := range have {
		if s := seen[o.ID]; o.Kind == provision.KindReplica && s.Err == nil && s.Phase == agent.PhaseReady && !s.RebalanceAt.IsZero() {
			ids[o.ID] = true
		}
	}
	return ids
}

// recommendationDelay is the time in which rebalance recommendations for a replacement machine are ignored. A cloud with little
// capacity issues them for new machines too. If they were followed immediately, one machine after
// the other would be launched and replaced while it still loads its weights.
const recommendationDelay = 30 * time.Minute

// dueForReplacement returns the replicas with a rebalance recommendation whose recommendationDelay has passed.
func (rc *Reconciler) dueForReplacement(s *observation, seen map[string]AgentReport) map[string]bool {
	ids, since := recommended(s.have, seen), map[string]time.Time{}
	for _, o := range s.knownObjects() {
		if cloud.ReplacesHandle(o) == "" {
			continue
		}
		first, known := rc.replacementsSeenAt[o.Handle]
		if !known {
			first = time.Now()
		}
		since[o.Handle] = first
		if time.Since(first) < recommendationDelay {
			delete(ids, o.ID)
		}
	}
	rc.replacementsSeenAt = since
	return ids
}

// removeDrained deletes replaced machines and fallback machines that are no longer needed, once they have
// drained. A machine counts as drained only if no balancer of its region used it at the previous
// observation either: a request that was sent just before may not have arrived yet.
func (rc *Reconciler) removeDrained(ctx context.Context, bs *bundleState, s *observation, seen map[string]AgentReport, deployments map[string]agent.Deployment, checkLeadership func() error) error {
	unused := map[string]bool{}
	var empty []string
	excess := replaced(s.have, seen, rc.settlingSpot)
	maps.Copy(excess, rc.excessOutOfRegion)
	for id := range excess {
		unused[id] = isUnused(id, s.have, seen, deployments)
		if unused[id] && rc.unusedReplicas[id] && seen[id].InFlight == 0 {
			empty = append(empty, id)
		}
	}
	var unhealthy []string
	for id, r := range rc.unhealthy { // its requests in flight fail in any case
		unused[id] = isUnused(id, s.have, seen, deployments)
		if unused[id] && rc.unusedReplicas[id] || rc.now().Sub(r.UnhealthySince) > drainTimeout {
			unhealthy = append(unhealthy, id)
		}
	}
	rc.unusedReplicas = unused
	if len(empty)+len(unhealthy) == 0 {
		return nil
	}
	if err := checkLeadership(); err != nil {
		return err
	}
	err := rc.removeMachines(ctx, bs, s.have, empty, "replaced by another replica", rc.recordProgress)
	for _, id := range slices.Sorted(slices.Values(unhealthy)) {
		err = errors.Join(err, rc.removeMachines(ctx, bs, s.have, []string{id}, rc.unhealthy[id].UnhealthyReason, rc.recordProgress))
	}
	return err
}

// isUnused reports whether all balancers of a replica's region run their current deployment, which
// does not contain the replica.
func isUnused(id string, have []provision.Object, seen map[string]AgentReport, deployments map[string]agent.Deployment) bool {
	at := slices.IndexFunc(have, func(o provision.Object) bool { return o.ID == id })
	return at >= 0 && !slices.ContainsFunc(have, func(b provision.Object) bool {
		if b.Kind != provision.KindBalancer || b.TerminatedReason != "" || b.Region != have[at].Region {
			return false
		}
		d, known := deployments[b.ID]
		return !known || seen[b.ID].Phase != agent.PhaseReady || seen[b.ID].Revision != d.Revision
	})
}
