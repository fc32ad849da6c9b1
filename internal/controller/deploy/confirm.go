package deploy

import (
	"context"
	"maps"
	"sync"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// An agent reports its replica ready up to a second before a balancer does, which must probe the
// engine first. If another replica were drained in that second, its balancer might have none.

// withConfirmedReadiness returns the statuses of machines with one change: a replica counts as starting until a
// balancer reports it ready. It asks the balancers only while a replica may be drained in favour of
// another. Replicas that balancers stop using are left as they are.
func (rc *Reconciler) withConfirmedReadiness(ctx context.Context, dl *Delivery, draining map[string]bool, seen map[string]AgentReport) map[string]AgentReport {
	if !anyInReplacement(dl.Machines, seen) {
		return seen
	}
	var used map[string]bool
	if rc.usedReplicas != nil {
		used = rc.usedReplicas()
	} else {
		used = dl.readyAtBalancers(ctx, seen)
	}
	return withoutUnused(dl.Machines, seen, used, draining)
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

// readyAtBalancers returns the replicas that a balancer reports ready. It asks only balancers whose
// agents responded.
func (dl *Delivery) readyAtBalancers(ctx context.Context, seen map[string]AgentReport) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	var mu sync.Mutex
	ready := map[string]bool{}
	dl.eachBalancer(func(o provision.Object, b adminClient) {
		if seen[o.ID].Err != nil {
			return
		}
		workers, err := b.Workers(ctx)
		if err != nil {
			return // it confirms nothing
		}
		mu.Lock()
		defer mu.Unlock()
		for _, w := range workers {
			if w.State == service.StateReady {
				ready[w.ID] = true
			}
		}
	})
	return ready
}
