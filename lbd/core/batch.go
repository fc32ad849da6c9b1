package core

import (
	"cmp"
	"slices"
	"time"

	"skyserve/lbd/policy"
)

// batch is what a balancer needs whose policy decides for whole pools
// (policy.Batcher). A request that failed or was bounced before has places to
// avoid and is placed by itself; so is one with a holder or under suspicion, and what
// goes to peers.
type batch struct {
	policy policy.Batcher // nil: the policy decides request by request
	pool   policy.Pool
	requests  []*request // beside pool.Waiting
	separate  []*request // those that failed before, or that one target holds
	ranks  []*target  // beside pool.Ranks
}

func newBatch(p policy.Policy) batch {
	batcher, _ := p.(policy.Batcher)
	return batch{policy: batcher}
}

// freeSlotsPerRequest is how many free slots there must be for each request that waits for
// the pool to be decided at once: gathering more requests for so much room only
// makes them wait.
const freeSlotsPerRequest = 4

// maxImmediateQueue is how many may wait and still be decided at once: to count the free
// slots at every event costs more than it is worth to so many.
const maxImmediateQueue = 32

// rankState is what a target must remember where pools are decided.
type rankState struct {
	engine  string     // ReplicaInfo.Engine, or the target's own id
	requests   []*request // outstanding, in no order
	streaming int        // of them, how many had their first token
	tokensEach    float64    // tokens that one which talked all the time has had
}

// poolState is what a request must remember.
type poolState struct {
	inPool   bool
	inPoolSince time.Duration // when it first was in a pool
	rankIndex     int           // into rankState.there
	streaming     bool
	tokensEachAtStart    float64 // rankState.each at its first token
}

// engine is the engine that a replica belongs to.
func (i *ReplicaInfo) engine() string { return cmp.Or(i.Engine, i.ID) }

// markUnreachable notes that t could not be connected to, and with it no other rank of
// its engine.
func (b *Balancer) markUnreachable(now time.Duration, t *target) {
	t.unreachable = true
	b.forgetTarget(now, t)
	for _, o := range b.replicas {
		if o != t && !t.peer && o.engine == t.engine {
			o.unreachable = true
			b.forgetTarget(now, o)
		}
	}
}

// addToRank notes that r was sent to t.
func (b *Balancer) addToRank(t *target, r *request) {
	if b.batch.policy == nil {
		return
	}
	r.streaming, r.rankIndex = false, len(t.requests)
	t.requests = append(t.requests, r)
}

// removeFromRank notes that r ended at t.
func (b *Balancer) removeFromRank(t *target, r *request) {
	if b.batch.policy == nil {
		return
	}
	last := len(t.requests) - 1
	t.requests[r.rankIndex] = t.requests[last]
	t.requests[r.rankIndex].rankIndex = r.rankIndex
	t.requests[last] = nil
	t.requests = t.requests[:last]
	if r.streaming {
		t.streaming--
	}
	if last == 0 {
		t.tokensEach = 0
	}
}

// markStreaming notes r's first token.
func (b *Balancer) markStreaming(r *request) {
	if b.batch.policy != nil && !r.streaming {
		r.streaming, r.tokensEachAtStart = true, r.target.tokensEach
		r.target.streaming++
	}
}

// recordTokens notes tokens generated at t: an equal part for each request that talks.
func (t *target) recordTokens(tokens int) {
	if t.streaming > 0 {
		t.tokensEach += float64(min(max(0, tokens), maxTokens)) / float64(t.streaming)
	}
}

// streamed is how many tokens of its answer r is thought to have had.
func (t *target) streamed(r *request) int {
	if !r.streaming {
		return 0
	}
	return 1 + int(t.tokensEach-r.tokensEachAtStart)
}

// drainBatch places what waits where the policy decides for pools.
func (b *Balancer) drainBatch(now time.Duration, q *queue) {
	if q.Len() == 0 {
		return
	}
	if local, _ := b.anyAvailable(now, q); !local {
		b.drainInOrder(now, q) // to peers
		return
	}
	if !b.poolDue(now, q) {
		return
	}
	q.assignedAt = now
	for b.assignPool(now, q) && q.Len() > 0 {
	}
	if local, _ := b.anyAvailable(now, q); !local {
		b.drainInOrder(now, q)
	}
}

// poolDue says whether a pool is to be decided now: at most once every BatchInterval,
// so that slots that fall free together are filled together, but at once while
// there is far more room than work, and where no rank waits for another.
func (b *Balancer) poolDue(now time.Duration, q *queue) bool {
	if never := q.assignedAt == 0; never || now-q.assignedAt >= b.cfg.BatchInterval {
		return true
	}
	if q.sharedEngine && q.Len() > maxImmediateQueue {
		return false
	}
	free := b.listRanks(now, q.model)
	q.sharedEngine = b.batch.anySharedEngine()
	return !q.sharedEngine || freeSlotsPerRequest*q.Len() <= free
}

// anySharedEngine says whether any two of the ranks belong to one engine.
func (x *batch) anySharedEngine() bool {
	for i := 1; i < len(x.ranks); i++ {
		if x.ranks[i].engine == x.ranks[i-1].engine {
			return true
		}
	}
	return false
}

// listRanks lists the ranks of a model that answer and returns how many more
// requests may be sent to them. One that does not answer keeps nobody waiting.
func (b *Balancer) listRanks(now time.Duration, model string) (free int) {
	x := &b.batch
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
		x.addRank(policy.Rank{Engine: t.engine, Load: t.context(), Free: n})
	}
	return free
}

// addRank appends a rank to the pool in the memory of an earlier one.
func (x *batch) addRank(r policy.Rank) {
	n := len(x.pool.Ranks)
	if n < cap(x.pool.Ranks) {
		r.Running = x.pool.Ranks[:n+1][n].Running[:0]
	}
	x.pool.Ranks = append(x.pool.Ranks, r)
}

// freeSlots is how many more requests the push rule lets be sent to a replica before
// anything new is heard of it; one that nothing bounds has room for a whole pool.
func (t *target) freeSlots(now time.Duration, c *Config) int {
	if !t.replicaAvailable(now, c) {
		return 0
	}
	n := c.PoolLimit
	if t.limit > 0 {
		n = min(n, t.limit-t.outstanding)
	}
	switch {
	case c.Push.Mode == PushBlind:
	case c.Push.Mode == PushOutstanding:
		n = min(n, c.Push.N-t.outstanding)
	case !t.pending.Known || t.stale(now, c):
		n = min(n, c.OutstandingLimit-t.outstanding)
	default:
		n = min(n, c.UnconfirmedLimit-len(t.unconfirmed))
	}
	return n
}

// assignPool lets the policy decide for the front of the queue and carries the
// choices out. It reports whether all of it was sent.
func (b *Balancer) assignPool(now time.Duration, q *queue) (all bool) {
	x, left := &b.batch, q.Len()
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
		r.uncached = r.tokens()
		b.sendRequest(now, r, x.ranks[choice.Index], b.recordDecision(now, r, choice))
	}
	return left-q.Len() >= len(b.pool) && len(b.pool) > 0
}

// fillPool takes the front of the queue into the pool. Requests with places to
// avoid, which failed before, go ahead of it, and so do those with a holder.
func (b *Balancer) fillPool(now time.Duration, q *queue) {
	x := &b.batch
	x.requests, x.separate, x.pool.Waiting = x.requests[:0], x.separate[:0], x.pool.Waiting[:0]
	x.pool.Now, x.pool.Model = now, q.model
	b.pool = q.First(b.pool[:0], now, b.cfg.PoolLimit)
	for _, r := range b.pool {
		if len(r.avoid) > 0 || r.Holder != "" || r.suspected() {
			x.separate = append(x.separate, r)
			continue
		}
		if !r.inPool {
			r.inPool, r.inPoolSince = true, now
		}
		x.requests = append(x.requests, r)
		x.pool.Waiting = append(x.pool.Waiting, policy.Waiting{
			PromptTokens: r.tokens(), MaxTokens: min(r.MaxTokens, maxTokens), ExpectedTokens: b.expectedAnswer(r),
			Waited: now - r.Arrived, Offered: now - r.inPoolSince,
		})
	}
}

// expectedAnswer is how long r's answer is thought to be, in tokens.
func (b *Balancer) expectedAnswer(r *request) int {
	n := min(b.queue(r.Model).answerLengths.expected(), maxTokens)
	if r.MaxTokens > 0 {
		n = min(n, r.MaxTokens)
	}
	return n
}

// describeRanks fills in all that is known of the ranks.
func (b *Balancer) describeRanks(now time.Duration, q *queue) {
	x := &b.batch
	b.listRanks(now, q.model)
	b.candidates, b.targets = b.candidates[:0], b.targets[:0]
	for i, t := range x.ranks {
		rank := &x.pool.Ranks[i]
		rank.Candidate = *b.addCandidate(now, q, t)
		rank.Running = t.appendRunning(rank.Running[:0])
	}
	b.firstPeer = len(b.candidates)
}

// appendRunning lists what is outstanding at t.
func (t *target) appendRunning(into []policy.Running) []policy.Running {
	for _, r := range t.requests {
		had := t.streamed(r)
		left := 0
		if r.MaxTokens > 0 {
			left = max(1, min(r.MaxTokens, maxTokens)-had)
		}
		into = append(into, policy.Running{Tokens: r.promptCost + had, Left: left})
	}
	return into
}
