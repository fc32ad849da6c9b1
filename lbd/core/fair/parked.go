package fair

import "time"

// meter is a virtual counter of the tokens that a tenant was served.
type meter struct {
	served int64
	floor int64 // the most that lift was ever called with: served never falls below
}

// add counts tokens. What is given back never takes it below where it was lifted to:
// that would be saved up.
func (m *meter) add(tokens int64) { m.served = max(m.served+tokens, m.floor) }

func (m *meter) raiseFloor(least int64) {
	m.floor = max(m.floor, least)
	m.served = max(m.served, least)
}

// parked is the deferred requests of a model that are held apart.
// The tenant that was served the fewest tokens of deferred work releases the next, its
// oldest; what it was served of other tiers does not count.
type parkedRequests[R any] struct {
	n        int
	requests sorted[Item[R]]    // in the order in which they came
	accounts sorted[account[R]] // of those that have some, the least served first
	bySize   sorted[account[R]] // and the one with the most first
	floor    int64              // what the last that released one had been served
}

// parkedShare is what an account has held apart.
type parkedShare[R any] struct {
	deferred    meter // of deferred work, whether it was held apart or not
	n        int
	requests sorted[Item[R]]
	inParked  node[account[R]]
	bySize   node[account[R]]
}

func newParkedRequests[R any]() parkedRequests[R] {
	return parkedRequests[R]{
		requests: sorted[Item[R]]{node: func(r *Item[R]) *node[Item[R]] { return &r.inLevel }, before: (*Item[R]).arrivedBefore},
		accounts: sorted[account[R]]{node: func(a *account[R]) *node[account[R]] { return &a.parked.inParked }, before: (*account[R]).deferredServedBefore},
		bySize:   sorted[account[R]]{node: func(a *account[R]) *node[account[R]] { return &a.parked.bySize }, before: (*account[R]).moreParkedBefore},
	}
}

func newParkedShare[R any]() parkedShare[R] {
	return parkedShare[R]{requests: sorted[Item[R]]{node: func(r *Item[R]) *node[Item[R]] { return &r.inTenant }, before: (*Item[R]).arrivedBefore}}
}

func (r *Item[R]) arrivedBefore(o *Item[R]) bool { return r.Seq < o.Seq }

// deferredServedBefore puts the tenant first that was served the least of deferred work.
func (a *account[R]) deferredServedBefore(o *account[R]) bool {
	if a.parked.deferred.served != o.parked.deferred.served {
		return a.parked.deferred.served < o.parked.deferred.served
	}
	return a.created < o.created
}

// moreParkedBefore puts the tenant first that has the most requests held apart.
func (a *account[R]) moreParkedBefore(o *account[R]) bool {
	if a.parked.n != o.parked.n {
		return a.parked.n > o.parked.n
	}
	return a.created < o.created
}

// add holds r apart. A tenant that had nothing there begins where the others are.
func (x *parkedRequests[R]) add(r *Item[R]) {
	a := r.account
	if a.parked.n == 0 {
		least := x.floor
		if first := x.accounts.first(); first != nil {
			least = first.parked.deferred.served
		}
		a.parked.deferred.raiseFloor(least)
	}
	x.requests.add(r)
	a.parked.requests.add(r)
	x.resize(a, 1)
	r.parked = true
}

// remove takes r out.
func (x *parkedRequests[R]) remove(r *Item[R]) {
	x.requests.remove(r)
	r.account.parked.requests.remove(r)
	x.resize(r.account, -1)
	r.parked = false
}

// resize changes how many requests an account has there.
func (x *parkedRequests[R]) resize(a *account[R], by int) {
	if a.parked.n > 0 {
		x.accounts.remove(a)
		x.bySize.remove(a)
	}
	x.n += by
	if a.parked.n += by; a.parked.n > 0 {
		x.accounts.add(a)
		x.bySize.add(a)
	}
}

// chargeAccount adds tokens of deferred work to what a was served of it.
func (x *parkedRequests[R]) charge(a *account[R], tokens int64) {
	if a.parked.n > 0 {
		x.accounts.remove(a)
	}
	a.parked.deferred.add(tokens)
	if a.parked.n > 0 {
		x.accounts.add(a)
	}
}

// Park holds r apart.
func (q *Queue[R]) Park(r *Item[R]) {
	r.account = q.openAccount(r.tenant)
	q.parked.add(r)
}

// Release lets the request go on that goes next of those held apart; nil where none is.
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

// Unpark lets r wait like the others.
func (q *Queue[R]) Unpark(now time.Duration, r *Item[R]) {
	q.parked.remove(r)
	q.Push(now, r)
}

// Parked is how many requests are held apart.
func (q *Queue[R]) Parked() int { return q.parked.n }

// OldestParked is the one of them that came first; nil where there is none.
func (q *Queue[R]) OldestParked() *R {
	if r := q.parked.requests.first(); r != nil {
		return r.request
	}
	return nil
}

// TenantWithMostParked is the tenant that has the most of them, and how many.
func (q *Queue[R]) TenantWithMostParked() (tenant string, parked int) {
	if a := q.parked.bySize.first(); a != nil {
		return a.tenant, a.parked.n
	}
	return "", 0
}

// ParkedOf is how many of them a tenant has.
func (t *tenants[R]) ParkedOf(tenant string) int {
	if a := t.accounts[tenant]; a != nil {
		return a.parked.n
	}
	return 0
}

// LastParked is the one of a tenant that came last; nil where it has none.
func (q *Queue[R]) LastParked(tenant string) *R {
	if a := q.accounts[tenant]; a != nil && a.parked.n > 0 {
		return a.parked.requests.last().request
	}
	return nil
}

// AllParked appends every one of them to into, in the order in which they came.
func (q *Queue[R]) AllParked(into []*R) []*R {
	for r := q.parked.requests.first(); r != nil; r = q.parked.requests.next(r) {
		into = append(into, r.request)
	}
	return into
}
