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

// park holds a request that came apart, if it is one of those; one that was
// forwarded here was released where it came from.
func (b *Balancer) park(now time.Duration, r *request) bool {
	if !b.cfg.Deferred.On() || r.Tier != service.TierDeferred || r.From != "" || !b.meanKV(now, r.Model).Known {
		return false
	}
	q := b.queue(r.Model)
	if q.room > 0 && q.apart.n == 0 && q.len() == 0 {
		q.room--
		return false
	}
	r.account = q.open(r.Tenant)
	q.apart.add(r)
	b.queued++
	return true
}

// signal lets requests that are held apart go where a replica told of room; what is
// left of it is for those that come until the next report. Nothing goes while others
// wait: there is no room then. Each is sent before the next is chosen, so that it
// counts for its tenant.
func (b *Balancer) signal(now time.Duration, q *queue) {
	q.room = 0
	kv := b.meanKV(now, q.model)
	if !kv.Known || q.len() > 0 {
		return
	}
	for q.room = b.cfg.Deferred.Release(kv.Value); q.room > 0 && q.apart.n > 0 && q.len() == 0; q.room-- {
		r := q.apart.next()
		q.apart.released(r)
		q.unpark(now, r)
		b.drain(now, q)
	}
}

// releaseDue lets those go that are old enough to stand among interactive ones, and
// all where nobody tells whether there is room.
func (b *Balancer) releaseDue(now time.Duration, q *queue) {
	if q.apart.n == 0 {
		return
	}
	urgent := time.Duration(0)
	if b.cfg.Deferred.On() && b.meanKV(now, q.model).Known {
		urgent = b.cfg.Deferred.UrgentAfter(q.ordering.targets.of(service.TierDeferred))
	}
	for r := q.apart.requests.first(); r != nil && now-r.arrived >= urgent; r = q.apart.requests.first() {
		q.unpark(now, r)
	}
}

// unpark puts a request that is held apart into the queue.
func (q *queue) unpark(now time.Duration, r *request) {
	q.apart.remove(r)
	q.push(now, r)
}

// evictApart ends a request that is held apart for the sake of r: of the tenant that
// has the most of one model, the one that came last. To another deferred request it
// gives way only if its tenant has more of them than r's. It reports whether one did.
func (b *Balancer) evictApart(r *request) bool {
	var fullest *queue
	for _, q := range b.queues {
		if a := q.apart.bySize.first(); a != nil && (fullest == nil || a.apart.n > fullest.apart.bySize.first().apart.n) {
			fullest = q
		}
	}
	if fullest == nil {
		return false
	}
	a := fullest.apart.bySize.first()
	if r.Tier == service.TierDeferred && (a.tenant == r.Tenant || a.apart.n <= b.queue(r.Model).apartOf(r.Tenant)) {
		return false
	}
	last := a.apart.requests.last()
	b.dequeue(last)
	b.reject(last, RejectQueueFull)
	return true
}
