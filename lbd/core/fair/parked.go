package fair

import "time"

// meter is a virtual counter of the tokens served to a tenant.
type meter struct {
	served int64
	floor  int64 // the highest value passed to raiseFloor; served is never lower
}

// addTokens counts tokens. A refund never lowers served below the floor, because the tenant would
// accumulate credit.
func (m *meter) addTokens(tokens int64) { m.served = max(m.served+tokens, m.floor) }

func (m *meter) raiseFloor(floor int64) {
	m.floor = max(m.floor, floor)
	m.served = max(m.served, floor)
}

// parkedRequests contains the parked deferred requests of a model. The next released request is the
// oldest one of the tenant that was served the fewest tokens of deferred work. Tokens of other
// tiers do not count.
type parkedRequests[R any] struct {
	n        int
	requests sorted[Item[R]]    // in order of arrival
	accounts sorted[account[R]] // those with parked requests, the fewest served tokens first
	bySize   sorted[account[R]] // the same, the most requests first
	floor    int64              // served tokens of the tenant whose request was released last; never lowered
}

// parkedAccount contains the parked requests of an account.
type parkedAccount[R any] struct {
	deferred meter // of deferred work, parked or not
	n        int
	requests sorted[Item[R]]
	inParked node[account[R]]
	bySize   node[account[R]]
}

func newParkedRequests[R any]() parkedRequests[R] {
	return parkedRequests[R]{
		requests: sorted[Item[R]]{node: func(r *Item[R]) *node[Item[R]] { return &r.inLevel }, before: (*Item[R]).arrivedBefore},
		accounts: sorted[account[R]]{node: func(a *account[R]) *node[account[R]] { return &a.parked.inParked }, before: (*account[R]).deferredServedBefore},
		bySize:   sorted[account[R]]{node: func(a *account[R]) *node[account[R]] { return &a.parked.bySize }, before: (*account[R]).moreParkedBefore},
	}
}

func newParkedAccount[R any]() parkedAccount[R] {
	return parkedAccount[R]{requests: sorted[Item[R]]{node: func(r *Item[R]) *node[Item[R]] { return &r.inTenant }, before: (*Item[R]).arrivedBefore}}
}

func (r *Item[R]) arrivedBefore(o *Item[R]) bool { return r.Seq < o.Seq }

// deferredServedBefore orders the account that was served the least deferred work first.
func (a *account[R]) deferredServedBefore(o *account[R]) bool {
	if a.parked.deferred.served != o.parked.deferred.served {
		return a.parked.deferred.served < o.parked.deferred.served
	}
	return a.created < o.created
}

// moreParkedBefore orders the account with the most parked requests first.
func (a *account[R]) moreParkedBefore(o *account[R]) bool {
	if a.parked.n != o.parked.n {
		return a.parked.n > o.parked.n
	}
	return a.created < o.created
}

// addRequest parks r. A tenant without parked requests starts with the same count as the others.
func (x *parkedRequests[R]) addRequest(r *Item[R]) {
	a := r.account
	if a.parked.n == 0 {
		floor := x.floor
		if first := x.accounts.first(); first != nil {
			floor = first.parked.deferred.served
		}
		a.parked.deferred.raiseFloor(floor)
	}
	x.requests.addItem(r)
	a.parked.requests.addItem(r)
	x.resize(a, 1)
	r.parked = true
}

func (x *parkedRequests[R]) removeRequest(r *Item[R]) {
	x.requests.removeItem(r)
	r.account.parked.requests.removeItem(r)
	x.resize(r.account, -1)
	r.parked = false
}

// resize changes the number of parked requests of an account.
func (x *parkedRequests[R]) resize(a *account[R], by int) {
	if a.parked.n > 0 {
		x.accounts.removeItem(a)
		x.bySize.removeItem(a)
	}
	x.n += by
	if a.parked.n += by; a.parked.n > 0 {
		x.accounts.addItem(a)
		x.bySize.addItem(a)
	}
}

// charge adds tokens of deferred work to those served to a.
func (x *parkedRequests[R]) charge(a *account[R], tokens int64) {
	if a.parked.n > 0 {
		x.accounts.removeItem(a)
	}
	a.parked.deferred.addTokens(tokens)
	if a.parked.n > 0 {
		x.accounts.addItem(a)
	}
}

// Park parks r.
func (q *Queue[R]) Park(r *Item[R]) {
	r.account = q.openAccount(r.tenant)
	q.parked.addRequest(r)
}

// Release queues the next parked request and returns it; nil if none is parked.
func (q *Queue[R]) Release(now time.Duration) *R {
	a := q.parked.accounts.first()
	if a == nil {
		return nil
	}
	r := a.parked.requests.first()
	q.parked.floor = max(q.parked.floor, r.account.parked.deferred.served)
	q.Unpark(now, r)
	return r.request
}

// Unpark queues r.
func (q *Queue[R]) Unpark(now time.Duration, r *Item[R]) {
	q.parked.removeRequest(r)
	q.Push(now, r)
}

// Parked returns the number of parked requests.
func (q *Queue[R]) Parked() int { return q.parked.n }

// OldestParked returns the parked request that arrived first; nil if there is none.
func (q *Queue[R]) OldestParked() *R {
	if r := q.parked.requests.first(); r != nil {
		return r.request
	}
	return nil
}

// TenantWithMostParked returns the tenant with the most parked requests and their number.
func (q *Queue[R]) TenantWithMostParked() (tenant string, parked int) {
	if a := q.parked.bySize.first(); a != nil {
		return a.tenant, a.parked.n
	}
	return "", 0
}

// ParkedOf returns the number of parked requests of a tenant.
func (t *tenants[R]) ParkedOf(tenant string) int {
	if a := t.accounts[tenant]; a != nil {
		return a.parked.n
	}
	return 0
}

// LastParked returns the parked request of a tenant that arrived last; nil if it has none.
func (q *Queue[R]) LastParked(tenant string) *R {
	if a := q.accounts[tenant]; a != nil && a.parked.n > 0 {
		return a.parked.requests.last().request
	}
	return nil
}

// AllParked appends every parked request to into, in order of arrival.
func (q *Queue[R]) AllParked(into []*R) []*R {
	for r := q.parked.requests.first(); r != nil; r = q.parked.requests.nextItem(r) {
		into = append(into, r.request)
	}
	return into
}
