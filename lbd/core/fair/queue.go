// Package fair holds the requests that wait for one model, in an order, and shares the turns
// among tenants by the tokens that they were served.
//
// Who goes next is settled in two steps. The order says whose turn it is among all that wait,
// and thereby which levels may go: that of this request and the more urgent ones. Of the
// tenants with a request in those levels the one that was served the fewest tokens then sends
// the first of its own, in order. So a tenant that floods the queue delays itself, and a lower
// level never takes the turn of a higher one. With one tenant the order alone decides.
//
// Read queue.go first, then tenants.go (accounts of what tenants were served) and parked.go
// (deferred requests that are held apart). round.go lists many turns at once, sorted.go is
// the tree below it all. The queue knows nothing of tiers, prompts and replicas.
package fair

import "time"

// Levels is how many kinds of requests fairness keeps apart, the most urgent first.
const Levels = 3

// Never is after every time.
const Never = time.Duration(1<<63 - 1)

// Position is where an order puts a request until Turns, when it is asked again. Stages go
// one after the other, the lowest first, and in each the earliest due.
type Position struct {
	Level, Stage int
	Due, ChangesAt   time.Duration
}

// Order says where a request stands at a time.
type Order[R any] func(r *R, now time.Duration) Position

// Item is what a request carries for its queue. Its owner embeds it, calls Init, and changes
// the exported fields only while the item does not wait.
type Item[R any] struct {
	Seq     uint64        // breaks ties
	Rank    time.Duration // among those that the order does not tell apart the least goes first
	Arrived time.Duration // since when it waits

	request       *R
	tenant   string
	deferred bool
	turnCost     int64

	position Position
	account  *account[R] // of its tenant, while it waits or runs
	charged  int64       // tokens, in all
	taken    uint64      // the last round that has it
	parked   bool
	inLevel  node[Item[R]]
	inTenant node[Item[R]]
	inChanging  node[Item[R]]

	nextRunning, prevRunning *Item[R]
}

// Init says whose request it is, whether it may be held apart, and how many tokens its turn
// costs its tenant.
func (r *Item[R]) Init(of *R, tenant string, deferred bool, fare int64) {
	r.request, r.tenant, r.deferred, r.turnCost = of, tenant, deferred, fare
}

// Level is the level in which it waits, or waited last.
func (r *Item[R]) Level() int { return r.position.Level }

// Parked reports whether it is held apart.
func (r *Item[R]) Parked() bool { return r.parked }

// Charged is how many tokens its tenant is charged for it.
func (r *Item[R]) Charged() int64 { return r.charged }

// Queue holds the waiting requests of one model. A request that comes back takes its old
// place again.
type Queue[R any] struct {
	order    Order[R]
	n        int
	deferred int           // of those
	parked    parkedRequests[R]      // n does not count them
	clock    time.Duration // the latest time heard of
	levels   [Levels]level[R]
	changing  sorted[Item[R]] // those whose standing changes with time
	tenants[R]
	running *Item[R] // those that were sent, linked by nextRunning
	round   round[R]
}

// level is the waiting requests of one level and the tenants that have some.
type level[R any] struct {
	requests sorted[Item[R]]    // in order
	accounts sorted[account[R]] // the least served first
}

// Init makes the queue empty, with an order.
func (q *Queue[R]) Init(order Order[R]) {
	*q = Queue[R]{order: order}
	for i := range q.levels {
		q.levels[i].requests = sorted[Item[R]]{node: func(r *Item[R]) *node[Item[R]] { return &r.inLevel }, before: (*Item[R]).before}
		q.levels[i].accounts = sorted[account[R]]{node: func(a *account[R]) *node[account[R]] { return &a.shares[i].inLevel }, before: (*account[R]).before}
	}
	q.changing = sorted[Item[R]]{node: func(r *Item[R]) *node[Item[R]] { return &r.inChanging }, before: (*Item[R]).changesBefore}
	q.tenants = newTenants[R]()
	q.parked = newParkedRequests[R]()
}

// Len is how many requests wait; those held apart do not count.
func (q *Queue[R]) Len() int { return q.n }

// Deferred is how many of them are deferred.
func (q *Queue[R]) Deferred() int { return q.deferred }

// before orders requests by their standing, then by rank; Seq breaks ties.
func (r *Item[R]) before(o *Item[R]) bool {
	switch {
	case r.position.Stage != o.position.Stage:
		return r.position.Stage < o.position.Stage
	case r.position.Due != o.position.Due:
		return r.position.Due < o.position.Due
	case r.Rank != o.Rank:
		return r.Rank < o.Rank
	}
	return r.Seq < o.Seq
}

func (r *Item[R]) changesBefore(o *Item[R]) bool {
	if r.position.ChangesAt != o.position.ChangesAt {
		return r.position.ChangesAt < o.position.ChangesAt
	}
	return r.Seq < o.Seq
}

// Push puts r at its place.
func (q *Queue[R]) Push(now time.Duration, r *Item[R]) {
	q.clock = max(q.clock, now)
	a := q.openAccount(r.tenant)
	if a.waiting == 0 {
		q.raiseAccount(a)
	}
	q.changeCounts(r, 1)
	r.account = a
	q.changeWaiting(a, 1)
	q.addToLevel(r)
}

// Remove takes r out; it must wait, or be held apart.
func (q *Queue[R]) Remove(r *Item[R]) {
	if r.parked {
		q.parked.remove(r)
		q.markIdle(r.account)
		return
	}
	q.removeFromLevel(r)
	q.changeCounts(r, -1)
	q.lastLeft = r.account
	q.changeWaiting(r.account, -1)
	q.markIdle(r.account)
}

// changeCounts notes that one request more, or with -1 one less, waits.
func (q *Queue[R]) changeCounts(r *Item[R], by int) {
	q.n += by
	if r.deferred {
		q.deferred += by
	}
}

// addToLevel puts r where the order says.
func (q *Queue[R]) addToLevel(r *Item[R]) {
	r.position = q.order(r.request, q.clock)
	l, share := &q.levels[r.position.Level], &r.account.shares[r.position.Level]
	l.requests.add(r)
	if share.requests.root == nil {
		l.accounts.add(r.account)
	}
	share.requests.add(r)
	if r.position.ChangesAt != Never {
		q.changing.add(r)
	}
}

// removeFromLevel takes r from where it stands.
func (q *Queue[R]) removeFromLevel(r *Item[R]) {
	l, share := &q.levels[r.position.Level], &r.account.shares[r.position.Level]
	l.requests.remove(r)
	share.requests.remove(r)
	if share.requests.root == nil {
		l.accounts.remove(r.account)
	}
	if r.position.ChangesAt != Never {
		q.changing.remove(r)
	}
}

// advance lets time pass: requests whose standing turned stand anew.
func (q *Queue[R]) advance(now time.Duration) {
	q.clock = max(q.clock, now)
	for r := q.changing.first(); r != nil && r.position.ChangesAt <= q.clock; r = q.changing.first() {
		q.removeFromLevel(r)
		q.addToLevel(r)
	}
}

// First appends up to n requests to into, in the order in which they are to be
// tried now, as if each were sent in turn.
func (q *Queue[R]) First(into []*R, now time.Duration, n int) []*R {
	q.advance(now)
	n = min(n, q.n)
	if n == 0 {
		return into
	}
	if q.byWaiting.first().waiting == q.n {
		return q.firstOfOneTenant(into, n)
	}
	q.round.start(q)
	for range n {
		into = append(into, q.round.next(q).request)
	}
	return into
}

// firstOfOneTenant is First where one tenant alone waits.
func (q *Queue[R]) firstOfOneTenant(into []*R, n int) []*R {
	var heads [Levels]*Item[R]
	for i := range q.levels {
		heads[i] = q.levels[i].requests.first()
	}
	for range n {
		i := earliestLevel(&heads, Levels-1)
		into = append(into, heads[i].request)
		heads[i] = q.levels[i].requests.next(heads[i])
	}
	return into
}

// earliestLevel is the level, up to the last one allowed, whose request goes first;
// one of them must have one.
func earliestLevel[R any](heads *[Levels]*Item[R], last int) int {
	best := -1
	for i, r := range heads[:last+1] {
		if r != nil && (best < 0 || r.before(heads[best])) {
			best = i
		}
	}
	return best
}

// Waiting appends every request to into but those held apart.
func (q *Queue[R]) Waiting(into []*R) []*R {
	for i := range q.levels {
		l := &q.levels[i].requests
		for r := l.first(); r != nil; r = l.next(r) {
			into = append(into, r.request)
		}
	}
	return into
}

// OldestWait is how long the request that came first has waited, held apart or not; 0 for an
// empty queue.
func (q *Queue[R]) OldestWait(now time.Duration) (wait time.Duration) {
	for i := range q.levels {
		l := &q.levels[i].requests
		for r := l.first(); r != nil; r = l.next(r) {
			wait = max(wait, now-r.Arrived)
		}
	}
	if r := q.parked.requests.first(); r != nil {
		wait = max(wait, now-r.Arrived)
	}
	return wait
}

// Reorder gives the queue another order. change may change the rank of a request before it
// stands anew.
func (q *Queue[R]) Reorder(now time.Duration, order Order[R], change func(r *R)) {
	all := make([]*Item[R], 0, q.n)
	for i := range q.levels {
		l := &q.levels[i].requests
		for r := l.first(); r != nil; r = l.next(r) {
			all = append(all, r)
		}
	}
	for _, r := range all {
		q.removeFromLevel(r)
	}
	q.clock, q.order = max(q.clock, now), order
	for _, r := range all {
		change(r.request)
		q.addToLevel(r)
	}
}
