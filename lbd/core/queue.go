package core

import (
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core/fair"
)

// queue is the waiting requests of one model, in fair order, and what the balancer keeps of
// them. A request that comes back (failed, bounced) takes its old place again.
type queue struct {
	fair.Queue[request]
	model      string
	ordering   ordering
	releasable int           // how many deferred requests more the last report has room for
	chargedAt  time.Duration // when those at a target were last charged for
	answerLengths    answerLengths       // of the model's requests that ended
	// firstTokens counts the first tokens of IW-F requests of clients here, late those of
	// them that came after the tier's target.
	firstTokens, lateFirstTokens int64
	// passed: the front of it was weighed since the last report of a peer; unweighed
	// counts those that never were since they came.
	evaluatedSinceReport    bool
	unevaluated int
	// assignedAt is when a whole pool of it was last decided on.
	assignedAt time.Duration
	sharedEngine    bool // some of its ranks waited for each other when last looked at
}

func newQueue(model string, o ordering) *queue {
	q := &queue{model: model, ordering: o}
	q.Init(q.position)
	return q
}

// position is where the order puts r.
func (q *queue) position(r *request, now time.Duration) fair.Position {
	return q.ordering.position(r.Tier, r.Arrived, now)
}

// push puts r at its place.
func (q *queue) push(now time.Duration, r *request) {
	r.evaluated = false
	q.unevaluated++
	q.Push(now, &r.Item)
}

// remove takes r out; it must be in the queue, or held apart.
func (q *queue) remove(r *request) {
	if !r.Parked() && !r.evaluated {
		q.unevaluated--
	}
	q.Remove(&r.Item)
}

// countFirstToken counts r's first token, once, where its client is.
func (q *queue) countFirstToken(now time.Duration, r *request) {
	if r.firstTokenCounted || r.From != "" || levelOf(r.Tier) != levelFast {
		return
	}
	r.firstTokenCounted = true
	q.firstTokens++
	if now-r.receivedAt > q.ordering.targets.of(r.Tier) {
		q.lateFirstTokens++
	}
}

// markEvaluated notes that r was weighed.
func (q *queue) markEvaluated(r *request) {
	if !r.evaluated {
		r.evaluated = true
		q.unevaluated--
	}
}

// initItem makes a request that came an item of its queue.
func (r *request) initItem(seq uint64, now time.Duration) {
	r.Item.Init(r, r.Tenant, r.Tier == service.TierDeferred, r.turnCost())
	r.Seq, r.Arrived = seq, now
}

// turnCost is what a request is charged when it is sent. Even an empty prompt costs
// something, so that turns are taken.
func (r *request) turnCost() int64 { return int64(max(1, r.tokens())) }

// addOutstanding charges r's tenant for its prompt, or for what an earlier try generated if that
// is more.
func (q *queue) chargeSent(r *request) {
	q.Sent(&r.Item)
	q.setCharge(r, max(r.minCharge, r.turnCost()))
}

// evictForTenant keeps a tenant that filled the queue from locking r out: the last
// request of the tenant with the most waiting for one model gives way, if it has
// more of them than r's tenant and that request is of no more urgent tier. Deferred
// work that is held apart gives way before, see evictParked.
func (b *Balancer) evictForTenant(now time.Duration, r *request) bool {
	if b.evictParked(r) {
		return true
	}
	var fullest *queue
	tenant, most := "", 0
	for _, q := range b.queues {
		if t, n := q.TenantWithMostWaiting(); n > most {
			fullest, tenant, most = q, t, n
		}
	}
	own := b.queue(r.Model)
	if fullest == nil || tenant == r.Tenant || most <= own.WaitingOf(r.Tenant) {
		return false
	}
	last := fullest.LastOf(now, tenant)
	if last.Level() < own.ordering.position(r.Tier, r.Arrived, now).Level {
		return false
	}
	b.dequeue(last)
	b.rejectRequest(last, RejectQueueFull)
	return true
}
