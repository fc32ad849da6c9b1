// Package breaker keeps requests away from a replica that answers its probes but fails what
// it is sent: a circuit breaker with outlier ejection. It also bounds how much is retried.
//
// It decides nothing about a fleet: which of its replicas can be done without, the balancer
// knows. Times are those of core; requests are known by their numbers, which are never 0.
package breaker

import (
	"fmt"
	"time"
)

// Breaker is the circuit breaker of one replica. Closed, it counts failures in a row. Ejected,
// nothing is sent to the replica for a while; then one request may try it: served, everything
// is as before; failed, it is ejected for twice as long. The zero value is closed.
type Breaker struct {
	failures int           // in a row
	countedAt  time.Duration // when the last of them was counted; what was sent before counts no more
	ejections    int           // times it was ejected since it last served a request
	ejectedUntil    time.Duration // it is ejected until then
	trial    uint64        // after that: the one request that tries it; 0 = none
}

// Ejected reports whether nothing may be sent to the replica now.
func (k *Breaker) Ejected(now time.Duration) bool { return k.ejections > 0 && now < k.ejectedUntil }

// Open reports whether the replica was ejected and has served nothing since.
func (k *Breaker) Open() bool { return k.ejections > 0 }

// TrialRunning reports whether a request is trying the replica already.
func (k *Breaker) TrialRunning() bool { return k.ejections > 0 && k.trial != 0 }

// IsTrial reports whether it is this request.
func (k *Breaker) IsTrial(request uint64) bool { return k.trial == request }

// Failures is the number of failures in a row.
func (k *Breaker) Failures() int { return k.failures }

// Failed counts the failure of a request that was sent at a time. Requests that were under
// way together fail together when a connection breaks: that is one failure.
func (k *Breaker) Failed(now, sentAt time.Duration) {
	if k.failures == 0 || sentAt >= k.countedAt {
		k.failures++
		k.countedAt = now
	}
}

// Undo takes back a failure that the replica was not the cause of; before and after are the
// states around it. What others counted since stays.
func (k *Breaker) Undo(before, after Breaker) {
	if after.failures > before.failures {
		k.failures = max(0, k.failures-1)
	}
	if after.ejections > before.ejections && k.ejections == after.ejections && k.ejectedUntil == after.ejectedUntil {
		k.ejections, k.ejectedUntil = before.ejections, before.ejectedUntil
	}
}

// Served closes it.
func (k *Breaker) Served() { *k = Breaker{} }

// Sent notes that a request went to the replica.
func (k *Breaker) Sent(request uint64) {
	if k.ejections > 0 && k.trial == 0 {
		k.trial = request
	}
}

// Ended notes that a request is no longer there, whatever came of it.
func (k *Breaker) Ended(request uint64) {
	if k.trial == request {
		k.trial = 0
	}
}

// Eject ejects the replica: for first, each time in a row twice as long, longest at most.
func (k *Breaker) Eject(now, first, longest time.Duration) {
	k.ejectedUntil = now + min(longest, first<<min(k.ejections, 16))
	k.ejections++
}

// EndBy ends an ejection at a time at the latest; one request may try the replica then.
func (k *Breaker) EndBy(until time.Duration) { k.ejectedUntil = min(k.ejectedUntil, until) }

// Reason says why nothing is sent to the replica; empty when that is not so.
func (k *Breaker) Reason(now time.Duration) string {
	if !k.Ejected(now) {
		return ""
	}
	return fmt.Sprintf("ejected after %d failures in a row, for %s more", k.failures, (k.ejectedUntil - now).Round(100*time.Millisecond))
}
