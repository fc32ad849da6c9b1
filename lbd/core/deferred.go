package core

import (
	"cmp"
	"slices"
	"time"

	"skyserve/internal/service"
)

// DeferredRule says when a deferred request (NIW) joins the others in the queue:
// SageServe's queue manager (section 6.2). Until then it is held apart, where it
// delays nobody and no scaling sees it. Each report of a replica is the signal that
// there may be room. Requests of a model whose replicas do not tell their memory, or
// that has none here, are not held apart. The zero value holds nothing apart.
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

// release is how many requests go when so much memory is in use.
func (d DeferredRule) release(utilisation float64) int {
	switch {
	case utilisation < d.TwoBelow:
		return 2
	case utilisation < d.OneBelow:
		return 1
	}
	return 0
}

// urgent is the age from which a request that is due at an age is no longer held apart.
func (d DeferredRule) urgent(due time.Duration) time.Duration {
	return time.Duration(cmp.Or(d.Wait, urgentAfter) * float64(due))
}

// on says whether anything is held apart.
func (d DeferredRule) on() bool { return d.OneBelow > 0 }

// park holds a request that came apart, if it is one of those; one that was
// forwarded here was released where it came from.
func (b *Balancer) park(now time.Duration, r *request) bool {
	if !b.cfg.Deferred.on() || r.Tier != service.TierDeferred || r.From != "" || !b.meanKV(now, r.Model).Known {
		return false
	}
	q := b.queue(r.Model)
	if q.room > 0 && len(q.parked) == 0 && q.len() == 0 {
		q.room--
		return false
	}
	r.parked = true
	q.parked = append(q.parked, r)
	b.queued++
	return true
}

// signal lets requests that are held apart go where a replica told of room; what is
// left of it is for those that come until the next report. Nothing goes while others
// wait: there is no room then.
func (b *Balancer) signal(now time.Duration, q *queue) {
	q.room = 0
	kv := b.meanKV(now, q.model)
	if !kv.Known || q.len() > 0 {
		return
	}
	q.room = b.cfg.Deferred.release(kv.Value)
	n := min(q.room, len(q.parked))
	q.room -= n
	b.unpark(now, q, n)
}

// releaseDue lets those go that are old enough to stand among interactive ones, and
// all where nobody tells whether there is room.
func (b *Balancer) releaseDue(now time.Duration, q *queue) {
	if len(q.parked) == 0 {
		return
	}
	if !b.cfg.Deferred.on() || !b.meanKV(now, q.model).Known {
		b.unpark(now, q, len(q.parked))
		return
	}
	urgent := b.cfg.Deferred.urgent(q.ordering.targets.of(service.TierDeferred))
	n := 0
	for n < len(q.parked) && now-q.parked[n].arrived >= urgent {
		n++
	}
	b.unpark(now, q, n)
}

// unpark puts the first n of those held apart into the queue.
func (b *Balancer) unpark(now time.Duration, q *queue, n int) {
	for range min(n, len(q.parked)) {
		r := q.parked[0]
		q.removeParked(r)
		q.push(now, r)
	}
}

func (q *queue) removeParked(r *request) {
	i := slices.Index(q.parked, r)
	q.parked = slices.Delete(q.parked, i, i+1)
	r.parked = false
}

// evictParked ends the request held apart that came last, of any model, for the sake
// of one that is not deferred; false when there is none.
func (b *Balancer) evictParked() bool {
	var last *request
	for _, q := range b.queues {
		if n := len(q.parked); n > 0 && (last == nil || q.parked[n-1].seq > last.seq) {
			last = q.parked[n-1]
		}
	}
	if last == nil {
		return false
	}
	b.dequeue(last)
	b.reject(last, RejectQueueFull)
	return true
}
