package core

import (
	"fmt"
	"time"
)

// breaker keeps requests away from a replica that answers its probes but fails
// what it is sent (a circuit breaker with outlier ejection). Closed, it counts
// failures in a row; at Config.EjectAfter of them the replica is ejected for a
// while; then one request may try it: served, everything is as before; failed, it
// is ejected for twice as long, at most Config.EjectMost.
type breaker struct {
	failures int           // in a row
	counted  time.Duration // when the last of them was counted; what was sent before counts no more
	trips    int           // times it was ejected since it last served a request
	until    time.Duration // it is ejected until then
	trial    *request      // after that: the one request that tries it
}

// ejected says whether nothing may be sent there now.
func (k *breaker) ejected(now time.Duration) bool { return k.trips > 0 && now < k.until }

// tried says whether a request is trying it already.
func (k *breaker) tried() bool { return k.trips > 0 && k.trial != nil }

// failed counts a failure of r. Requests that were under way together fail
// together when a connection breaks: that is one failure.
func (k *breaker) failed(now time.Duration, r *request) {
	if k.failures == 0 || r.sentAt >= k.counted {
		k.failures++
		k.counted = now
	}
}

// undoFailure takes back a failure that the target was not the cause of; before and after
// are the states around it. What others counted since stays.
func (k *breaker) undoFailure(before, after breaker) {
	if after.failures > before.failures {
		k.failures = max(0, k.failures-1)
	}
	if after.trips > before.trips && k.trips == after.trips && k.until == after.until {
		k.trips, k.until = before.trips, before.until
	}
}

// served closes it.
func (k *breaker) served() { *k = breaker{} }

// sent notes that r went there.
func (k *breaker) sent(r *request) {
	if k.trips > 0 && k.trial == nil {
		k.trial = r
	}
}

// left notes that r is no longer there, whatever came of it.
func (k *breaker) left(r *request) {
	if k.trial == r {
		k.trial = nil
	}
}

// blame counts a failure of r, which tried t where trial is set, and ejects t
// when it was one too many and enough others are left.
func (b *Balancer) blame(now time.Duration, t *target, r *request, trial bool) {
	if t.peer || b.cfg.EjectAfter <= 0 {
		return
	}
	k := &t.breaker
	k.failed(now, r)
	if !trial && (k.failures < b.cfg.EjectAfter || k.ejected(now) || !b.mayEject(now, t)) {
		return
	}
	k.until = now + min(b.cfg.EjectMost, b.cfg.EjectTime<<min(k.trips, 16))
	k.trips++
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
		if o != t && (o.breaker.trips > 0 || !o.live(now, &b.cfg)) {
			ejected++
		}
	}
	return float64(ejected+1) <= b.cfg.EjectShare*float64(all)
}

// readmit lets one request try each ejected replica of a model that nothing else
// here serves any more.
func (b *Balancer) readmit(now time.Duration) {
	for _, t := range b.replicas {
		if t.breaker.ejected(now) && !b.servedHere(now, t.model) {
			t.breaker.until = now
		}
	}
}

// reason says why nothing is sent there; empty when that is not so.
func (k *breaker) reason(now time.Duration) string {
	if !k.ejected(now) {
		return ""
	}
	return fmt.Sprintf("ejected after %d failures in a row, for %s more", k.failures, (k.until - now).Round(100*time.Millisecond))
}

// retryBudget bounds how many requests are sent a second time, so that retries
// cannot multiply the load of a fleet that is failing as a whole: a share of what
// arrives, with a stock that the death of one full replica does not use up.
type retryBudget struct {
	stock float64
}

// earn adds what an arrival allows.
func (r *retryBudget) earn(c *Config) { r.stock = min(float64(c.RetryBurst), r.stock+c.RetryShare) }

// spend takes a retry out of the stock, and says whether there was one.
func (r *retryBudget) spend(c *Config) bool {
	if c.RetryBurst <= 0 {
		return true
	}
	if r.stock < 1 {
		return false
	}
	r.stock--
	return true
}
