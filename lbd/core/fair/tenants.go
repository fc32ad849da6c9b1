package fair

import "time"

const (
	// maxIdleAccounts is the maximum number of remembered tenants of a model without a request
	// here.
	maxIdleAccounts = 1024
	// idleTTL is the time for which such a tenant is remembered: much longer than usual gaps
	// between requests. A tenant that returns later starts like a new one.
	idleTTL = 10 * time.Minute
)

// account counts the tokens of one model that were served to a tenant.
type account[R any] struct {
	tenant  string
	created uint64 // breaks ties, so that names do not matter
	// The meter counts tokens of prompts and answers: an estimate for the prompt when the request is
	// sent, an estimate for the answer while it is generated, and the engine's own counts after the
	// end (see lbd/core/charge.go). It is the virtual counter of "Fairness in Serving Large Language
	// Models" (VTC), with answers weighted like prompts.
	meter
	parked      parkedAccount[R]
	waiting     int
	outstanding int
	levels      [Levels]accountLevel[R]
	byWaiting   node[account[R]]

	idleSince  time.Duration
	idle       bool
	prev, next *account[R] // links of the idle accounts, the longest idle first

	// For the current round.
	round       uint64
	servedAfter int64 // served tokens after all selected requests of the round are sent
	cursors     [Levels]*Item[R]
}

// accountLevel contains an account's requests in one level.
type accountLevel[R any] struct {
	requests sorted[Item[R]]
	inLevel  node[account[R]]
}

// before orders the account with the fewest served tokens first.
func (a *account[R]) before(o *account[R]) bool {
	if a.served != o.served {
		return a.served < o.served
	}
	return a.created < o.created
}

// moreWaitingBefore orders the account with the most waiting requests first.
func (a *account[R]) moreWaitingBefore(o *account[R]) bool {
	if a.waiting != o.waiting {
		return a.waiting > o.waiting
	}
	return a.created < o.created
}

// tenants contains the accounts of one model.
type tenants[R any] struct {
	accounts           map[string]*account[R] // never ranged over
	byWaiting          sorted[account[R]]     // accounts with waiting requests
	created            uint64
	lastDequeued       *account[R] // the account whose request was dequeued last
	lastDequeuedServed int64       // served tokens of that account, kept after it is forgotten

	idleFirst, idleLast *account[R]
	idleCount           int
	spare               *account[R] // forgotten accounts for reuse, linked by next
}

func newTenants[R any]() tenants[R] {
	return tenants[R]{
		accounts:  map[string]*account[R]{},
		byWaiting: sorted[account[R]]{node: func(a *account[R]) *node[account[R]] { return &a.byWaiting }, before: (*account[R]).moreWaitingBefore},
	}
}

// openAccount returns a tenant's account and creates it if needed.
func (t *tenants[R]) openAccount(tenant string) *account[R] {
	a := t.accounts[tenant]
	if a == nil {
		if a = t.spare; a != nil {
			t.spare = a.next
		} else {
			a = &account[R]{}
		}
		t.created++
		*a = account[R]{tenant: tenant, created: t.created, parked: newParkedAccount[R]()}
		for i := range a.levels {
			a.levels[i].requests = sorted[Item[R]]{node: func(r *Item[R]) *node[Item[R]] { return &r.inTenant }, before: (*Item[R]).before}
		}
		t.accounts[tenant] = a
	}
	t.clearIdle(a)
	return a
}

// WaitingOf returns the number of waiting requests of a tenant.
func (t *tenants[R]) WaitingOf(tenant string) int {
	if a := t.accounts[tenant]; a != nil {
		return a.waiting
	}
	return 0
}

// changeWaiting changes the number of waiting requests of a.
func (t *tenants[R]) changeWaiting(a *account[R], by int) {
	if a.waiting > 0 {
		t.byWaiting.removeItem(a)
	}
	if a.waiting += by; a.waiting > 0 {
		t.byWaiting.addItem(a)
	}
}

// markIdle marks a as idle if it has no requests here. If there are too many idle accounts, it
// forgets the one that has been idle longest.
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

// clearIdle removes a from the idle accounts, if it is idle.
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

// forgetAccount removes an idle account.
func (t *tenants[R]) forgetAccount(a *account[R]) {
	t.clearIdle(a)
	if t.lastDequeued == a {
		t.lastDequeued, t.lastDequeuedServed = nil, a.served
	}
	delete(t.accounts, a.tenant)
	*a = account[R]{next: t.spare}
	t.spare = a
}

// ForgetIdle removes the accounts that were idle for idleTTL.
func (q *Queue[R]) ForgetIdle(now time.Duration) {
	q.clock = max(q.clock, now)
	for a := q.idleFirst; a != nil && q.clock-a.idleSince >= idleTTL; a = q.idleFirst {
		q.forgetAccount(a)
	}
}

// raiseAccount prevents an account from accumulating credit while it has no waiting requests. Its
// count is raised to that of the least served waiting account or, if none waits, of the account
// whose request was dequeued last.
func (q *Queue[R]) raiseAccount(a *account[R]) {
	floor, found := int64(0), false
	for i := range q.levels {
		if o := q.levels[i].accounts.first(); o != nil && (!found || o.served < floor) {
			floor, found = o.served, true
		}
	}
	switch {
	case found:
	case q.lastDequeued == a:
		return // no other account was served meanwhile
	case q.lastDequeued != nil:
		floor = q.lastDequeued.served
	default:
		floor = q.lastDequeuedServed
	}
	a.raiseFloor(floor)
}

// chargeAccount adds tokens to those served to a.
func (q *Queue[R]) chargeAccount(a *account[R], tokens int64) {
	if tokens == 0 {
		return
	}
	for i := range q.levels {
		if a.levels[i].requests.root != nil {
			q.levels[i].accounts.removeItem(a)
		}
	}
	a.addTokens(tokens)
	for i := range q.levels {
		if a.levels[i].requests.root != nil {
			q.levels[i].accounts.addItem(a)
		}
	}
}

// Sent records that r was sent to a target.
func (q *Queue[R]) Sent(r *Item[R]) {
	q.clearIdle(r.account)
	r.account.outstanding++
	r.nextOutstanding, r.prevOutstanding = q.outstanding, nil
	if q.outstanding != nil {
		q.outstanding.prevOutstanding = r
	}
	q.outstanding = r
}

// Ended records that r is no longer at a target.
func (q *Queue[R]) Ended(r *Item[R]) {
	if r.nextOutstanding != nil {
		r.nextOutstanding.prevOutstanding = r.prevOutstanding
	}
	if r.prevOutstanding != nil {
		r.prevOutstanding.nextOutstanding = r.nextOutstanding
	} else {
		q.outstanding = r.nextOutstanding
	}
	r.nextOutstanding, r.prevOutstanding = nil, nil
	r.account.outstanding--
	q.markIdle(r.account)
}

// Charge sets the total number of tokens charged to r's tenant for r.
func (q *Queue[R]) Charge(r *Item[R], tokens int64) {
	q.chargeAccount(r.account, tokens-r.charged)
	if r.deferred {
		q.parked.charge(r.account, tokens-r.charged)
	}
	r.charged = tokens
}

// ChargeOutstanding charges for the outstanding requests: those that were sent and have not ended. It
// never lowers a charge.
func (q *Queue[R]) ChargeOutstanding(cost func(r *R) int64) {
	for r := q.outstanding; r != nil; r = r.nextOutstanding {
		if tokens := cost(r.request); tokens > r.charged {
			q.Charge(r, tokens)
		}
	}
}

// Tenants returns the number of remembered tenants.
func (q *Queue[R]) Tenants() int { return len(q.accounts) }

// Served returns the tokens served to a tenant.
func (q *Queue[R]) Served(tenant string) int64 {
	if a := q.accounts[tenant]; a != nil {
		return a.served
	}
	return 0
}

// TenantWithMostWaiting returns the tenant with the most waiting requests and their number; 0 if
// none waits.
func (q *Queue[R]) TenantWithMostWaiting() (tenant string, waiting int) {
	if a := q.byWaiting.first(); a != nil {
		return a.tenant, a.waiting
	}
	return "", 0
}

// LastOf returns the last waiting request of a tenant in order; nil if none waits.
func (q *Queue[R]) LastOf(now time.Duration, tenant string) *R {
	a := q.accounts[tenant]
	if a == nil || a.waiting == 0 {
		return nil
	}
	q.advance(now)
	var last *Item[R]
	for i := range a.levels {
		if r := a.levels[i].requests.last(); r != nil && (last == nil || last.before(r)) {
			last = r
		}
	}
	return last.request
}
