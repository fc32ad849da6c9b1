package sim

import (
	"fmt"
	"time"

	"skyserve/lbd/cachemap"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// model is the model that a simulated service serves.
const model = "m"

// node is a balancer.
type node struct {
	index  int32
	region int
	id     string
	core   *core.Balancer
	legs   map[string]*leg // of the requests at it, by ID

	// cached are the caches of its replicas, as their engines publish them; nil without cache events.
	cached *cachemap.Map

	// Position in each peer's log, by index.
	prefixes map[int32]prefixProgress

	dead   bool
	lives  int         // number of crashes
	before core.Counts // counts of earlier lives
	lost   int64       // requests lost in crashes
}

// leg is a request's time at one balancer. A forwarded request has a leg at each of the two balancers.
type leg struct {
	request    *clientRequest
	node       *node
	registered bool  // in the node's legs
	up         *leg  // the leg at the forwarding balancer; nil if the request came from a client
	broken     bool  // the link to the forwarding balancer was cut
	upTry      int32 // attempt number of that leg
	hop        core.Hop
	age        time.Duration // of the session, as known to the forwarding balancer
	wait       time.Duration // maximum queue time granted by the forwarding balancer

	// State of the latest attempt; messages of earlier ones are ignored.
	try     int32
	started bool     // the first token passed through
	replica *replica // the replica that it was sent to; nil if it was forwarded
	job     uint64   // its number at the replica, once submitted there
	down    *leg     // the leg at the peer that it was forwarded to; nil if it was sent to a replica
}

// newNode creates the i-th balancer of a region. The first has the region's name.
func newNode(w *world, region, i int) (*node, error) {
	n := &node{index: int32(len(w.nodes)), region: region, id: w.scenario.Regions[region].Name, legs: map[string]*leg{}}
	if i > 0 {
		n.id = fmt.Sprintf("%s/%d", n.id, i+1)
	}
	return n, w.boot(n)
}

// boot creates an empty core for a balancer.
func (w *world) boot(n *node) error {
	p, err := w.policyFor(n)
	if err != nil {
		return err
	}
	cfg := core.DefaultConfig(p)
	cfg.Push, cfg.Forward = w.setup.Push, w.scenario.Forward
	cfg.Order, cfg.PeerQueueLimit, cfg.MaxWait = w.scenario.Order, w.scenario.PeerQueueLimit, w.scenario.MaxWait
	cfg.ProbeInterval, cfg.UnconfirmedLimit = w.scenario.Interval, w.scenario.Unconfirmed
	if n.cached = nil; w.scenario.CacheEvents {
		n.cached = cachemap.New(0)
	}
	n.core, n.prefixes = core.New(cfg), map[int32]prefixProgress{}
	return nil
}

// counts returns the counts over all lives of a balancer; requests lost in crashes count only in
// Arrived.
func (n *node) counts(now time.Duration) core.Counts {
	c, b := n.core.Snapshot(now).Counts, &n.before
	c.Arrived, c.Finished, c.Rejected = c.Arrived+b.Arrived, c.Finished+b.Finished, c.Rejected+b.Rejected
	c.Cancelled, c.Bounced = c.Cancelled+b.Cancelled, c.Bounced+b.Bounced
	c.ForwardedOut, c.ForwardedIn = c.ForwardedOut+b.ForwardedOut, c.ForwardedIn+b.ForwardedIn
	return c
}

// addPeers adds all other balancers as peers of a balancer.
func (w *world) addPeers(n *node) {
	for _, peer := range w.nodes {
		if peer != n {
			w.sendEvent(n, core.Event{Kind: core.EventPeerAdded, Peer: &core.PeerInfo{ID: peer.id, SameRegion: peer.region == n.region}})
		}
	}
}

// sendEvent sends a balancer an event and executes its actions. Every action takes effect after a network
// delay.
func (w *world) sendEvent(n *node, ev core.Event) {
	actions := n.core.Step(w.now, ev)
	for i := range actions {
		w.executeAction(n, &actions[i])
	}
}

func (w *world) executeAction(n *node, a *core.Action) {
	if a.Kind == core.ActionQueue {
		return
	}
	l := n.legs[a.ID]
	if l == nil {
		w.violate("balancer %s: %s of unknown request %s", n.id, a.Kind, a.ID)
		return
	}
	switch a.Kind {
	case core.ActionDispatch:
		w.dispatch(l, a)
	case core.ActionForward:
		w.forward(l, a)
	case core.ActionBounce:
		w.endLeg(l, msgBounced)
	case core.ActionReject:
		w.endLeg(l, msgFailed)
	case core.ActionAbort:
		w.abortDown(l)
	}
}

func (w *world) dispatch(l *leg, a *core.Action) {
	r := w.replicaNamed(a.Target)
	if r == nil || r.node != l.node {
		w.violate("balancer %s dispatches to replica %s, which it does not own", l.node.id, a.Target)
		return
	}
	l.try++
	l.replica, l.down, l.job = r, nil, 0
	w.tally.waited(w.warm, a.Decision.Waited)
	if w.setup.Layout == Everywhere {
		r.due[l] = true
	}
	w.pushEvent(w.networkDelay(r, l), event{kind: evSubmit, leg: l, try: l.try})
}

func (w *world) forward(l *leg, a *core.Action) {
	l.try++
	for _, peer := range w.nodes {
		if peer.id == a.Target {
			l.replica, l.down = nil, &leg{request: l.request, node: peer, up: l, upTry: l.try, hop: a.Hop, age: a.SessionAge, wait: a.MaxWait}
		}
	}
	w.tally.waited(w.warm, a.Decision.Waited)
	if w.warm {
		w.tally.forwarded++
	}
	way := w.delay[l.node.region][l.down.node.region]
	if w.isCut(l.node, l.down.node) {
		l.down.broken = true
		w.pushEvent(2*way, event{kind: evMessage, leg: l, try: l.try, message: msgRefused})
		return
	}
	w.pushEvent(way, event{kind: evArrive, leg: l.down})
}

// arrive delivers a request to a balancer. A stopped balancer refuses the connection.
func (w *world) arrive(l *leg) {
	f := l.request
	if l.broken {
		return
	}
	if l.node.dead {
		w.sendUp(l, msgRefused)
		return
	}
	l.node.legs[f.id], l.registered = l, true
	req := core.Request{
		ID: f.id, Model: model, Session: f.request.Session, Tier: f.request.Tier,
		Prompt: f.key, Streamed: true, PromptTokens: f.promptTokens(), MaxTokens: f.maxNew, Hop: l.hop, SessionAge: l.age, MaxWait: l.wait,
	}
	if l.up != nil {
		req.From = l.up.node.id
	}
	w.sendEvent(l.node, core.Event{Kind: core.EventArrived, Request: &req})
}

// end removes a leg from its balancer.
func (l *leg) end() {
	delete(l.node.legs, l.request.id)
	l.registered = false
}

// endLeg ends a request's leg with a message to its sender.
func (w *world) endLeg(l *leg, msg message) {
	l.end()
	w.sendUp(l, msg)
}

// sendUp sends a message towards the client.
func (w *world) sendUp(l *leg, msg message) {
	if l.up != nil {
		w.pushEvent(w.delay[l.node.region][l.up.node.region], event{kind: evMessage, leg: l.up, try: l.upTry, message: msg})
		return
	}
	f := l.request
	way := w.delay[w.location(l.node, f.client)][f.client.region]
	if f.client.singleRequest && (msg == msgFirstToken || msg == msgDone) && w.scenario.ClientTimeout == 0 {
		// No other event can intervene or follow, so none is needed.
		if at := w.now + way; at < w.scenario.Duration {
			w.deliver(f, msg, at)
		}
		return
	}
	w.pushEvent(way, event{kind: evClientMessage, request: f, message: msg})
}

// receive processes a message from a replica or a peer, unless it belongs to an abandoned attempt.
func (w *world) receive(l *leg, try int32, msg message) {
	f := l.request
	if !l.registered || l.try != try {
		return
	}
	switch msg {
	case msgFirstToken:
		l.started = true
		w.sendEvent(l.node, core.Event{Kind: core.EventFirstToken, ID: f.id})
		w.learnPrompt(l)
		w.sendUp(l, msgFirstToken)
	case msgDone:
		w.endLeg(l, msgDone)
		w.sendEvent(l.node, core.Event{Kind: core.EventFinished, ID: f.id, Outcome: &core.Outcome{
			PromptTokens: policy.Known(f.promptTokens()), CachedTokens: policy.Known(f.cached),
			OutputTokens: policy.Known(f.output), Key: f.wholeKey(w.setup.Seed),
		}})
		if l.up == nil {
			w.recycle(f)
		}
	case msgFailed:
		w.sendEvent(l.node, core.Event{Kind: core.EventFailed, ID: f.id, Outcome: &core.Outcome{
			Retryable: !l.started && !f.rejected, Cause: "refused",
		}})
	case msgBroken, msgRefused:
		w.sendEvent(l.node, core.Event{Kind: core.EventFailed, ID: f.id, Outcome: &core.Outcome{
			Retryable: !l.started, Unreachable: msg == msgRefused, Cause: "connection lost",
		}})
	case msgBounced:
		w.sendEvent(l.node, core.Event{Kind: core.EventBounced, ID: f.id})
	}
}

// cancel processes a client's cancellation; the request may have ended already.
func (w *world) cancel(l *leg) {
	if !l.registered {
		return
	}
	w.sendEvent(l.node, core.Event{Kind: core.EventCancelled, ID: l.request.id})
	l.end()
}

// abortDown forwards a cancellation.
func (w *world) abortDown(l *leg) {
	if l.down != nil {
		w.pushEvent(w.delay[l.node.region][l.down.node.region], event{kind: evCancel, leg: l.down})
		return
	}
	w.pushEvent(w.networkDelay(l.replica, l), event{kind: evAbort, leg: l})
}

// heartbeat sends a balancer's load to all reachable peers.
func (w *world) heartbeat(n *node) {
	if !n.dead {
		loads := n.core.ModelLoads(w.now)
		for _, peer := range w.nodes {
			if peer != n && !w.isCut(n, peer) {
				d := w.delay[n.region][peer.region]
				w.pushEvent(d, event{kind: evPeer, index: peer.index, arg: n.index, peer: &core.PeerReport{Age: d, RTT: 2 * d, Models: loads}})
			}
		}
	}
	w.pushEvent(w.scenario.Interval, event{kind: evHeartbeat, index: n.index})
}

func (w *world) peerReport(n, from *node, report *core.PeerReport) {
	if n.dead || w.isCut(n, from) {
		return
	}
	w.sendEvent(n, core.Event{Kind: core.EventPeerReport, Target: from.id, PeerReport: report})
}

func (w *world) tick(n *node) {
	if !n.dead {
		w.progress(n)
		w.sendEvent(n, core.Event{Kind: core.EventTick})
	}
	w.pushEvent(w.scenario.Interval, event{kind: evTick, index: n.index})
}

// oldest returns the longest current queue time at any balancer.
func (w *world) oldest() (wait time.Duration) {
	for _, n := range w.nodes {
		wait = max(wait, n.core.Snapshot(w.now).OldestWait)
	}
	return wait
}
