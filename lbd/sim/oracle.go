package sim

import (
	"fmt"
	"sort"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// Oracle is the name of a bound to measure policies against: cost, told the
// truth. It sees what each engine has in its cache, how long each answer will
// be, and each replica as it is at the instant of the decision, and it stands
// beside every client, so that the only way is that to the replica. It is no
// proof that nothing better exists: it is cost without its ignorance.
const Oracle = "oracle"

// Everywhere is the layout of the oracle: one balancer for all replicas that is
// in every region at once. No other policy has it.
const Everywhere Layout = "everywhere"

// oracle is cost over facts that are set right before each choice.
type oracle struct {
	*policy.Cost
	w *world
	n *node
}

// Name is oracle.
func (*oracle) Name() string { return Oracle }

// Choose sets the facts right and lets cost choose.
func (o *oracle) Choose(f *policy.Facts) policy.Choice {
	flight := o.n.legs[f.ID].flight
	f.MaxTokens = len(flight.answer)
	for i := range f.Candidates {
		c := &f.Candidates[i]
		o.see(c, o.w.replicaNamed(c.ID), flight, f.PromptBytes)
	}
	return o.Cost.Choose(f)
}

// see sets right what is thought of replica r.
func (o *oracle) see(c *policy.Candidate, r *replica, f *flight, promptBytes int) {
	l := r.engine.Load()
	c.RTT = 2 * o.w.delay[f.client.region][r.region]
	c.Match, c.Overtaken = o.cached(r, f, promptBytes), false
	c.Pending, c.Running = policy.Known(l.Pending), policy.Known(l.Running)
	c.KV = policy.Known(float64(l.KVActive) / float64(l.KVCapacity))
}

// cached is how many bytes of f's prompt the replica will have computed when f
// gets there: what its engine has in its cache, or what a request that is there
// or on its way has in common with f.
func (o *oracle) cached(r *replica, f *flight, promptBytes int) int {
	best := promptBytes * r.engine.CachedPrefix(f.prompt) / max(1, len(f.prompt))
	for l := range r.due { // the greatest: the order does not matter
		best = max(best, min(promptBytes, alike(f.key, l.flight.key)*prefix.BlockBytes))
	}
	return best
}

// alike is how many blocks two keys begin with alike. A hash stands for all
// before it, so those that are alike come first.
func alike(a, b prefix.Key) int {
	return sort.Search(min(len(a), len(b)), func(i int) bool { return a[i] != b[i] })
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
		return &oracle{Cost: policy.NewCost(), w: w, n: n}, nil
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
