package sim

import (
	"cmp"
	"slices"

	"skyserve/lbd/core"
)

// What event.from says of an evFault.
const (
	faultBegins = 0
	faultEnds   = 1
)

// addFaults schedules what goes wrong. Faults of probes need no event: each
// probe looks for them.
func (w *world) addFaults() {
	for i := range w.scenario.Faults {
		f := &w.scenario.Faults[i]
		if f.Kind == ProbeLoss || f.Kind == ReportDelay {
			continue
		}
		w.queue.push(event{at: f.From, kind: evFault, index: int32(i), from: faultBegins})
		w.queue.push(event{at: w.scenario.end(f), kind: evFault, index: int32(i), from: faultEnds})
	}
}

// fault begins or ends a fault. One of a balancer or a link that the layout does
// not have changes nothing.
func (w *world) fault(f *Fault, ends bool) {
	switch f.Kind {
	case ReplicaDown:
		w.fell(w.replicaNamed(f.Replica), ends)
	case ReplicaSlow:
		factor := f.Factor
		if ends {
			factor = 1
		}
		r := w.replicaNamed(f.Replica)
		w.settle(r)
		r.clock.slow(w.now, factor)
		w.settle(r)
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
				w.revive(n)
			default:
				w.kill(n)
			}
		}
	}
}

// balancersOf are the balancers that stand in a region.
func (w *world) balancersOf(region string) (there []*node) {
	for _, n := range w.nodes {
		if w.scenario.Regions[n.region].Name == region {
			there = append(there, n)
		}
	}
	return there
}

// fell ends a replica's life, or begins its next one: with an empty engine.
func (w *world) fell(r *replica, ends bool) {
	if ends {
		r.down = false
		return
	}
	w.settle(r)
	for _, id := range sortedKeys(r.jobs) {
		j := r.jobs[id]
		w.push(w.way(r, j.leg), event{kind: evUp, leg: j.leg, try: j.try, word: saidBroken})
	}
	here := r.engine.Load()
	r.lost += int64(here.Pending + here.Running)
	r.before = r.load()
	r.down, r.told, r.waking = true, 0, false
	r.turn++ // whatever was to wake the old engine comes to nothing
	clear(r.jobs)
	fresh, err := w.newEngine(r.engine.Profile())
	if err != nil {
		w.broke("replica %s: starting again: %v", r.id, err)
		return
	}
	r.engine, r.clock = fresh, clock{world: w.now, stretch: r.clock.stretch}
}

// cut says whether two balancers cannot reach each other.
func (w *world) cut(a, b *node) bool { return w.links[pairOf(a, b)] }

func pairOf(a, b *node) [2]int32 {
	return [2]int32{min(a.index, b.index), max(a.index, b.index)}
}

// cutLink parts two balancers, or lets them reach each other again. Both ends
// see their connections break: the one that forwarded a request tries elsewhere,
// the other one takes its asker for gone.
func (w *world) cutLink(a, b *node, parts bool) {
	w.links[pairOf(a, b)] = parts
	if !parts {
		return
	}
	for _, end := range [][2]*node{{a, b}, {b, a}} {
		n, other := end[0], end[1]
		for _, id := range sortedKeys(n.legs) {
			l := n.legs[id]
			switch {
			case l == nil: // ended by what another one's end set free
			case l.up != nil && l.up.node == other:
				w.cancel(l)
			case l.down != nil && l.down.node == other:
				l.down.broken = true
				l.try++ // nothing that is under way from there counts
				w.tell(n, core.Event{Kind: core.EventFailed, ID: id, Outcome: &core.Outcome{
					Retryable: !l.started, Unreachable: true, Cause: "connection lost",
				}})
			}
		}
	}
}

// kill ends a balancer's life. Its connections break: its clients and the peers
// that forwarded to it hear of it, and what it sent on is given up.
func (w *world) kill(n *node) {
	for _, id := range sortedKeys(n.legs) {
		l := n.legs[id]
		l.here = false
		w.sayUp(l, saidRefused)
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
		w.broke("balancer %s: starting again: %v", n.id, err)
	}
	w.push(adoption, event{kind: evAdopt, index: n.index})
}

// adopt gives the replicas of a balancer that is still dead to the nearest one
// that lives.
func (w *world) adopt(dead *node) {
	if !dead.dead {
		return
	}
	to := w.nearest(dead.region)
	if to == nil {
		return
	}
	for _, r := range w.replicas {
		if r.node == dead {
			w.give(r, to)
		}
	}
}

// revive begins a balancer's next life: its replicas come home, and those that
// found nobody to adopt them come to it.
func (w *world) revive(n *node) {
	n.dead = false
	w.meet(n)
	for _, r := range w.replicas {
		switch {
		case r.home == n:
			w.give(r, n)
		case r.node.dead:
			w.push(adoption, event{kind: evAdopt, index: r.node.index})
		}
	}
}

// ask is the balancer that a client asks: its own of those in its region, while
// that is dead the nearest one that lives.
func (w *world) ask(c *client) *node {
	homes := w.homes[c.region]
	home := homes[int(c.index)%len(homes)]
	if home.dead {
		if other := w.nearest(c.region); other != nil {
			return other
		}
	}
	return home
}

// nearest is the living balancer that is nearest to a region, the first of
// several; nil when all are dead.
func (w *world) nearest(region int) (found *node) {
	for _, n := range w.nodes {
		if !n.dead && (found == nil || w.delay[region][n.region] < w.delay[region][found.region]) {
			found = n
		}
	}
	return found
}

// sortedKeys lists the keys of a map whose order must not matter.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
