package sim

import (
	"fmt"
	"math"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// Oracle is the name of a reference for policies: a policy with perfect information. It is greedy, so another
// policy can be better. Its inputs are
//   - each engine at the time of the decision: its cache, its free
//     memory, its running and pending requests, and its profile, including
//     slow-downs; nothing is learned or outdated;
//   - every request on its way to an engine, and its effect on that engine's
//     cache;
//   - the length of every response, and so when every request finishes;
//   - which replicas are down.
//
// It has no distance to any client: the only delay is the one to the replica. It has no
// information about future requests, decides for one request after the other, in the order
// of the core's queue, and does not search: it does not prove that nothing better exists.
const Oracle = "oracle"

// Everywhere is the layout of the oracle: one balancer for all replicas that is in every region at
// once. No other policy supports it.
const Everywhere Layout = "everywhere"

// oracle sends a request where its cost in time is lowest, its own plus that of all others, by the
// engines' own formulas (oracle_cost.go) over their true state (oracle_observation.go).
type oracle struct {
	w *world
	n *node

	states  []*replicaState // by replica
	event   int64           // the event for which states were updated
	waiting map[*clientRequest]*waitingRequest
	weights *oracleWeights
}

func newOracle(w *world, n *node) *oracle {
	return &oracle{w: w, n: n, event: -1, waiting: map[*clientRequest]*waitingRequest{}}
}

// Name returns Oracle.
func (*oracle) Name() string { return Oracle }

// Traits reports that it may hold requests. It reads the replicas' caches directly.
func (*oracle) Traits() policy.Traits { return policy.Traits{Peers: true, Holds: true} }

// Choose returns the replica with the lowest cost. It holds the request while it would only be pending
// there, or while a prefill step for it alone does not pay.
func (o *oracle) Choose(f *policy.Facts) policy.Choice {
	o.refresh()
	l := o.n.legs[f.ID]
	q := o.waitingRequestOf(l)
	q.queued = float64(max(0, f.Queued-1)) / float64(max(1, len(f.Candidates)))
	best, lowest := policy.Wait, estimate{cost: math.Inf(1)}
	for i := range f.Candidates {
		c := &f.Candidates[i]
		s := o.stateOf(i, c.ID)
		if s == nil || !c.Live || s.r.down || (!c.Available && f.Waited > maxOracleHold) {
			continue
		}
		e := o.estimate(q, s, c.Held)
		c.Score, c.MatchBytes = policy.Known(e.cost), f.PromptBytes*e.cached/max(1, q.tokens)
		if e.cost < lowest.cost-1e-9 {
			best, lowest = i, e
		}
	}
	if best == policy.Wait {
		o.leaveGate(q)
		return policy.Choice{Index: policy.Wait, Reason: policy.ReasonNoneAvailable}
	}
	c := &f.Candidates[best]
	s := o.stateOf(best, c.ID)
	hold := f.Waited <= maxOracleHold && o.hold(q, s, lowest.wait)
	if !hold {
		o.sendRequest(l, q, s, lowest.cached)
	}
	return policy.Choice{Index: best, Hold: hold, Reason: policy.ReasonLeastCost}
}

// hold reports whether to keep a request for a replica rather than send it.
func (o *oracle) hold(q *waitingRequest, s *replicaState, wait float64) bool {
	switch {
	case s.presentRequests() == 0:
		o.leaveGate(q)
		return false
	case wait > o.networkSeconds(q, s)+o.weights.ahead*s.stepSeconds():
		o.leaveGate(q)
		return true
	case s.willPrefill():
		o.leaveGate(q)
		return false
	}
	return !o.gateOpens(q, s)
}

// gateOpens reports whether a prefill step pays. Each one stops the whole batch for its fixed part,
// however little it computes, so requests wait for each other until their total wait equals the batch's
// loss. The fuller the memory, the shorter the wait, since waiting leaves memory unused.
func (o *oracle) gateOpens(q *waitingRequest, s *replicaState) bool {
	if q.gate != s {
		since := o.w.now
		if q.gate != nil {
			since = q.since
		}
		o.leaveGate(q)
		q.gate, q.since = s, since
		s.gateWaiters++
		s.gateSince += since
	}
	waited := (time.Duration(s.gateWaiters)*o.w.now - s.gateSince).Seconds()
	return waited >= o.weights.sharing*(1-s.memoryScarcity())*s.prefillBase*float64(len(s.remaining))
}

// leaveGate removes a request from the gate it waits at.
func (o *oracle) leaveGate(q *waitingRequest) {
	if q.gate != nil {
		q.gate.gateWaiters--
		q.gate.gateSince -= q.since
		q.gate, q.since = nil, 0
	}
}

// sendRequest updates a replica's state for a request sent to it.
func (o *oracle) sendRequest(l *leg, q *waitingRequest, s *replicaState, cached int) {
	o.leaveGate(q)
	delete(o.waiting, l.request)
	s.addSent(l, q.tokens-cached)
}

// location returns the region that a balancer acts from for a client: its own, or the client's in layout
// Everywhere.
func (w *world) location(n *node, c *client) int {
	if w.setup.Layout == Everywhere {
		return c.region
	}
	return n.region
}

// networkDelay returns the delay from replica r to the balancer of a leg, or back.
func (w *world) networkDelay(r *replica, l *leg) time.Duration {
	return w.delay[r.region][w.location(l.node, l.request.client)]
}

// policyFor creates the policy of a balancer.
func (w *world) policyFor(n *node) (policy.Policy, error) {
	if w.setup.Policy == Oracle {
		return newOracle(w, n), nil
	}
	return policy.New(w.setup.Policy)
}

// reportToOracle reports the current state of a replica's engine to the oracle.
func (w *world) reportToOracle(r *replica) {
	l := r.engine.Load()
	if l.Pending == r.revealed.Pending {
		return
	}
	r.revealed = l
	w.pushEvent(0, event{kind: evReport, index: r.index, probe: &probeResult{to: r.node, read: w.now, report: core.ProbeReport{
		Ready: true, Pending: policy.Known(l.Pending), Running: policy.Known(l.Running),
		KV: policy.Known(float64(l.KVActive) / float64(l.KVCapacity)),
	}}})
}

// checkSetup validates a setup: the oracle requires its layout, and no other policy supports it.
func (s *Setup) checkSetup() error {
	if (s.Policy == Oracle) != (s.Layout == Everywhere) {
		return fmt.Errorf("policy %s in layout %s: policy %s requires layout %s, which no other policy supports", s.Policy, s.Layout, Oracle, Everywhere)
	}
	if s.Layout == Everywhere {
		return nil
	}
	_, err := ParseLayout(string(s.Layout))
	return err
}
