package sim

import (
	"fmt"
	"slices"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/engine"
	"skyserve/lbd/policy"
)

// Oracle is the name of a bound to measure policies against: cost, told the
// truth. It sees what each engine has in its cache, what is left of every
// answer, and each replica as it is at the instant of the decision, and it
// stands beside every client, so that the only way is that to the replica. It
// is no proof that nothing better exists: it is cost without its ignorance.
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
	c.Match, c.Overtaken = promptBytes*r.engine.CachedPrefix(f.prompt)/max(1, len(f.prompt)), false
	c.Pending, c.Running = policy.Known(l.Pending), policy.Known(l.Running)
	c.KV = policy.Known(float64(l.KVActive) / float64(l.KVCapacity))
	if n := len(r.jobs); n > 0 {
		// The wait for the place of the k-th request to end is what the residence
		// stands for.
		ahead := min(c.Held+l.Pending, n-1)
		c.Residence = max(time.Millisecond, o.w.ends(r)[ahead]*time.Duration(n)/time.Duration(ahead+1))
	}
}

// ends is in how long each request at r will have its answer, the first to end
// first, if nothing else came. It is worked out once for all that is decided at
// one event.
func (w *world) ends(r *replica) []time.Duration {
	if r.endsOf == w.events && len(r.ends) == len(r.jobs) {
		return r.ends
	}
	step := stepTime(r.engine.Profile(), r.engine.Load())
	r.endsOf, r.ends = w.events, r.ends[:0]
	for id, j := range r.jobs { // sorted below
		done, _ := r.engine.Generated(id)
		r.ends = append(r.ends, time.Duration(len(j.leg.flight.answer)-done)*step)
	}
	slices.Sort(r.ends)
	return r.ends
}

// stepTime is about how long a decode step takes under a load.
func stepTime(p engine.Profile, l engine.Load) time.Duration {
	return p.DecodeBase + time.Duration(l.Running)*p.DecodePerRequest + time.Duration(l.KVActive)*p.DecodePerKVToken
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
	if l.Pending == r.revealed.Pending && l.Running == r.revealed.Running {
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
