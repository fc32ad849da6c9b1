package fair

import "time"

const (
	// maxIdleAccounts bounds the tenants that are remembered without any request
	// here; a model has at most this many, and those with one.
	maxIdleAccounts = 1024
	// idleTTL is how long such a tenant is remembered: far longer than a client
	// pauses, and one that stays away longer begins where those that wait are.
	idleTTL = 10 * time.Minute
)

// account is what a tenant was served of one model.
type account[R any] struct {
	tenant string
	created   uint64 // breaks ties: names decide nothing
	// The meter counts tokens, of prompts and answers: an estimate of the prompt from the
	// send on, of the answer while it is generated, the engine's own figures from the
	// end on (see charge.go). It is the virtual counter of "Fairness in Serving Large
	// Language Models" (VTC), with answers weighed as prompts.
	meter
	parked       parkedShare[R]
	waiting     int
	outstanding int
	shares      [Levels]share[R]
	byWaiting   node[account[R]]

	idleSince  time.Duration
	idle       bool
	prev, next *account[R] // among the idle, the longest idle first

	// For the round at hand.
	round   uint64
	servedAfter    int64 // served, once all that the round has taken is sent
	cursors [Levels]*Item[R]
}

// share is an account's requests in one level.
type share[R any] struct {
	requests sorted[Item[R]]
	inLevel  node[account[R]]
}

// before puts the tenant that was served least first.
func (a *account[R]) before(o *account[R]) bool {
	if a.served != o.served {
		return a.served < o.served
	}
	return a.created < o.created
}

// moreWaitingBefore puts the tenant with the most waiting requests first.
func (a *account[R]) moreWaitingBefore(o *account[R]) bool {
	if a.waiting != o.waiting {
		return a.waiting > o.waiting
	}
	return a.created < o.created
}

// tenants is the accounts of one model.
type tenants[R any] struct {
	accounts  map[string]*account[R] // never ranged over
	byWaiting sorted[account[R]]     // those with requests waiting
	created      uint64
	lastLeft      *account[R] // the last whose request left the queue
	lastLeftServed     int64       // what it was served, once it is forgotten

	idleFirst, idleLast *account[R]
	idleCount           int
	spare               *account[R] // forgotten ones to use again, linked by next
}

func newTenants[R any]() tenants[R] {
	return tenants[R]{
		accounts:  map[string]*account[R]{},
		byWaiting: sorted[account[R]]{node: func(a *account[R]) *node[account[R]] { return &a.byWaiting }, before: (*account[R]).moreWaitingBefore},
	}
}

// openAccount is a tenant's account, made when needed.
func (t *tenants[R]) openAccount(tenant string) *account[R] {
	a := t.accounts[tenant]
	if a == nil {
		if a = t.spare; a != nil {
			t.spare = a.next
		} else {
			a = &account[R]{}
		}
		t.created++
		*a = account[R]{tenant: tenant, created: t.created, parked: newParkedShare[R]()}
		for i := range a.shares {
			a.shares[i].requests = sorted[Item[R]]{node: func(r *Item[R]) *node[Item[R]] { return &r.inTenant }, before: (*Item[R]).before}
		}
		t.accounts[tenant] = a
	}
	t.clearIdle(a)
	return a
}

// WaitingOf is how many requests of a tenant wait.
func (t *tenants[R]) WaitingOf(tenant string) int {
	if a := t.accounts[tenant]; a != nil {
		return a.waiting
	}
	return 0
}

// changeWaiting changes how many requests of a wait.
func (t *tenants[R]) changeWaiting(a *account[R], by int) {
	if a.waiting > 0 {
		t.byWaiting.remove(a)
	}
	if a.waiting += by; a.waiting > 0 {
		t.byWaiting.add(a)
	}
}

// markIdle notes that a has nothing here any more, if that is so, and forgets whom
// there is no room to remember.
func (q *Queue[R]) markIdle(a *account[R]) {
	if a.waiting > 0 || a.outstanding > 0 || a.parked.n > 0 || a.idle {
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
	if t.idleCount++; t.idleCount > maxIdleAccounts {
		t.forgetAccount(t.idleFirst)
	}
}

// clearIdle takes a off the idle, if it is there.
func (t *tenants[R]) clearIdle(a *account[R]) {
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

// forgetAccount drops an idle account.
func (t *tenants[R]) forgetAccount(a *account[R]) {
	t.clearIdle(a)
	if t.lastLeft == a {
		t.lastLeft, t.lastLeftServed = nil, a.served
	}
	delete(t.accounts, a.tenant)
	*a = account[R]{next: t.spare}
	t.spare = a
}

// ForgetIdle forgets the tenants that had nothing here for long.
func (q *Queue[R]) ForgetIdle(now time.Duration) {
	q.clock = max(q.clock, now)
	for a := q.idleFirst; a != nil && q.clock-a.idleSince >= idleTTL; a = q.idleFirst {
		q.forgetAccount(a)
	}
}

// raiseAccount keeps an account from having saved anything up while none of its requests
// waited: it begins where the least served of those that wait is or, when none
// waits, where the last that left was.
func (q *Queue[R]) raiseAccount(a *account[R]) {
	least, any := int64(0), false
	for i := range q.levels {
		if o := q.levels[i].accounts.first(); o != nil && (!any || o.served < least) {
			least, any = o.served, true
		}
	}
	switch {
	case any:
	case q.lastLeft == a:
		return // nobody else was served meanwhile
	case q.lastLeft != nil:
		least = q.lastLeft.served
	default:
		least = q.lastLeftServed
	}
	a.raiseFloor(least)
}

// chargeAccount adds tokens to what a was served.
func (q *Queue[R]) chargeAccount(a *account[R], tokens int64) {
	if tokens == 0 {
		return
	}
	for i := range q.levels {
		if a.shares[i].requests.root != nil {
			q.levels[i].accounts.remove(a)
		}
	}
	a.add(tokens)
	for i := range q.levels {
		if a.shares[i].requests.root != nil {
			q.levels[i].accounts.add(a)
		}
	}
}

// Sent notes that r goes to a target.
func (q *Queue[R]) Sent(r *Item[R]) {
	q.clearIdle(r.account)
	r.account.outstanding++
	r.nextRunning, r.prevRunning = q.running, nil
	if q.running != nil {
		q.running.prevRunning = r
	}
	q.running = r
}

// Ended notes that r is at no target any more.
func (q *Queue[R]) Ended(r *Item[R]) {
	if r.nextRunning != nil {
		r.nextRunning.prevRunning = r.prevRunning
	}
	if r.prevRunning != nil {
		r.prevRunning.nextRunning = r.nextRunning
	} else {
		q.running = r.nextRunning
	}
	r.nextRunning, r.prevRunning = nil, nil
	r.account.outstanding--
	q.markIdle(r.account)
}

// Charge makes a number of tokens what r's tenant is charged for r in all.
func (q *Queue[R]) Charge(r *Item[R], tokens int64) {
	q.chargeAccount(r.account, tokens-r.charged)
	if r.deferred {
		q.parked.charge(r.account, tokens-r.charged)
	}
	r.charged = tokens
}

// ChargeRunning charges for the requests that were sent and have not ended; nobody is
// charged less than before.
func (q *Queue[R]) ChargeRunning(cost func(r *R) int64) {
	for r := q.running; r != nil; r = r.nextRunning {
		if tokens := cost(r.request); tokens > r.charged {
			q.Charge(r, tokens)
		}
	}
}

// Tenants is how many tenants are remembered.
func (q *Queue[R]) Tenants() int { return len(q.accounts) }

// Served is how many tokens a tenant was served.
func (q *Queue[R]) Served(tenant string) int64 {
	if a := q.accounts[tenant]; a != nil {
		return a.served
	}
	return 0
}

// TenantWithMostWaiting is the tenant with the most waiting requests, and how many; 0 when none waits.
func (q *Queue[R]) TenantWithMostWaiting() (tenant string, waiting int) {
	if a := q.byWaiting.first(); a != nil {
		return a.tenant, a.waiting
	}
	return "", 0
}

// LastOf is the waiting request of a tenant that goes after all its others; nil where none
// waits.
func (q *Queue[R]) LastOf(now time.Duration, tenant string) *R {
	a := q.accounts[tenant]
	if a == nil || a.waiting == 0 {
		return nil
	}
	q.advance(now)
	var last *Item[R]
	for i := range a.shares {
		if r := a.shares[i].requests.last(); r != nil && (last == nil || last.before(r)) {
			last = r
		}
	}
	return last.request
}
