package fair

import "time"

// meter is a virtual counter of the tokens that a tenant was served.
type meter struct {
	served int64
	lifted int64 // the most that lift was ever called with: served never falls below
}

// add counts tokens. What is given back never takes it below where it was lifted to:
// that would be saved up.
func (m *meter) add(tokens int64) { m.served = max(m.served+tokens, m.lifted) }

func (m *meter) lift(least int64) {
	m.lifted = max(m.lifted, least)
	m.served = max(m.served, least)
}

// apart is the deferred requests of a model that are held apart.
// The tenant that was served the fewest tokens of deferred work releases the next, its
// oldest; what it was served of other tiers does not count.
type apart[R any] struct {
	n        int
	requests sorted[Item[R]]    // in the order in which they came
	accounts sorted[account[R]] // of those that have some, the least served first
	bySize   sorted[account[R]] // and the one with the most first
	floor    int64              // what the last that released one had been served
}

// apartShare is what an account has held apart.
type apartShare[R any] struct {
	batch    meter // of deferred work, whether it was held apart or not
	n        int
	requests sorted[Item[R]]
	inApart  node[account[R]]
	bySize   node[account[R]]
}

func newApart[R any]() apart[R] {
	return apart[R]{
		requests: sorted[Item[R]]{node: func(r *Item[R]) *node[Item[R]] { return &r.inLevel }, before: (*Item[R]).cameBefore},
		accounts: sorted[account[R]]{node: func(a *account[R]) *node[account[R]] { return &a.apart.inApart }, before: (*account[R]).batchBefore},
		bySize:   sorted[account[R]]{node: func(a *account[R]) *node[account[R]] { return &a.apart.bySize }, before: (*account[R]).moreApart},
	}
}

func newApartShare[R any]() apartShare[R] {
	return apartShare[R]{requests: sorted[Item[R]]{node: func(r *Item[R]) *node[Item[R]] { return &r.inTenant }, before: (*Item[R]).cameBefore}}
}

func (r *Item[R]) cameBefore(o *Item[R]) bool { return r.Seq < o.Seq }

// batchBefore puts the tenant first that was served the least of deferred work.
func (a *account[R]) batchBefore(o *account[R]) bool {
	if a.apart.batch.served != o.apart.batch.served {
		return a.apart.batch.served < o.apart.batch.served
	}
	return a.born < o.born
}

// moreApart puts the tenant first that has the most requests held apart.
func (a *account[R]) moreApart(o *account[R]) bool {
	if a.apart.n != o.apart.n {
		return a.apart.n > o.apart.n
	}
	return a.born < o.born
}

// add holds r apart. A tenant that had nothing there begins where the others are.
func (x *apart[R]) add(r *Item[R]) {
	a := r.account
	if a.apart.n == 0 {
		least := x.floor
		if first := x.accounts.first(); first != nil {
			least = first.apart.batch.served
		}
		a.apart.batch.lift(least)
	}
	x.requests.add(r)
	a.apart.requests.add(r)
	x.resize(a, 1)
	r.parked = true
}

// remove takes r out.
func (x *apart[R]) remove(r *Item[R]) {
	x.requests.remove(r)
	r.account.apart.requests.remove(r)
	x.resize(r.account, -1)
	r.parked = false
}

// resize changes how many requests an account has there.
func (x *apart[R]) resize(a *account[R], by int) {
	if a.apart.n > 0 {
		x.accounts.remove(a)
		x.bySize.remove(a)
	}
	x.n += by
	if a.apart.n += by; a.apart.n > 0 {
		x.accounts.add(a)
		x.bySize.add(a)
	}
}

// charge adds tokens of deferred work to what a was served of it.
func (x *apart[R]) charge(a *account[R], tokens int64) {
	if a.apart.n > 0 {
		x.accounts.remove(a)
	}
	a.apart.batch.add(tokens)
	if a.apart.n > 0 {
		x.accounts.add(a)
	}
}

// Park holds r apart.
func (q *Queue[R]) Park(r *Item[R]) {
	r.account = q.open(r.tenant)
	q.apart.add(r)
}

// Release lets the request go on that goes next of those held apart; nil where none is.
func (q *Queue[R]) Release(now time.Duration) *R {
	a := q.apart.accounts.first()
	if a == nil {
		return nil
	}
	r := a.apart.requests.first()
	q.apart.floor = max(q.apart.floor, r.account.apart.batch.served)
	q.Unpark(now, r)
	return r.of
}

// Unpark lets r wait like the others.
func (q *Queue[R]) Unpark(now time.Duration, r *Item[R]) {
	q.apart.remove(r)
	q.Push(now, r)
}

// Parked is how many requests are held apart.
func (q *Queue[R]) Parked() int { return q.apart.n }

// OldestParked is the one of them that came first; nil where there is none.
func (q *Queue[R]) OldestParked() *R {
	if r := q.apart.requests.first(); r != nil {
		return r.of
	}
	return nil
}

// FullestParked is the tenant that has the most of them, and how many.
func (q *Queue[R]) FullestParked() (tenant string, parked int) {
	if a := q.apart.bySize.first(); a != nil {
		return a.tenant, a.apart.n
	}
	return "", 0
}

// ParkedOf is how many of them a tenant has.
func (t *tenants[R]) ParkedOf(tenant string) int {
	if a := t.accounts[tenant]; a != nil {
		return a.apart.n
	}
	return 0
}

// LastParked is the one of a tenant that came last; nil where it has none.
func (q *Queue[R]) LastParked(tenant string) *R {
	if a := q.accounts[tenant]; a != nil && a.apart.n > 0 {
		return a.apart.requests.last().of
	}
	return nil
}

// AllParked appends every one of them to into, in the order in which they came.
func (q *Queue[R]) AllParked(into []*R) []*R {
	for r := q.apart.requests.first(); r != nil; r = q.apart.requests.next(r) {
		into = append(into, r.of)
	}
	return into
}
