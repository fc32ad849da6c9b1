package core

import (
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core/fair"
)

// queue contains the waiting requests of one model in fair order, and the balancer's state of the
// model. A request that returns (failed, bounced) takes its previous place again.
type queue struct {
	fair.Queue[request]
	model         string
	ordering      ordering
	releasable    int           // number of deferred requests that may still be released before the next report
	chargedAt     time.Duration // time of the last charge for outstanding requests
	answerLengths answerLengths // of the model's finished requests
	evictions     evictions     // of the prompts of those requests
	// firstTokens counts the first tokens of IW-F requests of this balancer's clients,
	// lateFirstTokens those that arrived after the tier's deadline.
	firstTokens, lateFirstTokens int64
	// evaluatedSinceReport: the head of the queue was evaluated since the last report of a peer.
	// unevaluated counts the requests that were not evaluated since they were queued.
	evaluatedSinceReport bool
	unevaluated          int
	// holdRound counts the evaluations that began by ending all holds.
	holdRound int
	// detachedAt is when the last replica of the model, here or at a peer, was removed or lost; detached is false
	// before: see awaitsReport.
	detachedAt time.Duration
	detached   bool
	// forwardedAdapters counts the queued requests that a peer forwarded and that need an adapter.
	forwardedAdapters int
	// outstanding is the number of requests at targets. activeAt is the last time at which the model
	// was in use: see idle. coldAt is the last time at which requests waited for a replica to start;
	// cold means that they did at the last tick.
	outstanding      int
	activeAt, coldAt time.Duration
	// deferredOutstanding is the number of deferred requests among outstanding. interactiveAt is when the
	// last interactive request arrived; interactive is false before.
	deferredOutstanding int
	interactiveAt       time.Duration
	interactive         bool
	cold                bool
	// assignedAt is the time when a pool was last decided.
	assignedAt   time.Duration
	ownDeadlines bool // parked requests may have deadlines of their own
	sharedEngine bool // two ranks of the model belonged to one engine when last checked
}

func newQueue(model string, o ordering) *queue {
	q := &queue{model: model, ordering: o}
	q.Init(q.position)
	return q
}

// position returns the position of r in the queue's order.
func (q *queue) position(r *request, now time.Duration) fair.Position {
	from, timeToDeadline := q.deadlineOf(r)
	return q.ordering.position(r.Tier, from, timeToDeadline, now)
}

// deadlineOf returns r's deadline, as a start time and the time from it to the deadline: the request's own deadline,
// or that of its tier after its arrival.
func (q *queue) deadlineOf(r *request) (from, timeToDeadline time.Duration) {
	if r.TimeToDeadline > 0 && r.Tier == service.TierDeferred {
		return r.WaitingSince - r.Age, r.Age + r.TimeToDeadline
	}
	return r.WaitingSince, q.ordering.deadlines.For(r.Tier)
}

// pushRequest adds r at its position.
func (q *queue) pushRequest(now time.Duration, r *request) {
	q.countAdded(r)
	q.Push(now, &r.Item)
}

// removeRequest removes r, which must be queued or parked.
func (q *queue) removeRequest(r *request) {
	if !r.Parked() {
		q.countRemoved(r)
	}
	q.Remove(&r.Item)
}

// countAdded updates the counts when r is queued: it is not evaluated yet.
func (q *queue) countAdded(r *request) {
	r.evaluated = false
	q.unevaluated++
	if r.forwardedForAdapter() {
		q.forwardedAdapters++
	}
}

// countRemoved updates the counts when r, which is queued and not parked, is removed.
func (q *queue) countRemoved(r *request) {
	if !r.evaluated {
		q.unevaluated--
	}
	if r.forwardedForAdapter() {
		q.forwardedAdapters--
	}
}

// forwardedForAdapter reports whether a peer forwarded r and r needs an adapter.
func (r *request) forwardedForAdapter() bool { return r.From != "" && r.Adapter != "" }

// countFirstToken counts r's first token once, at the balancer that its client is connected to.
func (q *queue) countFirstToken(now time.Duration, r *request) {
	if r.firstTokenCounted || r.From != "" || tierLevel(r.Tier) != levelFast {
		return
	}
	r.firstTokenCounted = true
	q.firstTokens++
	if now-r.receivedAt > q.ordering.deadlines.For(r.Tier) {
		q.lateFirstTokens++
	}
}

// markEvaluated records that r was evaluated.
func (q *queue) markEvaluated(r *request) {
	if !r.evaluated {
		r.evaluated = true
		q.unevaluated--
	}
}

// initItem initialises the queue item of a request that arrived.
func (r *request) initItem(seq uint64, now time.Duration) {
	r.Item.Init(r, r.Tenant, r.Tier == service.TierDeferred, r.sendCharge())
	r.Seq, r.WaitingSince = seq, now
}

// sendCharge returns the tokens that a request is charged when it is sent. An empty prompt also costs one token, so
// that tenants alternate.
func (r *request) sendCharge() int64 { return int64(max(1, r.promptLength())) }

// recordSent charges r's tenant for its prompt or for the tokens of an earlier attempt, whichever is
// more.
func (q *queue) recordSent(r *request) {
	q.outstanding++
	if r.Tier == service.TierDeferred {
		q.deferredOutstanding++
	}
	q.Sent(&r.Item)
	q.setCharge(r, max(r.minCharge, r.sendCharge()))
}

// mayExceedQueueLimit reports whether a request that falls back to another model may exceed the queue limit: a
// replica of that model is available, so the queue is full of requests for other models. The excess is
// bounded, because a policy may hold such a request.
func (b *Balancer) mayExceedQueueLimit(now time.Duration, r *request) bool {
	if !r.Fallback || b.queued >= 2*b.cfg.QueueLimit {
		return false
	}
	for _, t := range b.replicas {
		if t.model == r.Model && t.replicaAvailable(now, &b.cfg) {
			return true
		}
	}
	return false
}

// recordEnded records that r is no longer at a target.
func (q *queue) recordEnded(r *request) {
	q.outstanding--
	if r.Tier == service.TierDeferred {
		q.deferredOutstanding--
	}
	q.Ended(&r.Item)
}

// evictForTenant evicts a request in favour of r, so that a tenant that fills the queue cannot
// block others. It evicts the last request of the tenant with the most requests waiting for one
// model. That tenant must have more than r's tenant, and the evicted request must not be more
// urgent than r. Parked requests are evicted first, see evictParked.
func (b *Balancer) evictForTenant(now time.Duration, r *request) bool {
	return b.evictParked(r) || b.evictFrom(now, r, b.queues)
}

// evictFrom is evictForTenant for the requests of some queues, without parked ones.
func (b *Balancer) evictFrom(now time.Duration, r *request, queues []*queue) bool {
	var fullest *queue
	tenant, maxWaiting := "", 0
	for _, q := range queues {
		if t, n := q.TenantWithMostWaiting(); n > maxWaiting {
			fullest, tenant, maxWaiting = q, t, n
		}
	}
	own := b.queue(r.Model)
	if fullest == nil || tenant == r.Tenant || maxWaiting <= own.WaitingOf(r.Tenant) {
		return false
	}
	last := fullest.LastOf(now, tenant)
	if last.Level() < own.position(r, now).Level {
		return false
	}
	b.dequeue(last)
	b.rejectRequest(last, RejectQueueFull)
	return true
}
