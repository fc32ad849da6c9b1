package core

import (
	"cmp"
	"time"

	"skyserve/internal/service"
)

// DeferredRule says when a deferred request (NIW) joins the others in the queue:
// SageServe's queue manager (section 6.2). Until then it is held apart, where it
// delays nobody and no scaling sees it. Each report of a replica is the signal that
// there may be room. Requests of a model whose replicas do not tell their memory, or
// that has none here, are not held apart. The zero value holds nothing apart; without OneBelow all is held for its time. Balancers and
// the simulation of fleets go by it.
type DeferredRule struct {
	// OneBelow and TwoBelow are the KV utilisations of a model's replicas, 0..1, below
	// which one and two requests go.
	OneBelow float64 `json:"one_below"`
	TwoBelow float64 `json:"two_below"`
	// Wait is the share, 0..1, of the time until a request is due for which it may be held
	// apart; 0 = the paper's 10 of 24 hours.
	Wait float64 `json:"wait,omitempty"`
}

// DefaultDeferred is the paper's: one below 60 %, two below 50 %.
func DefaultDeferred() DeferredRule { return DeferredRule{OneBelow: 0.60, TwoBelow: 0.50} }

// AutoDeferred is for the strategy auto: one below 65 %, two below 55 %, for it fills
// replicas further than the paper's strategies; interactive requests are sent elsewhere from
// 70 % on only. Held for 20 of 24 hours: a day has a night, in which the least number of
// replicas has room, and work that goes by its age after 10 h is often sent at the next peak
// instead.
func AutoDeferred() DeferredRule {
	return DeferredRule{OneBelow: 0.65, TwoBelow: 0.55, Wait: 20.0 / 24}
}

// Release is how many requests go when so much of the memory, 0..1, is in use.
func (d DeferredRule) Release(utilisation float64) int {
	switch {
	case utilisation < d.TwoBelow:
		return 2
	case utilisation < d.OneBelow:
		return 1
	}
	return 0
}

// UrgentAfter is the age from which a request that is due at an age is no longer held apart.
func (d DeferredRule) UrgentAfter(due time.Duration) time.Duration {
	return time.Duration(cmp.Or(d.Wait, urgentAfter) * float64(due))
}

// On says whether anything is held apart.
func (d DeferredRule) On() bool { return d != DeferredRule{} }

// parkRequest holds a request that came apart, if it is one of those; one that was
// forwarded here was released where it came from.
func (b *Balancer) parkRequest(now time.Duration, r *request) bool {
	if !b.cfg.Deferred.On() || r.Tier != service.TierDeferred || r.From != "" || !b.meanKV(now, r.Model).Known {
		return false
	}
	q := b.queue(r.Model)
	if q.releasable > 0 && q.Parked() == 0 && q.Len() == 0 {
		q.releasable--
		return false
	}
	q.Park(&r.Item)
	b.queued++
	return true
}

// releaseParked lets requests that are held apart go where a replica told of room; what is
// left of it is for those that come until the next report. Nothing goes while others
// wait: there is no room then. Each is sent before the next is chosen, so that it
// counts for its tenant.
func (b *Balancer) releaseParked(now time.Duration, q *queue) {
	q.releasable = 0
	kv := b.meanKV(now, q.model)
	if !kv.Known || q.Len() > 0 {
		return
	}
	for q.releasable = b.cfg.Deferred.Release(kv.Value); q.releasable > 0 && q.Parked() > 0 && q.Len() == 0; q.releasable-- {
		q.addReleased(q.Release(now))
		b.drain(now, q)
	}
}

// releaseDueParked lets those go that are old enough to stand among interactive ones, and
// all where nobody tells whether there is room.
func (b *Balancer) releaseDueParked(now time.Duration, q *queue) {
	if q.Parked() == 0 {
		return
	}
	urgent := time.Duration(0)
	if b.cfg.Deferred.On() && b.meanKV(now, q.model).Known {
		urgent = b.cfg.Deferred.UrgentAfter(q.ordering.targets.of(service.TierDeferred))
	}
	for r := q.OldestParked(); r != nil && now-r.Arrived >= urgent; r = q.OldestParked() {
		q.Unpark(now, &r.Item)
		q.addReleased(r)
	}
}

// addReleased notes that a request that was held apart waits with the others now.
func (q *queue) addReleased(r *request) {
	r.evaluated = false
	q.unevaluated++
}

// evictParked ends a request that is held apart for the sake of r: of the tenant that
// has the most of one model, the one that came last. To another deferred request it
// gives way only if its tenant has more of them than r's. It reports whether one did.
func (b *Balancer) evictParked(r *request) bool {
	var fullest *queue
	tenant, most := "", 0
	for _, q := range b.queues {
		if t, n := q.TenantWithMostParked(); n > most {
			fullest, tenant, most = q, t, n
		}
	}
	if fullest == nil || r.Tier == service.TierDeferred && (tenant == r.Tenant || most <= b.queue(r.Model).ParkedOf(r.Tenant)) {
		return false
	}
	last := fullest.LastParked(tenant)
	b.dequeue(last)
	b.rejectRequest(last, RejectQueueFull)
	return true
}
