package core

import (
	"time"

	"skyserve/lbd/policy"
)

// placeAllWaiting tries to place the requests of every model.
func (b *Balancer) placeAllWaiting(now time.Duration) {
	for _, q := range b.queues {
		b.placeWaiting(now, q)
	}
}

// placeSameModel tries to place the waiting requests of r's model.
func (b *Balancer) placeSameModel(now time.Duration, r *request) {
	b.placeWaiting(now, b.queue(r.Model))
}

// placeWaiting places requests from the head of the queue, in the way that the policy requires.
func (b *Balancer) placeWaiting(now time.Duration, q *queue) {
	switch {
	case b.pools.policy != nil:
		b.placePools(now, q)
	case b.traits.Holds:
		b.placeWithHolds(now, q)
	default:
		b.placeInOrder(now, q)
	}
}

// placeInOrder is placeWaiting for a policy that decides one request at a time and holds none. It
// stops at the first request that cannot be placed, unless only that request's own restrictions
// prevent it: later requests do not have to wait for such a request.
func (b *Balancer) placeInOrder(now time.Duration, q *queue) {
	head := b.scratchRequests[:0]
	for skip := 0; skip < min(q.Len(), b.cfg.PoolLimit); {
		replica, peer := b.anyAvailable(now, q)
		if !replica && !peer {
			return
		}
		if len(head) <= skip {
			head = q.First(head[:0], now, min(2*skip+1, b.cfg.PoolLimit))
			b.scratchRequests = head
		}
		r := head[skip]
		if b.placeRequest(now, q, r) {
			head = head[:0] // the fair order of tenants changed
			continue
		}
		if !r.restricted() && !b.adapterDiffers(r) {
			return
		}
		skip++
	}
}

// placeWithHolds evaluates the head of the queue request by request, for a policy that holds requests
// for a full replica while others overtake them. After a peer's report, it evaluates all of them.
// Otherwise, requests that were evaluated before are evaluated again only while a replica has capacity. When the
// capacity is used up, they stay held for the same replicas, and only new requests are evaluated.
func (b *Balancer) placeWithHolds(now time.Duration, q *queue) {
	if q.Len() == 0 {
		return
	}
	available, _ := b.anyAvailable(now, q)
	peersChanged := !q.evaluatedSinceReport
	if !available && !peersChanged && q.unevaluated == 0 {
		return
	}
	again := available || peersChanged // evaluate all requests again
	if again {
		b.clearHolds(q)
	}
	b.scratchRequests = q.First(b.scratchRequests[:0], now, b.cfg.PoolLimit)
	gathered := false // whether the gathered candidates are those of an unrestricted request with this adapter
	adapter := ""
	for _, r := range b.scratchRequests {
		if r.evaluated && !again {
			continue
		}
		if r.Adapter != adapter {
			gathered, adapter = false, r.Adapter
		}
		if available && !peersChanged && r.evaluated && gathered && !b.anyCandidateAvailable() {
			b.holdFor(q, r, r.waitsFor)
			b.updateHeld(r.waitsFor)
			continue
		}
		q.markEvaluated(r)
		if r.restricted() {
			b.placeRequest(now, q, r)
			gathered = false
			continue
		}
		if !gathered {
			b.gatherCandidates(now, q, r)
			gathered = true
		}
		b.chooseTarget(now, q, r)
	}
	q.evaluatedSinceReport = true
}

// anyCandidateAvailable reports whether a gathered replica has capacity.
func (b *Balancer) anyCandidateAvailable() bool {
	for i := range b.candidates[:b.firstPeer] {
		if b.candidates[i].Available {
			return true
		}
	}
	return false
}

// updateHeld sets the number of requests held for t in the gathered candidates.
func (b *Balancer) updateHeld(t *target) {
	for i, other := range b.targets[:b.firstPeer] {
		if other == t {
			b.candidates[i].Held = t.heldRequests
		}
	}
}

// holdFor holds r for t; if t is nil, r waits for any target.
func (b *Balancer) holdFor(q *queue, r *request, t *target) {
	if r.waitsFor = t; t != nil {
		t.heldRequests++
		r.heldInRound = q.holdRound
	}
}

// releaseHold ends the hold of r, if there is one.
func (q *queue) releaseHold(r *request) {
	if r.waitsFor != nil && r.heldInRound == q.holdRound {
		r.waitsFor.heldRequests--
	}
	r.waitsFor = nil
}

// waitsForID returns the id of the replica that r is held for; empty if it waits for any target.
func (r *request) waitsForID() string {
	if r.waitsFor == nil {
		return ""
	}
	return r.waitsFor.id
}

// releaseHoldsFor ends the holds for t, whose model changes.
func (b *Balancer) releaseHoldsFor(t *target) {
	for _, r := range b.requests {
		if r.waitsFor == t {
			r.waitsFor = nil
		}
	}
	t.heldRequests = 0
}

// clearHolds ends all holds of a model's requests. They keep waitsFor, so that those that are not evaluated
// again can be held for the same replica again.
func (b *Balancer) clearHolds(q *queue) {
	q.holdRound++
	for _, t := range b.replicas {
		if t.model == q.model {
			t.heldRequests = 0
		}
	}
}

// anyAvailable reports whether a replica accepts a request of the queue's model, and if not, whether
// a peer does.
func (b *Balancer) anyAvailable(now time.Duration, q *queue) (replica, peer bool) {
	for _, t := range b.replicas {
		if t.model == q.model && t.replicaAvailable(now, &b.cfg) {
			return true, false
		}
	}
	if !b.cfg.Forward {
		return false, false
	}
	for _, t := range b.peers {
		if b.peerEligible(now, t, t.modelLoad(q.model), q.Len()) {
			return false, true
		}
	}
	return false, false
}

// placeRequest lets the policy choose a target for a waiting request and sends it there. It reports
// whether the request left the queue.
func (b *Balancer) placeRequest(now time.Duration, q *queue, r *request) bool {
	if b.awaitsProbes(now, r) || !b.startRetryRound(now, r) {
		return false
	}
	b.gatherCandidates(now, q, r)
	return b.chooseTarget(now, q, r)
}

// chooseTarget is placeRequest for the candidates that were already gathered. Afterwards they are
// up to date again.
func (b *Balancer) chooseTarget(now time.Duration, q *queue, r *request) bool {
	q.releaseHold(r)
	r.awaitsPrefill = false
	found := b.fillMatches(r)
	b.facts = policy.Facts{
		ID: r.ID, Now: now, Model: r.Model, Session: r.Session,
		PromptBytes: r.Prompt.Bytes(), PromptTokens: r.promptLength(), PrefixHashes: r.Prompt,
		MaxTokens: r.MaxTokens, ResponseTokens: q.answerLengths.mean, CachedShare: b.hitRate.Or(0),
		EvictedShare: q.evictions.evictedShare(), SupersededShare: q.evictions.superseded, SharedPrefix: found.Continues, PrefixUses: found.Uses,
		Waited: now - r.WaitingSince, MaxWait: min(b.maxWait(r), b.cfg.MaxWait), Queued: q.Len(), Candidates: b.candidates,
	}
	choice := b.cfg.Policy.Choose(&b.facts)
	switch {
	case choice.Index == policy.Wait:
		return false
	case choice.Hold:
		b.holdFor(q, r, b.targets[choice.Index])
		b.updateHeld(r.waitsFor)
		return false
	}
	t, c := b.targets[choice.Index], &b.candidates[choice.Index]
	if r.awaitsPrefill = b.awaitsSharedPrefill(now, r, t, c); r.awaitsPrefill {
		return false
	}
	b.dequeue(r)
	r.uncached, r.matchAtSend, r.superseded = uncached(r, c), c.MatchBytes, c.SupersededBytes
	r.matchInProgress = t.isComputing(r.Prompt, c.MatchBytes)
	b.sendRequest(now, r, t, b.recordDecision(now, r, choice))
	b.describeTarget(now, q, t, c)
	return true
}

// uncached returns the number of r's prompt tokens that c is expected to compute.
func uncached(r *request, c *policy.Candidate) int {
	if bytes := r.Prompt.Bytes(); bytes > 0 {
		return int(float64(r.promptLength()) * (1 - float64(c.MatchBytes)/float64(bytes)))
	}
	return r.promptLength()
}

// peerEligible reports whether a request may be forwarded to a peer. A policy with both
// Traits.Peers and Traits.Holds decides itself whether a peer is too busy: for it, every usable peer
// with a live replica of the model is eligible. For all other policies, peerAvailable decides.
func (b *Balancer) peerEligible(now time.Duration, t *target, l *ModelLoad, ownQueue int) bool {
	if b.comparesPeers() {
		return l != nil && l.Replicas > 0 && t.peerUsable(now, &b.cfg)
	}
	return t.peerAvailable(now, &b.cfg, l, ownQueue)
}

// comparesPeers reports whether the policy weighs the queues and caches of peers itself.
func (b *Balancer) comparesPeers() bool { return b.traits.Holds && b.traits.Peers }

// mayForward reports whether r may be forwarded to peer t: once to another region, once inside each
// region, never back to its sender.
func (b *Balancer) mayForward(r *request, t *target) bool {
	if !b.cfg.Forward || t.id == r.From {
		return false
	}
	if t.sameRegion {
		return r.Hop == HopNone || r.Hop == HopRemote
	}
	return r.Hop == HopNone || r.Hop == HopLocal
}

// nextHop returns the Hop of r after it is forwarded to t.
func nextHop(r *request, t *target) Hop {
	switch {
	case !t.sameRegion:
		return HopRemote
	case r.Hop == HopRemote:
		return HopBoth
	}
	return HopLocal
}

// sendRequest sends r to t.
func (b *Balancer) sendRequest(now time.Duration, r *request, t *target, d *Decision) {
	r.target, r.sentAt, r.firstTokenAt = t, now, 0
	r.attempts++
	r.expectPrefill(now, t)
	b.estimateWork(r)
	b.queue(r.Model).recordSent(r)
	t.addOutstanding(r)
	t.isolate(r)
	t.addToRank(r)
	b.counts.Outstanding++
	b.caches.recordSent(now, &t.cacheTarget, r.Tenant, r.Prompt, d.MatchBytes)
	if t.peer {
		b.counts.ForwardedOut++
		t.forwarded++
		b.addAction(Action{
			Kind: ActionForward, ID: r.ID, Target: t.id, Hop: nextHop(r, t), Reason: d.Reason, Decision: d,
			SessionAge: now - r.sessionStart, MaxWait: max(time.Millisecond, b.maxWait(r)-b.waited(now, r)), Kills: b.killsToSend(r),
		})
		return
	}
	b.addAction(Action{Kind: ActionDispatch, ID: r.ID, Target: t.id, Reason: d.Reason, Decision: d})
}

// recordDecision returns a Decision with the candidates and the figures that the policy received.
func (b *Balancer) recordDecision(now time.Duration, r *request, choice policy.Choice) *Decision {
	n := len(b.decisions)
	if n < cap(b.decisions) {
		b.decisions = b.decisions[:n+1]
	} else {
		b.decisions = append(b.decisions, Decision{})
	}
	d := &b.decisions[n]
	*d = Decision{
		Policy: b.cfg.Policy.Name(), Reason: choice.Reason,
		MatchBytes: b.candidates[choice.Index].MatchBytes, PromptBytes: r.Prompt.Bytes(),
		Waited: now - r.WaitingSince, Attempt: r.attempts, Considered: d.Considered[:0],
	}
	for _, c := range b.candidates {
		d.Considered = append(d.Considered, ConsideredTarget{
			ID: c.ID, Peer: c.Peer, Available: c.Available, Outstanding: c.Outstanding, Unconfirmed: c.Unconfirmed,
			Pending: c.Pending, KV: c.KV, Queued: c.Queued, MatchBytes: c.MatchBytes,
			CachedBytes: c.CachedBytes, Remaining: c.RemainingTokens, HeldRequests: c.Held, Score: c.Score, Age: c.Age,
		})
	}
	return d
}

// Clone returns a copy that remains valid after the next Step.
func (d *Decision) Clone() *Decision {
	if d == nil {
		return nil
	}
	c := *d
	c.Considered = append([]ConsideredTarget(nil), d.Considered...)
	return &c
}
