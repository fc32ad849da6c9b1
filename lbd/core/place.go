package core

import (
	"time"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// drainAll tries to place the requests of every model.
func (b *Balancer) drainAll(now time.Duration) {
	for _, q := range b.queues {
		b.drain(now, q)
	}
}

func (b *Balancer) drainFor(now time.Duration, r *request) { b.drain(now, b.queue(r.Model)) }

// drain places requests from the front of the queue. The first that cannot go
// anywhere stops it (first come, first served), unless only its own
// restrictions keep it back: others need not wait for those.
func (b *Balancer) drain(now time.Duration, q *queue) {
	for i := q.head; i < len(q.items); {
		local, remote := b.anyAvailable(now, q)
		if !local && !remote {
			return
		}
		r := q.items[i]
		if b.place(now, q, i) {
			i = max(i, q.head)
			continue
		}
		if r.Hop == HopNone && len(r.avoid) == 0 {
			return
		}
		i++
	}
}

// anyAvailable says whether any replica, or any peer, would take a request of
// the queue's model.
func (b *Balancer) anyAvailable(now time.Duration, q *queue) (local, remote bool) {
	for _, t := range b.replicas {
		if t.model == q.model && t.replicaAvailable(now, &b.cfg) {
			return true, false
		}
	}
	if !b.cfg.Forward {
		return false, false
	}
	for _, t := range b.peers {
		if t.peerAvailable(now, &b.cfg, t.load(q.model), q.len()) {
			return false, true
		}
	}
	return false, false
}

// place lets the policy choose for the request at position i and carries the
// choice out. It reports whether the request left the queue.
func (b *Balancer) place(now time.Duration, q *queue, i int) bool {
	r := q.items[i]
	b.startOver(now, r)
	b.gather(now, q, r)
	choice := b.cfg.Policy.Choose(&policy.Facts{
		Now: now, Model: r.Model, Session: r.Session, PromptBytes: r.Prompt.Bytes(), Candidates: b.candidates,
	})
	if choice.Index == policy.Wait {
		return false
	}
	q.removeAt(i)
	b.queued--
	b.send(now, r, b.targets[choice.Index], b.explain(now, r, choice))
	return true
}

// gather fills candidates, and targets beside them, with everything that may
// serve r: replicas, then peers.
func (b *Balancer) gather(now time.Duration, q *queue, r *request) {
	b.candidates, b.targets = b.candidates[:0], b.targets[:0]
	anyLocal := false
	for _, t := range b.replicas {
		if t.model != r.Model || r.avoids(t.id) {
			continue
		}
		available := t.replicaAvailable(now, &b.cfg)
		anyLocal = anyLocal || available
		b.candidate(now, t, available, 0)
	}
	b.match(b.replicaTree, r, 0)
	if anyLocal && !b.regional {
		return
	}
	first := len(b.candidates)
	for _, t := range b.peers {
		l := t.load(r.Model)
		if l == nil || r.avoids(t.id) || !b.mayForward(r, t) {
			continue
		}
		b.candidate(now, t, t.peerAvailable(now, &b.cfg, l, q.len()), t.queuedAt(l))
		b.candidates[len(b.candidates)-1].KV = l.KV
	}
	b.match(b.peerTree, r, first)
}

func (b *Balancer) candidate(now time.Duration, t *target, available bool, queued int) {
	b.targets = append(b.targets, t)
	c := policy.Candidate{
		ID: t.id, Peer: t.peer, Live: !t.draining && t.live(now, &b.cfg), Available: available,
		Outstanding: t.outstanding, Unconfirmed: len(t.unconfirmed),
		Queued: queued, Remaining: t.work.remaining(), Age: t.age(now),
	}
	if t.peer {
		c.RTT = t.rtt
	} else {
		c.Pending, c.Running, c.KV = t.pending, t.running, t.kv
	}
	b.candidates = append(b.candidates, c)
}

// match fills in what the candidates from first on hold: of r's prompt, and in all.
func (b *Balancer) match(tree *prefix.Tree, r *request, first int) {
	if !b.cfg.Policy.UsesPrefix() || first == len(b.candidates) {
		return
	}
	highest := 0
	for _, t := range b.targets[first:] {
		highest = max(highest, t.slot)
	}
	for len(b.matches) <= highest {
		b.matches = append(b.matches, 0)
	}
	tree.Match(r.Prompt, b.matches[:highest+1])
	for i := first; i < len(b.candidates); i++ {
		slot := b.targets[i].slot
		b.candidates[i].Match, b.candidates[i].Cached = b.matches[slot], tree.Held(slot)
	}
}

// mayForward says whether r may go to peer t: once to another region, once
// inside each region, never back where it came from.
func (b *Balancer) mayForward(r *request, t *target) bool {
	if !b.cfg.Forward || t.id == r.From {
		return false
	}
	if t.sameRegion {
		return r.Hop == HopNone || r.Hop == HopRemote
	}
	return r.Hop == HopNone || r.Hop == HopRegion
}

// nextHop is the mark that r carries when it is forwarded to t.
func nextHop(r *request, t *target) Hop {
	switch {
	case !t.sameRegion:
		return HopRemote
	case r.Hop == HopRemote:
		return HopBoth
	}
	return HopRegion
}

// send puts r at t.
func (b *Balancer) send(now time.Duration, r *request, t *target, d *Decision) {
	r.target, r.sentAt = t, now
	r.tries++
	b.estimate(r)
	t.sent(r)
	b.counts.Outstanding++
	b.tree(t).Insert(r.Prompt, t.slot)
	if t.peer {
		b.counts.ForwardedOut++
		b.act(Action{Kind: ActionForward, ID: r.ID, Target: t.id, Hop: nextHop(r, t), Reason: d.Reason, Decision: d})
		return
	}
	b.act(Action{Kind: ActionDispatch, ID: r.ID, Target: t.id, Reason: d.Reason, Decision: d})
}

// explain keeps what the policy saw.
func (b *Balancer) explain(now time.Duration, r *request, choice policy.Choice) *Decision {
	n := len(b.decisions)
	if n < cap(b.decisions) {
		b.decisions = b.decisions[:n+1]
	} else {
		b.decisions = append(b.decisions, Decision{})
	}
	d := &b.decisions[n]
	*d = Decision{
		Policy: b.cfg.Policy.Name(), Reason: choice.Reason,
		MatchBytes: b.candidates[choice.Index].Match, PromptBytes: r.Prompt.Bytes(),
		Queued: now - r.arrived, Try: r.tries, Considered: d.Considered[:0],
	}
	for _, c := range b.candidates {
		d.Considered = append(d.Considered, Considered{
			ID: c.ID, Peer: c.Peer, Available: c.Available, Outstanding: c.Outstanding, Unconfirmed: c.Unconfirmed,
			Pending: c.Pending, KV: c.KV, Queued: c.Queued, MatchBytes: c.Match,
			CachedBytes: c.Cached, Remaining: c.Remaining, Age: c.Age,
		})
	}
	return d
}

// Clone is a copy that outlives the Step it came from.
func (d *Decision) Clone() *Decision {
	if d == nil {
		return nil
	}
	c := *d
	c.Considered = append([]Considered(nil), d.Considered...)
	return &c
}
