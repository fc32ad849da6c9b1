package core

import (
	"time"

	"skyserve/lbd/core/breaker"
	"skyserve/lbd/policy"
)

// A replica that immediately fails every request appears idle and would attract the traffic of the
// others. Therefore a request that failed early still counts in every load that a policy or a peer
// receives, for the time that it would have been at its replica. Push modes use the actual number
// of outstanding requests.

// maxFailedRequests bounds the failed requests that count at a replica: 100 KB, and far more
// requests than a replica runs at once.
const maxFailedRequests = 4096

// failedRequest is a request that failed and still counts as load.
type failedRequest struct {
	until              time.Duration
	context, remaining int // tokens
}

// failedLoad contains the failed requests of a replica, ordered by until, with their number and
// sums.
type failedLoad struct {
	count, context, remaining int
	list                      []failedRequest
}

// addLoad counts a request until the given time, and at least as long as the request added before it, so that the list
// remains ordered.
func (d *failedLoad) addLoad(until time.Duration, context, remaining int) {
	if n := len(d.list); n > 0 {
		until = max(until, d.list[n-1].until)
	}
	if len(d.list) >= maxFailedRequests {
		d.dropOldest(1)
	}
	d.list = append(d.list, failedRequest{until, context, remaining})
	d.count++
	d.context += context
	d.remaining += remaining
}

// expire drops the expired requests.
func (d *failedLoad) expire(now time.Duration) {
	n := 0
	for n < len(d.list) && d.list[n].until <= now {
		n++
	}
	d.dropOldest(n)
}

func (d *failedLoad) dropOldest(n int) {
	if n == 0 {
		return
	}
	for _, x := range d.list[:n] {
		d.context -= x.context
		d.remaining -= x.remaining
	}
	d.count -= n
	d.list = d.list[:copy(d.list, d.list[n:])]
}

// addFailedLoad counts r, which t failed, as load of t for the expected residence time. It does
// nothing if the connection to t failed: then nothing is sent to t until its next report.
func (b *Balancer) addFailedLoad(now time.Duration, t *target, r *request) {
	if t.peer || t.unreachable {
		return
	}
	if until := r.sentAt + b.expectedResidence(t.model); until > now {
		t.failedLoad.addLoad(until, r.expectedPrompt, r.expectedPrompt+r.expectedAnswer)
	}
}

// expectedResidence returns the expected residence time of a request at a replica of a model: the
// mean over the replicas that have served a request.
func (b *Balancer) expectedResidence(model string) time.Duration {
	sum, n := time.Duration(0), time.Duration(0)
	for _, t := range b.replicas {
		if t.model == model && t.residence > 0 {
			sum += t.residence
			n++
		}
	}
	if n == 0 {
		return policy.NominalResidence(b.fastestPace(model))
	}
	return sum / n
}

// expireFailedLoad drops the expired failed requests.
func (b *Balancer) expireFailedLoad(now time.Duration) {
	for _, t := range b.replicas {
		t.failedLoad.expire(now)
	}
}

// refusal is a target that rejected a request (Outcome.Refused), with the states of its circuit
// breaker before and after.
type refusal struct {
	target        *target
	before, after breaker.Breaker
	faultUnclear  bool // Outcome.FaultUnclear: not counted as a failure
}

// onlyRefused reports whether every target at which r failed in this round rejected it.
func (r *request) onlyRefused() bool {
	return len(r.refusals) > 0 && len(r.refusals) == len(r.avoid)
}

// undoFailures reverts the failures that the circuit breakers counted for r: all targets rejected
// it, so the request is the cause.
func (r *request) undoFailures() {
	for _, f := range r.refusals {
		f.target.breaker.Undo(f.before, f.after)
	}
}

// countWrongRefusals counts a failure of each target that rejected r as if it were invalid: another
// target has served it.
func (b *Balancer) countWrongRefusals(now time.Duration, r *request) {
	for _, f := range r.refusals {
		if f.faultUnclear {
			b.countFailure(now, f.target, r, f.target.breaker.Open())
		}
	}
}
