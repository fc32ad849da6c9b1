package deploy

import (
	"context"
	"errors"
	"fmt"
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
// other regions receive the state of the new replica only with the next heartbeat of its balancer.

// withConfirmedReadiness returns the statuses of machines with one change: a replica counts as starting until
// confirmReady confirms it. It queries the balancers only while a replica may be drained in favour of
// another. Replicas that balancers stop using are unchanged.
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
// another balancer does not report it: no connection between the two may be possible.
const knownEverywhereTimeout = 30 * time.Second

// confirmedReady returns the replicas that confirmReady confirms.
func (rc *Reconciler) confirmedReady(own, everywhere map[string]bool) (confirmed map[string]bool) {
	confirmed, rc.ownReadySince = confirmReady(rc.ownReadySince, rc.now(), own, everywhere)
	return confirmed
}

// confirmReady returns the replicas that all balancers report ready, and those that have been ready at their own
// balancer for knownEverywhereTimeout. own are the replicas that are ready at their own balancers, everywhere those
// that all balancers report ready. ownSince contains the time since which each replica has been in own, up to the last
// call; next is its value for the next call.
func confirmReady(ownSince map[string]time.Time, now time.Time, own, everywhere map[string]bool) (confirmed map[string]bool, next map[string]time.Time) {
	confirmed, next = map[string]bool{}, map[string]time.Time{}
	for id := range own {
		next[id] = now
		if before, known := ownSince[id]; known {
			next[id] = before
		}
		if everywhere[id] || now.Sub(next[id]) >= knownEverywhereTimeout {
			confirmed[id] = true
		}
	}
	return confirmed, next
}

// DeliverReplacement delivers the deployment of a replica that replaces another one, and then those of balancers. It
// returns once the controller would confirm that the replica is ready: see confirmReady. A balancer of an earlier version
// that rejects its deployment receives the replica from a controller.
func (dl *Delivery) DeliverReplacement(ctx context.Context, o provision.Object, deployments map[string]agent.Deployment) error {
	if err := dl.Deliver(ctx, map[string]agent.Deployment{o.ID: deployments[o.ID]}); err != nil {
		return err
	}
	var rejected []error
	for _, b := range dl.Machines {
		if d, wanted := deployments[b.ID]; wanted && b.Kind == provision.KindBalancer {
			rejected = append(rejected, dl.deliverAndWait(ctx, b, d))
		}
	}
	dl.Resume(ctx, []provision.Object{o})
	var since map[string]time.Time
	for {
		own, everywhere := dl.readyAtBalancers(ctx, nil)
		var confirmed map[string]bool
		if confirmed, since = confirmReady(since, time.Now(), own, everywhere); confirmed[o.ID] {
			return nil
		}
		if !sleep(ctx, drainPollInterval) {
			return errors.Join(fmt.Errorf("waiting until balancers report %s ready: %w", o.ID, context.Cause(ctx)), errors.Join(rejected...))
		}
	}
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

// readyAtBalancers returns the replicas that their own balancer reports ready, and those that every balancer reports
// ready, also as the replica of a peer. It omits balancers whose agents did not respond. If the agent responds and the
// balancer does not, no replica is in everywhere: the balancer may be slow, and reject requests for a replica that it does
// not know.
func (dl *Delivery) readyAtBalancers(ctx context.Context, seen map[string]AgentReport) (own, everywhere map[string]bool) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	var mu sync.Mutex
	own, everywhere = map[string]bool{}, map[string]bool{}
	reports, asked := map[string]int{}, 0
	dl.eachBalancer(func(o provision.Object, b adminClient) {
		if seen[o.ID].Err != nil {
			return
		}
		mu.Lock()
		asked++
		mu.Unlock()
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
		everywhere[id] = n == asked
	}
	return own, everywhere
}
