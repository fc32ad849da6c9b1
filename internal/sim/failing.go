package sim

import (
	"cmp"
	"slices"

	"skyserve/lbd/core"
)

// Values of event.arg in an evFault.
const (
	faultBegins = 0
	faultEnds   = 1
)

// addFaults schedules the scenario's faults. Probe faults need no event: each probe checks for them.
func (w *world) addFaults() {
	for i := range w.scenario.Faults {
		f := &w.scenario.Faults[i]
		if f.Kind.ofProbes() {
			continue
		}
		w.queue.pushEvent(event{at: f.From, kind: evFault, index: int32(i), arg: faultBegins})
		w.queue.pushEvent(event{at: w.scenario.end(f), kind: evFault, index: int32(i), arg: faultEnds})
	}
}

// fault starts or ends a fault. A fault of a balancer or a link that the layout does not have has no
// effect.
func (w *world) fault(f *Fault, ends bool) {
	switch f.Kind {
	case ReplicaDown:
		w.setReplicaDown(w.replicaNamed(f.Replica), ends)
	case ReplicaSlow:
		factor := f.Factor
		if ends {
			factor = 1
		}
		r := w.replicaNamed(f.Replica)
		w.advanceReplica(r)
		r.clock.slow(w.now, factor)
		w.advanceReplica(r)
	case LinkCut:
		for _, a := range w.balancersOf(f.Region) {
			for _, b := range w.balancersOf(f.Peer) {
				w.cutLink(a, b, !ends)
			}
		}
	case BalancerDown:
		for i, n := range w.balancersOf(f.Region) {
			switch {
			case f.Balancer != 0 && f.Balancer != i+1:
			case ends:
				w.restartBalancer(n)
			default:
				w.stopBalancer(n)
			}
		}
	}
}

// balancersOf returns the balancers in a region.
func (w *world) balancersOf(region string) (there []*node) {
	for _, n := range w.nodes {
		if w.scenario.Regions[n.region].Name == region {
			there = append(there, n)
		}
	}
	return there
}

// setReplicaDown stops a replica, or restarts it with an empty engine.
func (w *world) setReplicaDown(r *replica, ends bool) {
	if ends {
		r.down = false
		return
	}
	w.advanceReplica(r)
	for _, id := range sortedKeys(r.jobs) {
		j := r.jobs[id]
		w.pushEvent(w.networkDelay(r, j.leg), event{kind: evMessage, leg: j.leg, try: j.try, message: msgBroken})
	}
	here := r.engine.Load()
	r.lost += int64(here.Pending + here.Running)
	r.before = r.load()
	r.down, r.probedTokens, r.waking = true, 0, false
	r.wakeSeq++ // invalidates the wake-up events of the old engine
	clear(r.jobs)
	fresh, err := w.newEngine(r.engine.Profile())
	if err != nil {
		w.violate("replica %s: restarting: %v", r.id, err)
		return
	}
	w.forgetCache(r)
	r.engine, r.clock = fresh, clock{world: w.now, stretch: r.clock.stretch}
}

// isCut reports whether the link between two balancers is cut.
func (w *world) isCut(a, b *node) bool { return w.links[pairOf(a, b)] }

func pairOf(a, b *node) [2]int32 {
	return [2]int32{min(a.index, b.index), max(a.index, b.index)}
}

// cutLink cuts or restores the link between two balancers. Both ends see their connections break: the
// forwarding balancer retries, the other one cancels the forwarded requests.
func (w *world) cutLink(a, b *node, cut bool) {
	w.links[pairOf(a, b)] = cut
	if !cut {
		return
	}
	for _, end := range [][2]*node{{a, b}, {b, a}} {
		n, other := end[0], end[1]
		for _, id := range sortedKeys(n.legs) {
			l := n.legs[id]
			switch {
			case l == nil: // ended by an earlier iteration
			case l.up != nil && l.up.node == other:
				w.cancel(l)
			case l.down != nil && l.down.node == other:
				l.down.broken = true
				l.try++ // ignores messages in transit from there
				w.sendEvent(n, core.Event{Kind: core.EventFailed, ID: id, Outcome: &core.Outcome{
					Retryable: !l.started, Unreachable: true, Cause: "connection lost",
				}})
			}
		}
	}
}

// stopBalancer stops a balancer. Its connections break: clients and forwarding peers see the failure, and
// requests that it sent on are cancelled.
func (w *world) stopBalancer(n *node) {
	for _, id := range sortedKeys(n.legs) {
		l := n.legs[id]
		l.registered = false
		w.sendUp(l, msgRefused)
		if l.down != nil || l.replica != nil {
			w.abortDown(l)
		}
	}
	n.lost += int64(len(n.legs))
	n.before = n.counts(w.now)
	n.dead = true
	n.lives++
	clear(n.legs)
	if err := w.boot(n); err != nil {
		w.violate("balancer %s: restarting: %v", n.id, err)
	}
	w.scheduleAdoption(n)
}

// scheduleAdoption schedules the adoption of a stopped balancer's replicas.
func (w *world) scheduleAdoption(n *node) {
	w.pushEvent(adoptionDelay, event{kind: evAdopt, index: n.index, arg: int32(n.lives)})
}

// adopt transfers the replicas of a balancer to the nearest running one, if it is still down and has not restarted
// since its crash number life.
func (w *world) adopt(dead *node, life int32) {
	if !dead.dead || int32(dead.lives) != life {
		return
	}
	to := w.nearest(dead.region)
	if to == nil {
		return
	}
	for _, r := range w.replicas {
		if r.node == dead {
			w.assignReplica(r, to)
		}
	}
}

// restartBalancer restarts a balancer. It gets back its own replicas, and those of stopped balancers that were
// not adopted.
func (w *world) restartBalancer(n *node) {
	n.dead = false
	w.addPeers(n)
	for _, r := range w.replicas {
		switch {
		case r.home == n:
			w.assignReplica(r, n)
		case r.node.dead:
			w.scheduleAdoption(r.node)
		}
	}
}

// balancerFor returns the balancer for a client: its own one of those in its region or, while that is down, the
// nearest running one.
func (w *world) balancerFor(c *client) *node {
	homes := w.homes[c.region]
	home := homes[int(c.index)%len(homes)]
	if home.dead {
		if other := w.nearest(c.region); other != nil {
			return other
		}
	}
	return home
}

// nearest returns the running balancer nearest to a region, the first of several; nil if all are down.
func (w *world) nearest(region int) (found *node) {
	for _, n := range w.nodes {
		if !n.dead && (found == nil || w.delay[region][n.region] < w.delay[region][found.region]) {
			found = n
		}
	}
	return found
}

// sortedKeys returns the sorted keys of a map, for a deterministic order.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
