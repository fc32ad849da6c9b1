package core

import (
	"time"

	"skyserve/lbd/policy"
)

// A replica that fails what it is sent at once would look as if it had nothing to do,
// and draw what the others have no room for. So a request that fails early goes on to
// count at its replica, in every load that a policy or a peer sees, for as long as it
// would have taken there. Push rules look at what is really outstanding.

// mostDebts bounds how many such requests count at one replica at a time: 100 KB, and
// far more than any replica runs at once.
const mostDebts = 4096

// debt is a request that failed and still counts.
type debt struct {
	until              time.Duration
	context, remaining int // tokens
}

// debts are those of one replica, the first to end first, with how many they are and
// their sums.
type debts struct {
	count, context, remaining int
	list                      []debt
}

// add counts a request until a time; one that ends before those that are there is
// counted as long as they are.
func (d *debts) add(until time.Duration, context, remaining int) {
	if n := len(d.list); n > 0 {
		until = max(until, d.list[n-1].until)
	}
	if len(d.list) >= mostDebts {
		d.drop(1)
	}
	d.list = append(d.list, debt{until, context, remaining})
	d.count++
	d.context += context
	d.remaining += remaining
}

// expire drops what is over.
func (d *debts) expire(now time.Duration) {
	n := 0
	for n < len(d.list) && d.list[n].until <= now {
		n++
	}
	d.drop(n)
}

func (d *debts) drop(n int) {
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

// owe lets r, which t failed to serve, count there for as long as it would have taken.
// One that could not be connected to has failed nothing: it is left out until it
// reports again.
func (b *Balancer) owe(now time.Duration, t *target, r *request) {
	if t.peer || t.suspect {
		return
	}
	if until := r.sentAt + b.expectedStay(t.model); until > now {
		t.debts.add(until, r.promptCost, r.promptCost+r.answerCost)
	}
}

// expectedStay is how long a request stays at a replica of a model: the mean of those
// that have served any.
func (b *Balancer) expectedStay(model string) time.Duration {
	sum, n := time.Duration(0), time.Duration(0)
	for _, t := range b.replicas {
		if t.model == model && t.residence > 0 {
			sum += t.residence
			n++
		}
	}
	if n == 0 {
		return policy.DefaultCostConstants().Residence
	}
	return sum / n
}

// expireDebts lets time pass.
func (b *Balancer) expireDebts(now time.Duration) {
	for _, t := range b.replicas {
		t.debts.expire(now)
	}
}

// refusal is a target's refusal of a request, with its circuit breaker as it was
// before.
type refusal struct {
	target *target
	before breaker
}

// onlyRefused says whether all that r was tried at in this round refused it.
func (r *request) onlyRefused() bool {
	return len(r.refusals) > 0 && len(r.refusals) == len(r.avoid)
}

// forgive takes back what the replicas that refused r were blamed for: as all of them
// did, r is to blame.
func (r *request) forgive() {
	for _, f := range r.refusals {
		f.target.breaker.forgive(f.before)
	}
}
