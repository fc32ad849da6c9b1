// Package breaker is a circuit breaker with outlier ejection: a replica that responds to probes but
// fails requests receives no requests for a while. The package also limits the number of retries.
//
// A Breaker covers one replica: the balancer decides how many replicas may be ejected. Times are
// those of core; requests are identified by their numbers, which are never 0.
package breaker

import (
	"fmt"
	"strings"
	"time"
)

// Breaker is the circuit breaker of one replica. While closed, it counts consecutive failures. When
// the replica is ejected, nothing is sent to it for a while; then one trial request is allowed. If
// the trial is served, the breaker closes; if it fails, the replica is ejected for twice as long.
// The zero value is closed.
type Breaker struct {
	failures      int           // consecutive
	lastCountedAt time.Duration // time of the last counted failure; requests sent before no longer count
	ejections     int           // number of ejections since the replica last served a request
	ejectedUntil  time.Duration // end of the ejection
	trial         uint64        // the trial request after that; 0 = none
}

// Ejected reports whether nothing may be sent to the replica now.
func (k *Breaker) Ejected(now time.Duration) bool { return k.ejections > 0 && now < k.ejectedUntil }

// Open reports whether the replica was ejected and has served nothing since.
func (k *Breaker) Open() bool { return k.ejections > 0 }

// TrialRunning reports whether a trial request is in flight.
func (k *Breaker) TrialRunning() bool { return k.ejections > 0 && k.trial != 0 }

// IsTrial reports whether a request is the trial request.
func (k *Breaker) IsTrial(request uint64) bool { return k.trial == request }

// Failures returns the number of consecutive failures.
func (k *Breaker) Failures() int { return k.failures }

// Failed counts the failure of a request that was sent at sentAt. Requests that were in flight
// together fail together when a connection breaks, which counts as one failure.
func (k *Breaker) Failed(now, sentAt time.Duration) {
	if k.failures == 0 || sentAt >= k.lastCountedAt {
		k.failures++
		k.lastCountedAt = now
	}
}

// Undo reverts a failure that the replica did not cause; before and after are the states before and
// after the failure. Failures counted since then remain counted.
func (k *Breaker) Undo(before, after Breaker) {
	if after.failures > before.failures {
		k.failures = max(0, k.failures-1)
	}
	if after.ejections > before.ejections && k.ejections == after.ejections && k.ejectedUntil == after.ejectedUntil {
		k.ejections, k.ejectedUntil = before.ejections, before.ejectedUntil
	}
}

// Served closes the breaker.
func (k *Breaker) Served() { *k = Breaker{} }

// Sent records that a request was sent to the replica.
func (k *Breaker) Sent(request uint64) {
	if k.ejections > 0 && k.trial == 0 {
		k.trial = request
	}
}

// Ended records that a request ended there, with any result.
func (k *Breaker) Ended(request uint64) {
	if k.trial == request {
		k.trial = 0
	}
}

// Eject ejects the replica. The first ejection lasts for first, each consecutive one twice as long, up to
// longest.
func (k *Breaker) Eject(now, first, longest time.Duration) {
	k.ejectedUntil = now + min(longest, first<<min(k.ejections, 16))
	k.ejections++
}

// EndBy shortens an ejection to end no later than until; then one trial request is allowed.
func (k *Breaker) EndBy(until time.Duration) { k.ejectedUntil = min(k.ejectedUntil, until) }

// reasonPrefix begins the reasons of ejected replicas, and of no others.
const reasonPrefix = "ejected "

// IsEjection reports whether the reason of a replica's state is that it is ejected: see Reason.
func IsEjection(reason string) bool { return strings.HasPrefix(reason, reasonPrefix) }

// Reason describes why nothing is sent to the replica; empty if it is not ejected.
func (k *Breaker) Reason(now time.Duration) string {
	if !k.Ejected(now) {
		return ""
	}
	return fmt.Sprintf(reasonPrefix+"after %d consecutive failures, %s remaining", k.failures, (k.ejectedUntil - now).Round(100*time.Millisecond))
}
