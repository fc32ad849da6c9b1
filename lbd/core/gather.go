package core

import (
	"time"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// gatherCandidates fills candidates, and targets in parallel, with all targets that may serve r:
// replicas, then, from firstPeer on, peers. While a replica is available, peers are included only
// for a policy with Traits.Peers. fillMatches adds the prefix matches.
func (b *Balancer) gatherCandidates(now time.Duration, q *queue, r *request) {
	b.candidates, b.targets = b.candidates[:0], b.targets[:0]
	anyLocal := false
	for _, t := range b.replicas {
		if t.model != r.Model || r.needsOtherTarget(t) || t.lacksAdapter(r) || r.avoids(t.engine) || b.isolationConflict(now, r, t) {
			continue
		}
		anyLocal = b.addCandidate(now, q, t).Available || anyLocal
	}
	b.firstPeer = len(b.candidates)
	if anyLocal && !b.traits.Peers {
		return
	}
	for _, t := range b.peers {
		if t.modelLoad(r.Model) != nil && !r.needsOtherTarget(t) && !t.lacksAdapter(r) && !r.avoids(t.engine) && b.mayForward(r, t) {
			b.addCandidate(now, q, t)
		}
	}
}

// addCandidate appends t.
func (b *Balancer) addCandidate(now time.Duration, q *queue, t *target) *policy.Candidate {
	b.targets = append(b.targets, t)
	b.candidates = append(b.candidates, policy.Candidate{})
	c := &b.candidates[len(b.candidates)-1]
	b.describeTarget(now, q, t, c)
	return c
}

// describeTarget sets c to the figures of t that a policy receives for a request of q.
func (b *Balancer) describeTarget(now time.Duration, q *queue, t *target, c *policy.Candidate) {
	*c = policy.Candidate{
		ID: t.id, Peer: t.peer, Live: !t.draining && t.live(now, &b.cfg),
		Outstanding: t.outstanding + t.failedLoad.count, Unconfirmed: len(t.unconfirmed), Held: t.heldRequests,
		PrefillTokens: t.work.prefillTokens, ContextTokens: t.context(), RemainingTokens: t.work.remaining() + t.failedLoad.remaining,
		Residence: t.residence, Age: t.metricsAge(now),
	}
	if !t.peer {
		c.Available, c.Pace = t.replicaAvailable(now, &b.cfg), t.pace.Value()
		c.Pending = t.stillPending()
		c.Running, c.KV = t.stillRunning()
		c.JoinsPrefill = b.traits.Holds && t.joinsPrefill(now)
		if t.pendingSince > 0 {
			c.PendingFor = now - t.pendingSince
		}
		return
	}
	l := t.modelLoad(q.model)
	sent, uncached := t.unconfirmedFor(q.model)
	c.Unconfirmed = sent
	c.Available, c.RTT, c.Queued = b.peerEligible(now, t, l, q.Len()), t.rtt, t.queuedAt(l)
	c.KV, c.Replicas, c.Residence = l.KV, l.Replicas, l.Residence
	c.Pace, c.PeerOutstanding, c.ContextTokens = b.peerPace(l), l.Outstanding, l.ContextTokens
	// HoldTime counts one request more than its first argument.
	c.ExpectedWait = l.ExpectedWait + policy.HoldTime(max(0, sent-l.Available)-1, l.Outstanding, l.Residence, c.Pace)
	c.PrefillTokens = l.MinPrefillTokens + uncached/max(1, l.Replicas)
}

// fillMatches sets the candidates' prefix matches for r's prompt and their cache sizes, and clears
// their scores for the previous request. It returns what the tree found for the replicas. It does nothing for a policy
// without Traits.Prefix.
func (b *Balancer) fillMatches(r *request) (found prefix.Found) {
	if !b.traits.Prefix {
		return found
	}
	b.fillMatchesFrom(b.caches.peers, r, b.firstPeer, len(b.candidates))
	found = b.fillMatchesFrom(b.caches.replicas, r, 0, b.firstPeer)
	if found.Continues {
		for i := range b.candidates[:b.firstPeer] {
			c := &b.candidates[i]
			c.InUseBytes = b.targets[i].inUse(r.Prompt, c.MatchBytes/prefix.BlockBytes) * prefix.BlockBytes
		}
	}
	return found
}

// fillMatchesFrom is fillMatches for the candidates of a tree. A peer has several engines, so its matches are never
// superseded.
func (b *Balancer) fillMatchesFrom(tree *prefix.Tree, r *request, from, to int) (found prefix.Found) {
	if from == to {
		return found
	}
	highest := 0
	for _, t := range b.targets[from:to] {
		highest = max(highest, t.treeSlot)
	}
	matches, superseded, found := b.caches.match(tree, r.Prompt, highest)
	for i := from; i < to; i++ {
		slot, c := b.targets[i].treeSlot, &b.candidates[i]
		c.MatchBytes, c.CachedBytes, c.Score = matches[slot], tree.CachedBytes(slot), policy.Maybe[float64]{}
		c.InUseBytes = 0
		if !c.Peer {
			c.SupersededBytes = superseded[slot]
		}
	}
	return found
}
