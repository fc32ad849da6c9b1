package core

import "time"

const (
	// idleAccounts bounds the tenants that are remembered without any request
	// here; a model has at most this many, and those with one.
	idleAccounts = 1024
	// idleFor is how long such a tenant is remembered: far longer than a client
	// pauses, and one that stays away longer begins where those that wait are.
	idleFor = 10 * time.Minute
)

// account is what a tenant was served of one model.
type account struct {
	tenant string
	born   uint64 // breaks ties: names decide nothing
	// The meter counts tokens, of prompts and answers: an estimate of the prompt from the
	// send on, of the answer while it is generated, the engine's own figures from the
	// end on (see charge.go). It is the virtual counter of "Fairness in Serving Large
	// Language Models" (VTC), with answers weighed as prompts.
	meter
	apart       apartShare
	waiting     int
	outstanding int
	shares      [lanes]share
	byWaiting   node[account]

	idleSince  time.Duration
	idle       bool
	prev, next *account // among the idle, the longest idle first

	// For the round at hand.
	round   uint64
	will    int64 // served, once all that the round has taken is sent
	cursors [lanes]*request
}

// share is an account's requests in one lane.
type share struct {
	requests sorted[request]
	inLane   node[account]
}

// before puts the tenant that was served least first.
func (a *account) before(o *account) bool {
	if a.served != o.served {
		return a.served < o.served
	}
	return a.born < o.born
}

// longerBefore puts the tenant with the most waiting requests first.
func (a *account) longerBefore(o *account) bool {
	if a.waiting != o.waiting {
		return a.waiting > o.waiting
	}
	return a.born < o.born
}

// tenants is the accounts of one model.
type tenants struct {
	accounts  map[string]*account // never ranged over
	byWaiting sorted[account]     // those with requests waiting
	born      uint64
	left      *account // the last whose request left the queue
	floor     int64    // what it was served, once it is forgotten

	idleFirst, idleLast *account
	idleCount           int
	spare               *account // forgotten ones to use again, linked by next
}

func newTenants() tenants {
	return tenants{
		accounts:  map[string]*account{},
		byWaiting: sorted[account]{node: func(a *account) *node[account] { return &a.byWaiting }, before: (*account).longerBefore},
	}
}

// open is a tenant's account, made when needed.
func (t *tenants) open(tenant string) *account {
	a := t.accounts[tenant]
	if a == nil {
		if a = t.spare; a != nil {
			t.spare = a.next
		} else {
			a = &account{}
		}
		t.born++
		*a = account{tenant: tenant, born: t.born, apart: newApartShare()}
		for i := range a.shares {
			a.shares[i].requests = sorted[request]{node: func(r *request) *node[request] { return &r.inTenant }, before: (*request).before}
		}
		t.accounts[tenant] = a
	}
	t.wake(a)
	return a
}

// waitingOf is how many requests of a tenant wait.
func (t *tenants) waitingOf(tenant string) int {
	if a := t.accounts[tenant]; a != nil {
		return a.waiting
	}
	return 0
}

// longest is the account with the most waiting requests; nil when none waits.
func (t *tenants) longest() *account { return t.byWaiting.first() }

// recount changes how many requests of a wait.
func (t *tenants) recount(a *account, by int) {
	if a.waiting > 0 {
		t.byWaiting.remove(a)
	}
	if a.waiting += by; a.waiting > 0 {
		t.byWaiting.add(a)
	}
}

// rest notes that a has nothing here any more, if that is so, and forgets whom
// there is no room to remember.
func (q *queue) rest(a *account) {
	if a.waiting > 0 || a.outstanding > 0 || a.apart.n > 0 || a.idle {
		return
	}
	t := &q.tenants
	a.idle, a.idleSince, a.prev, a.next = true, q.clock, t.idleLast, nil
	if t.idleLast != nil {
		t.idleLast.next = a
	} else {
		t.idleFirst = a
	}
	t.idleLast = a
	if t.idleCount++; t.idleCount > idleAccounts {
		t.forget(t.idleFirst)
	}
}

// wake takes a off the idle, if it is there.
func (t *tenants) wake(a *account) {
	if !a.idle {
		return
	}
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		t.idleFirst = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	} else {
		t.idleLast = a.prev
	}
	t.idleCount--
	a.idle, a.prev, a.next = false, nil, nil
}

// forget drops an idle account.
func (t *tenants) forget(a *account) {
	t.wake(a)
	if t.left == a {
		t.left, t.floor = nil, a.served
	}
	delete(t.accounts, a.tenant)
	*a = account{next: t.spare}
	t.spare = a
}

// forgetIdle drops the accounts that were idle for long.
func (q *queue) forgetIdle(now time.Duration) {
	q.clock = max(q.clock, now)
	for a := q.idleFirst; a != nil && q.clock-a.idleSince >= idleFor; a = q.idleFirst {
		q.forget(a)
	}
}

// lift keeps an account from having saved anything up while none of its requests
// waited: it begins where the least served of those that wait is or, when none
// waits, where the last that left was.
func (q *queue) lift(a *account) {
	least, any := int64(0), false
	for i := range q.lanes {
		if o := q.lanes[i].accounts.first(); o != nil && (!any || o.served < least) {
			least, any = o.served, true
		}
	}
	switch {
	case any:
	case q.left == a:
		return // nobody else was served meanwhile
	case q.left != nil:
		least = q.left.served
	default:
		least = q.floor
	}
	a.lift(least)
}

// charge adds tokens to what a was served.
func (q *queue) charge(a *account, tokens int64) {
	if tokens == 0 {
		return
	}
	for i := range q.lanes {
		if a.shares[i].requests.root != nil {
			q.lanes[i].accounts.remove(a)
		}
	}
	a.add(tokens)
	for i := range q.lanes {
		if a.shares[i].requests.root != nil {
			q.lanes[i].accounts.add(a)
		}
	}
}

// fare is what a request is charged when it is sent. Even an empty prompt costs
// something, so that turns are taken.
func (r *request) fare() int64 { return int64(max(1, r.tokens())) }

// sent charges r's tenant for its prompt, or for what an earlier try generated if that
// is more.
func (q *queue) sent(r *request) {
	q.wake(r.account)
	r.account.outstanding++
	q.run(r)
	q.chargeFor(r, max(r.spent, r.fare()))
}

// ended notes that r is at no target any more.
func (q *queue) ended(r *request) {
	q.stop(r)
	r.account.outstanding--
	q.rest(r.account)
}

// lastOf is the request of an account that goes after all its others.
func (q *queue) lastOf(now time.Duration, a *account) *request {
	q.advance(now)
	var last *request
	for i := range a.shares {
		if r := a.shares[i].requests.last(); r != nil && (last == nil || last.before(r)) {
			last = r
		}
	}
	return last
}

// makeRoom keeps a tenant that filled the queue from locking r out: the last
// request of the tenant with the most waiting for one model gives way, if it has
// more of them than r's tenant and that request is of no more urgent tier. Deferred
// work that is held apart gives way before, see evictApart.
func (b *Balancer) makeRoom(now time.Duration, r *request) bool {
	if b.evictApart(r) {
		return true
	}
	var fullest *queue
	for _, q := range b.queues {
		if a := q.longest(); a != nil && (fullest == nil || a.waiting > fullest.longest().waiting) {
			fullest = q
		}
	}
	if fullest == nil {
		return false
	}
	a, own := fullest.longest(), b.queue(r.Model)
	if a.tenant == r.Tenant || a.waiting <= own.waitingOf(r.Tenant) {
		return false
	}
	last := fullest.lastOf(now, a)
	if last.lane < own.ordering.place(r.Tier, r.arrived, now).lane {
		return false
	}
	b.dequeue(last)
	b.reject(last, RejectQueueFull)
	return true
}
