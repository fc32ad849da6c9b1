package core

import (
	"cmp"
	"slices"
	"time"

	"skyserve/lbd/policy"
)

// poolPlacement is the state for a policy that distributes the requests at the head of a model's queue among its
// replicas in one call (policy.PoolPolicy). Requests that some ranks may not serve (fillPool) are placed one by
// one, and so are forwards to peers.
type poolPlacement struct {
	policy   policy.PoolPolicy // nil: the policy decides request by request
	pool     policy.Pool
	requests []*request // parallel to pool.Waiting
	separate []*request // placed one by one: see fillPool
	ranks    []*target  // the replicas, or their data-parallel ranks; parallel to pool.Ranks
}

func newPoolPlacement(p policy.Policy) poolPlacement {
	poolPolicy, _ := p.(policy.PoolPolicy)
	return poolPlacement{policy: poolPolicy}
}

// freeSlotsPerRequest is the number of free slots per waiting request from which on a pool is
// decided immediately: collecting more requests would only make them wait.
const freeSlotsPerRequest = 4

// maxImmediateQueue is the queue length up to which a pool may be decided immediately. For longer
// queues, counting the free slots at every event costs more time than it saves.
const maxImmediateQueue = 32

// rankState is the engine of a target and its outstanding requests. The last two fields are only for policies that
// decide for whole pools.
type rankState struct {
	engine          string     // ReplicaInfo.Engine, or the target's own id
	requests        []*request // outstanding, unordered
	streaming       int        // number of them that have a first token
	tokensPerStream float64    // tokens that a stream would have received that has run since the target was last idle
}

// poolState is the state of a request that, except rankIndex, only policies for whole pools use: see rankState.
type poolState struct {
	inPool                 bool
	inPoolSince            time.Duration // time when it was first added to a pool
	rankIndex              int           // index in rankState.requests
	streaming              bool
	tokensPerStreamAtStart float64 // rankState.tokensPerStream at its first token
}

// engine returns the engine that a replica belongs to.
func (info *ReplicaInfo) engine() string { return cmp.Or(info.Engine, info.ID) }

// markUnreachable records that the connection to t failed. This applies to all ranks of its engine.
func (b *Balancer) markUnreachable(now time.Duration, t *target) {
	t.unreachable = true
	b.forgetCache(now, t)
	for _, o := range b.replicas {
		if o != t && !t.peer && o.engine == t.engine {
			o.unreachable = true
			b.forgetCache(now, o)
		}
	}
}

// addToRank records that r was sent to t.
func (t *target) addToRank(r *request) {
	r.streaming, r.rankIndex = false, len(t.requests)
	t.requests = append(t.requests, r)
}

// removeFromRank records that r ended at t.
func (t *target) removeFromRank(r *request) {
	last := len(t.requests) - 1
	t.requests[r.rankIndex] = t.requests[last]
	t.requests[r.rankIndex].rankIndex = r.rankIndex
	t.requests[last] = nil
	t.requests = t.requests[:last]
	if r.streaming {
		t.streaming--
	}
	if last == 0 {
		t.tokensPerStream = 0
	}
}

// markStreaming records r's first token.
func (b *Balancer) markStreaming(r *request) {
	if b.pools.policy != nil && !r.streaming {
		r.streaming, r.tokensPerStreamAtStart = true, r.target.tokensPerStream
		r.target.streaming++
	}
}

// recordTokens records tokens generated at t: an equal part for each streaming request.
func (t *target) recordTokens(tokens int) {
	if t.streaming > 0 {
		t.tokensPerStream += float64(min(max(0, tokens), maxTokens)) / float64(t.streaming)
	}
}

// generatedFor returns the estimated number of tokens generated for r.
func (t *target) generatedFor(r *request) int {
	if !r.streaming {
		return 0
	}
	return 1 + int(t.tokensPerStream-r.tokensPerStreamAtStart)
}

// placePools places waiting requests with a policy that decides for pools.
func (b *Balancer) placePools(now time.Duration, q *queue) {
	if q.Len() == 0 {
		return
	}
	if replica, _ := b.anyAvailable(now, q); !replica {
		b.placeInOrder(now, q) // only peers can be chosen
		return
	}
	if !b.poolDue(now, q) {
		return
	}
	q.assignedAt = now
	for b.assignPool(now, q) && q.Len() > 0 {
	}
	if replica, _ := b.anyAvailable(now, q); !replica {
		b.placeInOrder(now, q)
	}
}

// poolDue reports whether a pool is to be decided now: at most once every PoolInterval, so that
// slots that become free together are filled together. It is decided immediately if no two ranks
// share an engine, or if there are many free slots per request.
func (b *Balancer) poolDue(now time.Duration, q *queue) bool {
	if first := q.assignedAt == 0; first || now-q.assignedAt >= b.cfg.PoolInterval {
		return true
	}
	if q.sharedEngine && q.Len() > maxImmediateQueue {
		return false
	}
	free := b.listRanks(now, q.model)
	q.sharedEngine = b.pools.anySharedEngine()
	return !q.sharedEngine || freeSlotsPerRequest*q.Len() <= free
}

// anySharedEngine reports whether any two of the ranks belong to one engine.
func (x *poolPlacement) anySharedEngine() bool {
	for i := 1; i < len(x.ranks); i++ {
		if x.ranks[i].engine == x.ranks[i-1].engine {
			return true
		}
	}
	return false
}

// listRanks lists the live ranks of a model and returns the number of further requests that may be
// sent to them. A rank that is not live delays no other rank.
func (b *Balancer) listRanks(now time.Duration, model string) (free int) {
	x := &b.pools
	x.ranks, x.pool.Ranks = x.ranks[:0], x.pool.Ranks[:0]
	for _, t := range b.replicas {
		if t.model == model && !t.draining && t.live(now, &b.cfg) {
			x.ranks = append(x.ranks, t)
		}
	}
	slices.SortStableFunc(x.ranks, func(a, b *target) int { return cmp.Compare(a.engine, b.engine) })
	for _, t := range x.ranks {
		n := t.freeSlots(now, &b.cfg)
		free += n
		x.addRank(policy.Rank{Engine: t.engine, LoadTokens: t.context(), FreeSlots: n})
	}
	return free
}

// addRank appends a rank to the pool and reuses the memory of an earlier one.
func (x *poolPlacement) addRank(r policy.Rank) {
	n := len(x.pool.Ranks)
	if n < cap(x.pool.Ranks) {
		r.OutstandingRequests = x.pool.Ranks[:n+1][n].OutstandingRequests[:0]
	}
	x.pool.Ranks = append(x.pool.Ranks, r)
}

// freeSlots returns the number of further requests that the push mode allows at a replica before
// its next report. Without any bound, the number is PoolLimit.
func (t *target) freeSlots(now time.Duration, c *Config) int {
	if !t.replicaAvailable(now, c) {
		return 0
	}
	n := c.PoolLimit
	if t.maxOutstanding > 0 {
		n = min(n, t.maxOutstanding-t.outstanding)
	}
	switch {
	case c.Push.Kind == PushBlind:
	case c.Push.Kind == PushOutstanding:
		n = min(n, c.Push.N-t.outstanding)
	case t.usesOutstandingLimit(now, c):
		n = min(n, t.outstandingLimit(c)-t.outstanding)
	default:
		n = min(n, t.unconfirmedSlots(c))
	}
	return n
}

// assignPool lets the policy decide for the head of the queue and sends the requests for which it
// chose a rank. It reports whether all requests at the head were sent.
func (b *Balancer) assignPool(now time.Duration, q *queue) (all bool) {
	x, before := &b.pools, q.Len()
	b.fillPool(now, q)
	for _, r := range x.separate {
		b.placeRequest(now, q, r)
	}
	b.describeRanks(now, q)
	for i, choice := range x.policy.Assign(&x.pool) {
		if choice.Index == policy.Wait || !x.ranks[choice.Index].replicaAvailable(now, &b.cfg) {
			continue
		}
		r := x.requests[i]
		b.dequeue(r)
		r.uncached = r.promptLength()
		b.sendRequest(now, r, x.ranks[choice.Index], b.recordDecision(now, r, choice))
	}
	return before-q.Len() >= len(b.scratchRequests) && len(b.scratchRequests) > 0
}

// fillPool adds the head of the queue to the pool. Requests that failed before, are suspects, are
// pinned or need an adapter that some ranks lack are listed separately and placed first.
func (b *Balancer) fillPool(now time.Duration, q *queue) {
	x := &b.pools
	x.requests, x.separate, x.pool.Waiting = x.requests[:0], x.separate[:0], x.pool.Waiting[:0]
	x.pool.Now, x.pool.Model = now, q.model
	b.scratchRequests = q.First(b.scratchRequests[:0], now, b.cfg.PoolLimit)
	for _, r := range b.scratchRequests {
		if len(r.avoid) > 0 || r.PinnedTo != "" || r.suspected() || b.adapterDiffers(r) {
			x.separate = append(x.separate, r)
			continue
		}
		if !r.inPool {
			r.inPool, r.inPoolSince = true, now
		}
		x.requests = append(x.requests, r)
		x.pool.Waiting = append(x.pool.Waiting, policy.WaitingRequest{
			PromptTokens: r.promptLength(), MaxTokens: min(r.MaxTokens, maxTokens), ExpectedTokens: b.expectedAnswer(r),
			Waited: now - r.WaitingSince, InPool: now - r.inPoolSince,
		})
	}
}

// expectedAnswer returns the expected length of r's answer, in tokens.
func (b *Balancer) expectedAnswer(r *request) int {
	n := min(b.queue(r.Model).answerLengths.expected(), maxTokens)
	if r.MaxTokens > 0 {
		n = min(n, r.MaxTokens)
	}
	return n
}

// describeRanks sets the current state of the ranks.
func (b *Balancer) describeRanks(now time.Duration, q *queue) {
	x := &b.pools
	b.listRanks(now, q.model)
	b.candidates, b.targets = b.candidates[:0], b.targets[:0]
	for i, t := range x.ranks {
		rank := &x.pool.Ranks[i]
		rank.Candidate = *b.addCandidate(now, q, t)
		rank.OutstandingRequests = t.appendOutstanding(rank.OutstandingRequests[:0])
	}
	b.firstPeer = len(b.candidates)
}

// appendOutstanding appends the outstanding requests of t.
func (t *target) appendOutstanding(into []policy.OutstandingRequest) []policy.OutstandingRequest {
	for _, r := range t.requests {
		streamed := t.generatedFor(r)
		remaining := 0
		if r.MaxTokens > 0 {
			remaining = max(1, min(r.MaxTokens, maxTokens)-streamed)
		}
		into = append(into, policy.OutstandingRequest{Tokens: r.expectedPrompt + streamed, Remaining: remaining})
	}
	return into
}
