package core

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

// apart is the deferred requests of a model that are held apart (see DeferredRule).
// The tenant that was served the fewest tokens of deferred work releases the next, its
// oldest; what it was served of other tiers does not count.
type apart struct {
	n        int
	requests sorted[request] // in the order in which they came
	accounts sorted[account] // of those that have some, the least served first
	bySize   sorted[account] // and the one with the most first
	floor    int64           // what the last that released one had been served
}

// apartShare is what an account has held apart.
type apartShare struct {
	batch    meter // of deferred work, whether it was held apart or not
	n        int
	requests sorted[request]
	inApart  node[account]
	bySize   node[account]
}

func newApart() apart {
	return apart{
		requests: sorted[request]{node: func(r *request) *node[request] { return &r.inLane }, before: (*request).cameBefore},
		accounts: sorted[account]{node: func(a *account) *node[account] { return &a.apart.inApart }, before: (*account).batchBefore},
		bySize:   sorted[account]{node: func(a *account) *node[account] { return &a.apart.bySize }, before: (*account).moreApart},
	}
}

func newApartShare() apartShare {
	return apartShare{requests: sorted[request]{node: func(r *request) *node[request] { return &r.inTenant }, before: (*request).cameBefore}}
}

func (r *request) cameBefore(o *request) bool { return r.seq < o.seq }

// batchBefore puts the tenant first that was served the least of deferred work.
func (a *account) batchBefore(o *account) bool {
	if a.apart.batch.served != o.apart.batch.served {
		return a.apart.batch.served < o.apart.batch.served
	}
	return a.born < o.born
}

// moreApart puts the tenant first that has the most requests held apart.
func (a *account) moreApart(o *account) bool {
	if a.apart.n != o.apart.n {
		return a.apart.n > o.apart.n
	}
	return a.born < o.born
}

// add holds r apart. A tenant that had nothing there begins where the others are.
func (x *apart) add(r *request) {
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
func (x *apart) remove(r *request) {
	x.requests.remove(r)
	r.account.apart.requests.remove(r)
	x.resize(r.account, -1)
	r.parked = false
}

// resize changes how many requests an account has there.
func (x *apart) resize(a *account, by int) {
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

// next is the request to release next; there must be one.
func (x *apart) next() *request { return x.accounts.first().apart.requests.first() }

// released notes that r goes on, for the tenants that come when nothing is held apart.
func (x *apart) released(r *request) { x.floor = max(x.floor, r.account.apart.batch.served) }

// charge adds tokens of deferred work to what a was served of it.
func (x *apart) charge(a *account, tokens int64) {
	if a.apart.n > 0 {
		x.accounts.remove(a)
	}
	a.apart.batch.add(tokens)
	if a.apart.n > 0 {
		x.accounts.add(a)
	}
}

// all appends every request to into, in the order in which they came.
func (x *apart) all(into []*request) []*request {
	for r := x.requests.first(); r != nil; r = x.requests.next(r) {
		into = append(into, r)
	}
	return into
}

// apartOf is how many requests of a tenant are held apart.
func (t *tenants) apartOf(tenant string) int {
	if a := t.accounts[tenant]; a != nil {
		return a.apart.n
	}
	return 0
}
