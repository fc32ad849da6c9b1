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
	asked  []*request // beside pool.Waiting
	again  []*request // those that failed before, or that one target holds
	ranks  []*target  // beside pool.Ranks
}

func newBatch(p policy.Policy) batch {
	batcher, _ := p.(policy.Batcher)
	return batch{policy: batcher}
}

// smallPool is how many free slots there must be for each request that waits for
// the pool to be decided at once: gathering more requests for so much room only
// makes them wait.
const smallPool = 4

// shortPool is how many may wait and still be decided at once: to count the free
// slots at every event costs more than it is worth to so many.
const shortPool = 32

// rankState is what a target must remember where pools are decided.
type rankState struct {
	engine  string     // ReplicaInfo.Engine, or the target's own id
	there   []*request // outstanding, in no order
	talking int        // of them, how many had their first token
	each    float64    // tokens that one which talked all the time has had
}

// pooled is what a request must remember.
type pooled struct {
	offered   bool
	offeredAt time.Duration // when it first was in a pool
	index     int           // into rankState.there
	talks     bool
	eachAt    float64 // rankState.each at its first token
}

// engine is the engine that a replica belongs to.
func (i *ReplicaInfo) engine() string { return cmp.Or(i.Engine, i.ID) }

// suspect notes that t could not be connected to, and with it no other rank of
// its engine.
func (b *Balancer) suspect(now time.Duration, t *target) {
	t.suspect = true
	b.forget(now, t)
	for _, o := range b.replicas {
		if o != t && !t.peer && o.engine == t.engine {
			o.suspect = true
			b.forget(now, o)
		}
	}
}

// joined notes that r was sent to t.
func (b *Balancer) joined(t *target, r *request) {
	if b.batch.policy == nil {
		return
	}
	r.talks, r.index = false, len(t.there)
	t.there = append(t.there, r)
}

// parted notes that r ended at t.
func (b *Balancer) parted(t *target, r *request) {
	if b.batch.policy == nil {
		return
	}
	last := len(t.there) - 1
	t.there[r.index] = t.there[last]
	t.there[r.index].index = r.index
	t.there[last] = nil
	t.there = t.there[:last]
	if r.talks {
		t.talking--
	}
	if last == 0 {
		t.each = 0
	}
}

// talks notes r's first token.
func (b *Balancer) talks(r *request) {
	if b.batch.policy != nil && !r.talks {
		r.talks, r.eachAt = true, r.target.each
		r.target.talking++
	}
}

// noteTokens notes tokens generated at t: an equal part for each request that talks.
func (t *target) noteTokens(tokens int) {
	if t.talking > 0 {
		t.each += float64(min(max(0, tokens), maxTokens)) / float64(t.talking)
	}
}

// streamed is how many tokens of its answer r is thought to have had.
func (t *target) streamed(r *request) int {
	if !r.talks {
		return 0
	}
	return 1 + int(t.each-r.eachAt)
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
	if !b.due(now, q) {
		return
	}
	q.assignedAt = now
	for b.assign(now, q) && q.Len() > 0 {
	}
	if local, _ := b.anyAvailable(now, q); !local {
		b.drainInOrder(now, q)
	}
}

// due says whether a pool is to be decided now: at most once every BatchInterval,
// so that slots that fall free together are filled together, but at once while
// there is far more room than work, and where no rank waits for another.
func (b *Balancer) due(now time.Duration, q *queue) bool {
	if never := q.assignedAt == 0; never || now-q.assignedAt >= b.cfg.BatchInterval {
		return true
	}
	if q.barrier && q.Len() > shortPool {
		return false
	}
	free := b.listRanks(now, q.model)
	q.barrier = b.batch.barrier()
	return !q.barrier || smallPool*q.Len() <= free
}

// barrier says whether any two of the ranks belong to one engine.
func (x *batch) barrier() bool {
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
		n := t.free(now, &b.cfg)
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

// free is how many more requests the push rule lets be sent to a replica before
// anything new is heard of it; one that nothing bounds has room for a whole pool.
func (t *target) free(now time.Duration, c *Config) int {
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

// assign lets the policy decide for the front of the queue and carries the
// choices out. It reports whether all of it was sent.
func (b *Balancer) assign(now time.Duration, q *queue) (all bool) {
	x, left := &b.batch, q.Len()
	b.fillPool(now, q)
	for _, r := range x.again {
		b.place(now, q, r)
	}
	b.seeRanks(now, q)
	for i, choice := range x.policy.Assign(&x.pool) {
		if choice.Index == policy.Wait || !x.ranks[choice.Index].replicaAvailable(now, &b.cfg) {
			continue
		}
		r := x.asked[i]
		b.dequeue(r)
		r.uncached = r.tokens()
		b.send(now, r, x.ranks[choice.Index], b.explain(now, r, choice))
	}
	return left-q.Len() >= len(b.pool) && len(b.pool) > 0
}

// fillPool takes the front of the queue into the pool. Requests with places to
// avoid, which failed before, go ahead of it, and so do those with a holder.
func (b *Balancer) fillPool(now time.Duration, q *queue) {
	x := &b.batch
	x.asked, x.again, x.pool.Waiting = x.asked[:0], x.again[:0], x.pool.Waiting[:0]
	x.pool.Now, x.pool.Model = now, q.model
	b.pool = q.First(b.pool[:0], now, b.cfg.PoolLimit)
	for _, r := range b.pool {
		if len(r.avoid) > 0 || r.Holder != "" || r.suspected() {
			x.again = append(x.again, r)
			continue
		}
		if !r.offered {
			r.offered, r.offeredAt = true, now
		}
		x.asked = append(x.asked, r)
		x.pool.Waiting = append(x.pool.Waiting, policy.Waiting{
			PromptTokens: r.tokens(), MaxTokens: min(r.MaxTokens, maxTokens), ExpectedTokens: b.expected(r),
			Waited: now - r.Arrived, Offered: now - r.offeredAt,
		})
	}
}

// expected is how long r's answer is thought to be, in tokens.
func (b *Balancer) expected(r *request) int {
	n := min(b.queue(r.Model).answers.expect(), maxTokens)
	if r.MaxTokens > 0 {
		n = min(n, r.MaxTokens)
	}
	return n
}

// seeRanks fills in all that is known of the ranks.
func (b *Balancer) seeRanks(now time.Duration, q *queue) {
	x := &b.batch
	b.listRanks(now, q.model)
	b.candidates, b.targets = b.candidates[:0], b.targets[:0]
	for i, t := range x.ranks {
		rank := &x.pool.Ranks[i]
		rank.Candidate = *b.candidate(now, q, t)
		rank.Running = t.appendRunning(rank.Running[:0])
	}
	b.firstPeer = len(b.candidates)
}

// appendRunning lists what is outstanding at t.
func (t *target) appendRunning(into []policy.Running) []policy.Running {
	for _, r := range t.there {
		had := t.streamed(r)
		left := 0
		if r.MaxTokens > 0 {
			left = max(1, min(r.MaxTokens, maxTokens)-had)
		}
		into = append(into, policy.Running{Tokens: r.promptCost + had, Left: left})
	}
	return into
}
