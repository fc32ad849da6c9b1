package sim

import (
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// model is the one model that a simulated service serves.
const model = "m"

// node is a balancer.
type node struct {
	index  int32
	region int
	id     string
	core   *core.Balancer
	legs   map[string]*leg // requests here, by id
}

// leg is a request's stay at one balancer. A forwarded request has a leg at
// each of the two.
type leg struct {
	flight *flight
	node   *node
	up     *leg  // the leg at the balancer that forwarded it; nil when its client asked here
	upTry  int32 // which try of that leg this is
	hop    core.Hop

	// Of its latest try: what came of an earlier one counts no more.
	try     int32
	started bool     // the first token has passed here
	replica *replica // it went to this replica ...
	job     uint64   // ... under this number, once it was submitted,
	down    *leg     // or to a peer
}

func newNode(w *world, index, region int, p policy.Policy) *node {
	cfg := core.DefaultConfig(p)
	cfg.Push, cfg.Forward = w.setup.Push, w.scenario.Forward
	cfg.Tau, cfg.MaxWait = w.scenario.Tau, w.scenario.MaxWait
	cfg.ProbeInterval = w.scenario.Interval
	return &node{
		index: int32(index), region: region, id: w.scenario.Regions[region].Name,
		core: core.New(cfg), legs: map[string]*leg{},
	}
}

// meet introduces all others to a balancer.
func (w *world) meet(n *node) {
	for _, peer := range w.nodes {
		if peer != n {
			w.tell(n, core.Event{Kind: core.EventPeerAdded, Peer: &core.PeerInfo{ID: peer.id}})
		}
	}
}

// tell hands a balancer an event and carries out what it decides. Nothing that
// it decides happens at once: it all goes over a wire.
func (w *world) tell(n *node, ev core.Event) {
	actions := n.core.Step(w.now, ev)
	for i := range actions {
		w.carryOut(n, &actions[i])
	}
}

func (w *world) carryOut(n *node, a *core.Action) {
	if a.Kind == core.ActionHold {
		return
	}
	l := n.legs[a.ID]
	if l == nil {
		w.broke("balancer %s: %s of request %s, which is not there", n.id, a.Kind, a.ID)
		return
	}
	switch a.Kind {
	case core.ActionDispatch:
		w.dispatch(l, a)
	case core.ActionForward:
		w.forward(l, a)
	case core.ActionBounce:
		w.leave(l, saidBounced)
	case core.ActionReject:
		w.leave(l, saidFailed)
	case core.ActionAbort:
		w.abortDown(l)
	}
}

func (w *world) dispatch(l *leg, a *core.Action) {
	r := w.replicaNamed(a.Target)
	if r == nil || r.node != l.node {
		w.broke("balancer %s sends to replica %s, which is not its own", l.node.id, a.Target)
		return
	}
	l.try++
	l.replica, l.down, l.job = r, nil, 0
	w.tally.waited(w.warm, a.Decision.Queued)
	w.push(w.delay[l.node.region][r.region], event{kind: evSubmit, leg: l, try: l.try})
}

func (w *world) forward(l *leg, a *core.Action) {
	l.try++
	for _, peer := range w.nodes {
		if peer.id == a.Target {
			l.replica, l.down = nil, &leg{flight: l.flight, node: peer, up: l, upTry: l.try, hop: a.Hop}
		}
	}
	w.tally.waited(w.warm, a.Decision.Queued)
	if w.warm {
		w.tally.forwarded++
	}
	w.push(w.delay[l.node.region][l.down.node.region], event{kind: evArrive, leg: l.down})
}

// arrive takes a request in.
func (w *world) arrive(l *leg) {
	f := l.flight
	l.node.legs[f.id] = l
	req := core.Request{
		ID: f.id, Model: model, Session: f.request.Session, Tier: f.request.Tier,
		Prompt: f.key, PromptTokens: len(f.prompt), MaxTokens: f.maxNew, Hop: l.hop,
	}
	if l.up != nil {
		req.From = l.up.node.id
	}
	w.tell(l.node, core.Event{Kind: core.EventArrived, Request: &req})
}

// leave ends a request's stay with a word to whoever sent it.
func (w *world) leave(l *leg, said word) {
	delete(l.node.legs, l.flight.id)
	w.sayUp(l, said)
}

// sayUp passes a word on towards the client.
func (w *world) sayUp(l *leg, said word) {
	from := l.node.region
	if l.up == nil {
		w.push(w.delay[from][l.flight.client.region], event{kind: evAnswer, flight: l.flight, word: said})
		return
	}
	w.push(w.delay[from][l.up.node.region], event{kind: evUp, leg: l.up, try: l.upTry, word: said})
}

// hear takes news from a replica or a peer, unless they are of a try that was
// given up.
func (w *world) hear(l *leg, try int32, said word) {
	f := l.flight
	if l.node.legs[f.id] != l || l.try != try {
		return
	}
	switch said {
	case saidFirst:
		l.started = true
		w.tell(l.node, core.Event{Kind: core.EventFirstToken, ID: f.id})
		w.sayUp(l, saidFirst)
	case saidDone:
		w.leave(l, saidDone)
		w.tell(l.node, core.Event{Kind: core.EventFinished, ID: f.id, Outcome: &core.Outcome{
			PromptTokens: policy.Known(len(f.prompt)), CachedTokens: policy.Known(f.cached),
			OutputTokens: policy.Known(f.output), Key: f.wholeKey(w.setup.Seed),
		}})
	case saidFailed:
		w.tell(l.node, core.Event{Kind: core.EventFailed, ID: f.id, Outcome: &core.Outcome{
			Retryable: !l.started && !f.refused, Cause: "refused",
		}})
	case saidBounced:
		w.tell(l.node, core.Event{Kind: core.EventBounced, ID: f.id})
	}
}

// cancel takes a client's cancellation in; the request may have ended already.
func (w *world) cancel(l *leg) {
	if l.node.legs[l.flight.id] != l {
		return
	}
	w.tell(l.node, core.Event{Kind: core.EventCancelled, ID: l.flight.id})
	delete(l.node.legs, l.flight.id)
}

// abortDown sends a cancellation after a request.
func (w *world) abortDown(l *leg) {
	if l.down != nil {
		w.push(w.delay[l.node.region][l.down.node.region], event{kind: evCancel, leg: l.down})
		return
	}
	w.push(w.delay[l.node.region][l.replica.region], event{kind: evAbort, leg: l})
}

// heartbeat tells a balancer's load to all others.
func (w *world) heartbeat(n *node) {
	loads := n.core.Load(w.now)
	for _, peer := range w.nodes {
		if peer != n {
			d := w.delay[n.region][peer.region]
			w.push(d, event{kind: evPeer, index: peer.index, from: n.index, peer: &core.PeerReport{Age: d, RTT: 2 * d, Models: loads}})
		}
	}
	w.push(w.scenario.Interval, event{kind: evHeartbeat, index: n.index})
}

func (w *world) peerReport(n, from *node, report *core.PeerReport) {
	w.tell(n, core.Event{Kind: core.EventPeerReport, Target: from.id, PeerReport: report})
}

func (w *world) tick(n *node) {
	w.progress(n)
	w.tell(n, core.Event{Kind: core.EventTick})
	w.push(w.scenario.Interval, event{kind: evTick, index: n.index})
}

// oldest is the longest time that a request now held by any balancer waits.
func (w *world) oldest() (wait time.Duration) {
	for _, n := range w.nodes {
		wait = max(wait, n.core.View(w.now).OldestWait)
	}
	return wait
}
