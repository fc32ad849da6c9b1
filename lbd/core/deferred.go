package core

import (
	"cmp"
	"math"
	"time"

	"skyserve/internal/service"
)

// DeferredRule decides when a deferred request (NIW) joins the others in the queue, like
// SageServe's queue manager (section 6.2). Until then it is parked: it delays no other request and
// does not cause scaling. Each report of a replica signals that there may be capacity. Requests are
// not parked for a model without replicas here, or whose replicas do not report KV utilisation. The
// zero value parks nothing; with only MaxParkedShare set, all requests stay parked until UrgentAfter.
// Balancers and the fleet simulation use it.
type DeferredRule struct {
	// ReleaseOneBelow and ReleaseTwoBelow are the KV utilisations, 0..1, of a model's replicas below which one and
	// two requests are released.
	ReleaseOneBelow float64 `json:"one_below"`
	ReleaseTwoBelow float64 `json:"two_below"`
	// MaxParkedShare is the share, 0..1, of the time until its deadline for which a request may be parked; 0 =
	// the paper's 10 of 24 hours.
	MaxParkedShare float64 `json:"wait,omitempty"`
	// MaxPerReplica limits deferred requests while interactive requests arrive: all replicas of the model together
	// have at most this number for each ready replica; 0 = unlimited. SageServe has no such bound: its only signal is memory, and a replica with
	// memory to spare may still have no time to spare for prefills and decode steps. Requests older
	// than UrgentAfter are sent in any case. The fleet simulation, whose instances have no such
	// steps, ignores it.
	MaxPerReplica int `json:"beside,omitempty"`
}

// DefaultDeferredPerReplica is the default of DeferredRule.MaxPerReplica; docs/results.md has its effect.
const DefaultDeferredPerReplica = 1

// interactiveWindow is the time after the last interactive request for which MaxPerReplica applies. It is longer than
// the gap between two requests of a light load.
const interactiveWindow = 10 * time.Second

// DefaultDeferred returns the paper's rule, one below 60 % and two below 50 %, with DefaultDeferredPerReplica.
func DefaultDeferred() DeferredRule {
	return DeferredRule{ReleaseOneBelow: 0.60, ReleaseTwoBelow: 0.50, MaxPerReplica: DefaultDeferredPerReplica}
}

// AutoDeferred returns the rule for the strategy auto: one below 65 %, two below 55 %. The strategy auto
// uses more of a replica's memory than the paper's strategies, and sends interactive requests to other
// regions only from 70 %. Requests may be parked for 20 of 24 hours, so that every request can wait for
// a night, when even the minimum number of replicas has spare capacity. With the paper's 10 hours,
// requests released because of their age often ran at the next peak.
func AutoDeferred() DeferredRule {
	return DeferredRule{ReleaseOneBelow: 0.65, ReleaseTwoBelow: 0.55, MaxParkedShare: 20.0 / 24, MaxPerReplica: DefaultDeferredPerReplica}
}

// ReleaseCount returns the number of requests to release at a KV utilisation, 0..1.
func (d DeferredRule) ReleaseCount(utilisation float64) int {
	switch {
	case utilisation < d.ReleaseTwoBelow:
		return 2
	case utilisation < d.ReleaseOneBelow:
		return 1
	}
	return 0
}

// UrgentAfter returns the age from which a request is no longer parked; due is the time from its
// arrival to its deadline.
func (d DeferredRule) UrgentAfter(due time.Duration) time.Duration {
	return time.Duration(cmp.Or(d.MaxParkedShare, urgentAfter) * float64(due))
}

// Enabled reports whether the rule can park requests.
func (d DeferredRule) Enabled() bool { return d != DeferredRule{} }

// parkRequest parks an arriving request if the rule applies to it. A request forwarded here was
// already released by its origin.
func (b *Balancer) parkRequest(now time.Duration, r *request) bool {
	if !b.cfg.Deferred.Enabled() || r.Tier != service.TierDeferred || r.From != "" || !b.meanKV(now, r.Model).Known {
		return false
	}
	q := b.queue(r.Model)
	if q.releasable > 0 && q.Parked() == 0 && q.Len() == 0 && b.deferredCapacity(now, q) > 0 {
		q.releasable--
		return false
	}
	q.Park(&r.Item)
	q.ownDeadlines = q.ownDeadlines || r.TimeToDeadline > 0
	q.activeAt = now
	b.queued++
	return true
}

// releaseParked releases parked requests when a replica reported capacity. Requests that arrive before
// the next report may use the remaining releases. Nothing is released while other requests wait, because
// then there is no capacity. Each request is sent before the next one is chosen, so that the choice
// includes its tokens.
func (b *Balancer) releaseParked(now time.Duration, q *queue) {
	q.releasable = 0
	kv := b.meanKV(now, q.model)
	if !kv.Known || q.Len() > 0 {
		return
	}
	for q.releasable = b.cfg.Deferred.ReleaseCount(kv.Value); q.releasable > 0 && q.Parked() > 0 && q.Len() == 0 && b.deferredCapacity(now, q) > 0; q.releasable-- {
		q.countAdded(q.Release(now))
		b.placeWaiting(now, q)
	}
}

// deferredCapacity returns how many more deferred requests may be at the replicas of a model.
func (b *Balancer) deferredCapacity(now time.Duration, q *queue) int {
	if b.cfg.Deferred.MaxPerReplica == 0 || !q.interactive || now-q.interactiveAt > interactiveWindow {
		return math.MaxInt
	}
	ready := 0
	for _, t := range b.replicas {
		if t.model == q.model && t.ready {
			ready++
		}
	}
	return b.cfg.Deferred.MaxPerReplica*ready - q.deferredOutstanding
}

// noteInteractive records the arrival of a request that is not deferred.
func (q *queue) noteInteractive(now time.Duration, r *request) {
	if r.Tier != service.TierDeferred {
		q.interactive, q.interactiveAt = true, now
	}
}

// releaseDueParked releases parked requests that are old enough to join interactive ones, and all
// of them if no replica reports KV utilisation.
func (b *Balancer) releaseDueParked(now time.Duration, q *queue) {
	if q.Parked() == 0 {
		q.ownDeadlines = false
		return
	}
	if !b.cfg.Deferred.Enabled() || !b.meanKV(now, q.model).Known {
		for r := q.OldestParked(); r != nil; r = q.OldestParked() {
			b.unpark(now, q, r)
		}
		return
	}
	if q.ownDeadlines {
		for _, r := range q.AllParked(nil) {
			if from, timeToDeadline := q.deadlineOf(r); now-from >= b.cfg.Deferred.UrgentAfter(timeToDeadline) {
				b.unpark(now, q, r)
			}
		}
		return
	}
	urgent := b.cfg.Deferred.UrgentAfter(q.ordering.deadlines.For(service.TierDeferred))
	for r := q.OldestParked(); r != nil && now-r.WaitingSince >= urgent; r = q.OldestParked() {
		b.unpark(now, q, r)
	}
}

func (b *Balancer) unpark(now time.Duration, q *queue, r *request) {
	q.Unpark(now, &r.Item)
	q.countAdded(r)
}

// evictParked evicts a parked request in favour of r: the last one of the tenant with the most
// parked requests of one model. If r is deferred too, it does so only if that tenant has more of
// them than r's tenant. It reports whether a request was evicted.
func (b *Balancer) evictParked(r *request) bool {
	var fullest *queue
	tenant, maxParked := "", 0
	for _, q := range b.queues {
		if t, n := q.TenantWithMostParked(); n > maxParked {
			fullest, tenant, maxParked = q, t, n
		}
	}
	if fullest == nil || r.Tier == service.TierDeferred && (tenant == r.Tenant || maxParked <= b.queue(r.Model).ParkedOf(r.Tenant)) {
		return false
	}
	last := fullest.LastParked(tenant)
	b.dequeue(last)
	b.rejectRequest(last, RejectQueueFull)
	return true
}
