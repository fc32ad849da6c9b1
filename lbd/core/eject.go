package core

import (
	"time"

	"skyserve/lbd/core/breaker"
)

// What follows decides which replicas of the fleet are left out; lbd/core/breaker counts.

// countFailure counts a failure of r, which tried t where trial is set, and ejects t
// when it was one too many and enough others are left.
func (b *Balancer) countFailure(now time.Duration, t *target, r *request, trial bool) {
	if t.peer || b.cfg.EjectAfter <= 0 {
		return
	}
	k := &t.breaker
	k.Failed(now, r.sentAt)
	if !trial && (k.Failures() < b.cfg.EjectAfter || k.Ejected(now) || !b.mayEject(now, t)) {
		return
	}
	k.Eject(now, b.cfg.EjectTime, b.cfg.EjectMax)
	b.ejections++
	b.bounceStranded(now)
}

// mayEject says whether t can be done without: at most Config.EjectShare of a
// model's replicas are ejected at once, for when most of them fail the fault lies
// elsewhere, and a bad replica is better than none.
func (b *Balancer) mayEject(now time.Duration, t *target) bool {
	all, ejected := 0, 0
	for _, o := range b.replicas {
		if o.model != t.model || o.draining {
			continue
		}
		all++
		if o != t && (o.breaker.Open() || !o.live(now, &b.cfg)) {
			ejected++
		}
	}
	return float64(ejected+1) <= b.cfg.EjectShare*float64(all)
}

// allowTrials lets one request try each ejected replica of a model that nothing else
// here serves any more.
func (b *Balancer) allowTrials(now time.Duration) {
	for _, t := range b.replicas {
		if t.breaker.Ejected(now) && !b.servedLocally(now, t.model) {
			t.breaker.EndBy(now)
		}
	}
}

// reconfigureBreakers takes back the ejections that the configuration would not make.
func (b *Balancer) reconfigureBreakers(now time.Duration) {
	for _, t := range b.replicas {
		switch k := &t.breaker; {
		case b.cfg.EjectAfter <= 0:
			*k = breaker.Breaker{}
		case k.Ejected(now):
			k.EndBy(now + b.cfg.EjectMax)
		}
	}
}
