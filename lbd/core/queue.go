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
	// firstTokens counts the first tokens of IW-F requests of this balancer's clients,
	// lateFirstTokens those that arrived after the tier's target.
	firstTokens, lateFirstTokens int64
	// evaluatedSinceReport: the head of the queue was evaluated since the last report of a peer.
	// unevaluated counts the requests that were not evaluated since they were queued.
	evaluatedSinceReport bool
	unevaluated          int
	// assignedAt is the time when a pool was last decided.
	assignedAt   time.Duration
	sharedEngine bool // two ranks of the model belonged to one engine when last checked
}

func newQueue(model string, o ordering) *queue {
	q := &queue{model: model, ordering: o}
	q.Init(q.position)
	return q
}

// position returns the position of r in the queue's order.
func (q *queue) position(r *request, now time.Duration) fair.Position {
	return q.ordering.position(r.Tier, r.Arrived, now)
}

// pushRequest adds r at its position.
func (q *queue) pushRequest(now time.Duration, r *request) {
	r.evaluated = false
	q.unevaluated++
	q.Push(now, &r.Item)
}

// removeRequest removes r, which must be queued or parked.
func (q *queue) removeRequest(r *request) {
	if !r.Parked() && !r.evaluated {
		q.unevaluated--
	}
	q.Remove(&r.Item)
}

// countFirstToken counts r's first token once, at the balancer that its client is connected to.
func (q *queue) countFirstToken(now time.Duration, r *request) {
	if r.firstTokenCounted || r.From != "" || levelOf(r.Tier) != levelFast {
		return
	}
	r.firstTokenCounted = true
	q.firstTokens++
	if now-r.receivedAt > q.ordering.targets.For(r.Tier) {
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
	r.Seq, r.Arrived = seq, now
}

// sendCharge returns the tokens that a request is charged when it is sent. An empty prompt also costs one token, so
// that tenants alternate.
func (r *request) sendCharge() int64 { return int64(max(1, r.promptLength())) }

// chargeSent charges r's tenant for its prompt, or for the tokens of an earlier attempt if there
// were more.
func (q *queue) chargeSent(r *request) {
	q.Sent(&r.Item)
	q.setCharge(r, max(r.minCharge, r.sendCharge()))
}

// evictForTenant evicts a request in favour of r, so that a tenant that fills the queue cannot
// block others. It evicts the last request of the tenant with the most requests waiting for one
// model. That tenant must have more than r's tenant, and the evicted request must not be more
// urgent than r. Parked requests are evicted first, see evictParked.
func (b *Balancer) evictForTenant(now time.Duration, r *request) bool {
	if b.evictParked(r) {
		return true
	}
	var fullest *queue
	tenant, maxWaiting := "", 0
	for _, q := range b.queues {
		if t, n := q.TenantWithMostWaiting(); n > maxWaiting {
			fullest, tenant, maxWaiting = q, t, n
		}
	}
	own := b.queue(r.Model)
	if fullest == nil || tenant == r.Tenant || maxWaiting <= own.WaitingOf(r.Tenant) {
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
