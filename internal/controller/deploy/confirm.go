package deploy

import (
	"context"
	"maps"
	"sync"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// An agent reports its replica ready up to a second before a balancer does, which must probe the
// engine first. If another replica were drained in that second, its balancer might have none. The balancers of
// other regions know of the new replica only after the next heartbeat of its balancer.

// withConfirmedReadiness returns the statuses of machines with one change: a replica counts as starting until
// every balancer reports it ready. It asks the balancers only while a replica may be drained in favour of
// another. Replicas that balancers stop using are left as they are.
func (rc *Reconciler) withConfirmedReadiness(ctx context.Context, dl *Delivery, draining map[string]bool, seen map[string]AgentReport) map[string]AgentReport {
	if !anyInReplacement(dl.Machines, seen) {
		rc.ownReadySince = nil
		return seen
	}
	var used map[string]bool
	if rc.usedReplicas != nil {
		used = rc.usedReplicas()
	} else {
		own, everywhere := dl.readyAtBalancers(ctx, seen)
		used = rc.confirmedReady(own, everywhere)
	}
	return withoutUnused(dl.Machines, seen, used, draining)
}

// knownEverywhereTimeout is the time after which a replica that is ready at its balancer counts as ready although
// another balancer does not know of it: the two may be cut off from each other.
const knownEverywhereTimeout = 30 * time.Second

// confirmedReady returns the replicas that are ready at their own balancers, and that all balancers know to be ready or
// have had knownEverywhereTimeout to learn of.
func (rc *Reconciler) confirmedReady(own, everywhere map[string]bool) map[string]bool {
	now, since, confirmed := rc.now(), map[string]time.Time{}, map[string]bool{}
	for id := range own {
		since[id] = now
		if before, known := rc.ownReadySince[id]; known {
			since[id] = before
		}
		if everywhere[id] || now.Sub(since[id]) >= knownEverywhereTimeout {
			confirmed[id] = true
		}
	}
	rc.ownReadySince = since
	return confirmed
}

// anyInReplacement reports whether any replica is being interrupted, replaced or used as a fallback.
func anyInReplacement(have []provision.Object, seen map[string]AgentReport) bool {
	for _, o := range have {
		if o.Kind == provision.KindReplica && (cloud.FallbackFor(o) != "" || cloud.ReplacesHandle(o) != "") {
			return true
		}
	}
	return len(interrupted(have, seen)) > 0
}

// withoutUnused returns the statuses of machines with one change: the phase of a ready replica that no balancer
// uses is PhaseStarting. Replicas that are draining or have a replacement keep their phase:
// balancers need not use them.
func withoutUnused(have []provision.Object, seen map[string]AgentReport, used, draining map[string]bool) map[string]AgentReport {
	out, beingReplaced := maps.Clone(seen), withReplacement(have)
	for _, o := range have {
		s := out[o.ID]
		if o.Kind == provision.KindReplica && s.Phase == agent.PhaseReady && !used[o.ID] && !draining[o.ID] && !beingReplaced[o.ID] {
			s.Phase = agent.PhaseStarting
			out[o.ID] = s
		}
	}
	return out
}

// readyAtBalancers returns the replicas that their own balancer reports ready, and those that every responding balancer
// reports ready, also as the replica of a peer. It asks only balancers whose agents responded.
func (dl *Delivery) readyAtBalancers(ctx context.Context, seen map[string]AgentReport) (own, everywhere map[string]bool) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	var mu sync.Mutex
	own, everywhere = map[string]bool{}, map[string]bool{}
	reports, responses := map[string]int{}, 0
	dl.eachBalancer(func(o provision.Object, b adminClient) {
		if seen[o.ID].Err != nil {
			return
		}
		workers, err := b.Workers(ctx)
		if err != nil {
			return // it confirms nothing
		}
		snapshot, err := b.Snapshot(ctx)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		responses++
		for _, w := range workers {
			if w.State == service.StateReady {
				own[w.ID] = true
			}
		}
		for _, region := range snapshot.Regions {
			for _, r := range region.Replicas {
				if r.State == service.StateReady {
					reports[r.ID]++
				}
			}
		}
	})
	for id, n := range reports {
		everywhere[id] = n == responses
	}
	return own, everywhere
}
