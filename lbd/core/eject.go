package core

import (
	"time"

	"skyserve/lbd/core/breaker"
)

// This file decides which of a model's replicas are ejected; lbd/core/breaker counts failures.

// countFailure counts a failure of r at t, and ejects t if it failed too often and enough other
// replicas remain. trial: r was the trial request of an ejected replica; then t is ejected without
// these conditions.
func (b *Balancer) countFailure(now time.Duration, t *target, r *request, trial bool) {
	if t.peer || b.cfg.EjectAfter <= 0 {
		return
	}
	k := &t.breaker
	k.Failed(now, r.sentAt)
	if !trial && (k.Failures() < b.cfg.EjectAfter || k.Ejected(now) || !b.mayEject(now, t)) {
		return
	}
	k.Eject(now, b.cfg.EjectTime, b.cfg.MaxEjectTime)
	b.ejections++
	b.bounceStranded(now)
}

// mayEject reports whether t may be ejected: at most Config.EjectShare of a model's replicas are
// ejected at once. Replicas that are not live, or have served nothing since an ejection, count as
// ejected. When most of them fail, the cause is probably not the replica, and a bad replica
// is better than none.
func (b *Balancer) mayEject(now time.Duration, t *target) bool {
	all, out := 0, 0
	for _, o := range b.replicas {
		if o.model != t.model || o.draining {
			continue
		}
		all++
		if o != t && (o.breaker.Open() || !o.live(now, &b.cfg)) {
			out++
		}
	}
	return float64(out+1) <= b.cfg.EjectShare*float64(all)
}

// allowTrials allows one request at each ejected replica of a model that no other replica here
// serves.
func (b *Balancer) allowTrials(now time.Duration) {
	for _, t := range b.replicas {
		if t.breaker.Ejected(now) && !b.modelServedLocally(now, t.model) {
			t.breaker.EndBy(now)
		}
	}
}

// reconfigureBreakers ends or shortens ejections that exceed the new configuration.
func (b *Balancer) reconfigureBreakers(now time.Duration) {
	for _, t := range b.replicas {
		switch k := &t.breaker; {
		case b.cfg.EjectAfter <= 0:
			*k = breaker.Breaker{}
		case k.Ejected(now):
			k.EndBy(now + b.cfg.MaxEjectTime)
		}
	}
}
