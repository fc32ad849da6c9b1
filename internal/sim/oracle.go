package sim

import (
	"fmt"
	"math"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// Oracle is the name of a bound to measure policies against: a policy that is
// told the truth. It knows
//   - each engine at the instant of the decision: what its cache holds, its free
//     memory, who runs and who is pending there, and its profile, slowed down
//     where it is; nothing is learned and nothing is old;
//   - every request that is on its way to an engine, and what that one's cache
//     will hold because of it;
//   - how long every answer will be, so how long everybody there stays;
//   - which replicas are down.
//
// It stands beside every client, so that the only way is that to the replica. It
// does not know what will be asked next, it chooses for one request after the
// other, in the order of the core's queue, and does not search: it is no proof
// that nothing better exists.
const Oracle = "oracle"

// Everywhere is the layout of the oracle: one balancer for all replicas that is
// in every region at once. No other policy has it.
const Everywhere Layout = "everywhere"

// oracle sends a request where it costs the least time, its own and that of all
// others, by the engines' own formulae (oracle_cost.go) over the truth about
// them (oracle_sight.go).
type oracle struct {
	w *world
	n *node

	sights  []*sight // by replica
	event   int64    // the one that the sights are of
	waiting map[*flight]*outlook
	manner  *manner
}

func newOracle(w *world, n *node) *oracle {
	return &oracle{w: w, n: n, event: -1, waiting: map[*flight]*outlook{}}
}

// Name is oracle.
func (*oracle) Name() string { return Oracle }

// Traits says that it may hold requests. What replicas hold of a prompt it sees
// by itself.
func (*oracle) Traits() policy.Traits { return policy.Traits{Regions: true, Holds: true} }

// Choose takes the replica of the least cost. The request is held while it would
// only be pending there, or while a prefill step for it alone does not pay.
func (o *oracle) Choose(f *policy.Facts) policy.Choice {
	o.look()
	l := o.n.legs[f.ID]
	q := o.outlook(l)
	q.queued = float64(max(0, f.Queued-1)) / float64(max(1, len(f.Candidates)))
	best, least := policy.Wait, estimate{cost: math.Inf(1)}
	for i := range f.Candidates {
		c := &f.Candidates[i]
		s := o.sightOf(i, c.ID)
		if s == nil || !c.Live || s.r.down || (!c.Available && f.Waited > oraclePatience) {
			continue
		}
		e := o.estimate(q, s, c.Held)
		c.Score, c.Match = policy.Known(e.cost), f.PromptBytes*e.cached/max(1, q.tokens)
		if e.cost < least.cost-1e-9 {
			best, least = i, e
		}
	}
	if best == policy.Wait {
		o.leaveDoor(q)
		return policy.Choice{Index: policy.Wait, Reason: policy.ReasonNoneAvailable}
	}
	c := &f.Candidates[best]
	s := o.sightOf(best, c.ID)
	hold := f.Waited <= oraclePatience && o.hold(q, s, least.wait)
	if !hold {
		o.send(l, q, s, least.cached)
	}
	return policy.Choice{Index: best, Hold: hold, Reason: policy.ReasonCheapest}
}

// hold says whether a request is kept for a replica rather than sent to it.
func (o *oracle) hold(q *outlook, s *sight, wait float64) bool {
	switch {
	case s.present() == 0:
		o.leaveDoor(q)
		return false
	case wait > o.way(q, s)+o.manner.ahead*s.step():
		o.leaveDoor(q)
		return true
	case s.prefillComes():
		o.leaveDoor(q)
		return false
	}
	return !o.doorOpens(q, s)
}

// doorOpens says whether a prefill step pays. Each one stops the whole batch for
// its fixed part, however little it computes, so requests wait at the door for
// each other until what they waited in all is what the batch will lose. The
// fuller the memory, the less they wait: it is room that nobody uses.
func (o *oracle) doorOpens(q *outlook, s *sight) bool {
	if q.door != s {
		since := o.w.now
		if q.door != nil {
			since = q.since
		}
		o.leaveDoor(q)
		q.door, q.since = s, since
		s.atDoor++
		s.sinces += since
	}
	waited := (time.Duration(s.atDoor)*o.w.now - s.sinces).Seconds()
	return waited >= o.manner.company*(1-s.pressure())*s.prefillBase*float64(len(s.stays))
}

// leaveDoor forgets that a request waits at a door.
func (o *oracle) leaveDoor(q *outlook) {
	if q.door != nil {
		q.door.atDoor--
		q.door.sinces -= q.since
		q.door, q.since = nil, 0
	}
}

// send notes what a request that leaves for a replica means for those after it.
func (o *oracle) send(l *leg, q *outlook, s *sight, cached int) {
	o.leaveDoor(q)
	delete(o.waiting, l.flight)
	s.leaves(l, q.tokens-cached)
}

// seat is the region that a balancer acts from for a client: its own, or the
// client's where it is everywhere.
func (w *world) seat(n *node, c *client) int {
	if w.setup.Layout == Everywhere {
		return c.region
	}
	return n.region
}

// way is how long it takes from replica r to the balancer where a request's leg
// is, or back.
func (w *world) way(r *replica, l *leg) time.Duration {
	return w.delay[r.region][w.seat(l.node, l.flight.client)]
}

// policyFor makes the policy of a balancer.
func (w *world) policyFor(n *node) (policy.Policy, error) {
	if w.setup.Policy == Oracle {
		return newOracle(w, n), nil
	}
	return policy.New(w.setup.Policy)
}

// reveal tells the oracle what a replica's engine is like now.
func (w *world) reveal(r *replica) {
	l := r.engine.Load()
	if l.Pending == r.revealed.Pending {
		return
	}
	r.revealed = l
	w.push(0, event{kind: evReport, index: r.index, news: &news{to: r.node, read: w.now, report: core.Report{
		Ready: true, Pending: policy.Known(l.Pending), Running: policy.Known(l.Running),
		KV: policy.Known(float64(l.KVActive) / float64(l.KVCapacity)),
	}}})
}

// check says what is wrong with a setup: the oracle and its layout go together.
func (s *Setup) check() error {
	if (s.Policy == Oracle) != (s.Layout == Everywhere) {
		return fmt.Errorf("policy %s in layout %s: the policy %s has the layout %s, and no other has", s.Policy, s.Layout, Oracle, Everywhere)
	}
	if s.Layout == Everywhere {
		return nil
	}
	_, err := ParseLayout(string(s.Layout))
	return err
}
