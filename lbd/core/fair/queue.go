// Package fair queues the requests that wait for one model, in an order, and shares the capacity
// among tenants by the tokens served to them.
//
// The next request is chosen in two steps. First, the order selects the first of all waiting
// requests. Only requests of its level and of more urgent levels may be sent now. Then, of the
// tenants with requests in those levels, the one that was served the fewest tokens sends its first
// request, in order. So a tenant that floods the queue delays only itself, and a lower level never
// replaces a higher one. With one tenant, the order alone decides.
//
// Read queue.go first, then tenants.go (accounts of the tokens served to tenants) and parked.go
// (parked requests: deferred ones that wait outside the order until the balancer releases them).
// round.go lists many next requests at once, sorted.go is the underlying tree. The queue does not
// depend on tiers, prompts or replicas.
package fair

import "time"

// Levels is the number of priority levels, the most urgent first. Tenants share capacity fairly
// inside a level, not across levels.
const Levels = 3

// Never is later than every time.
const Never = time.Duration(1<<63 - 1)

// Position is where an order places a request until ChangesAt, when the order is called again.
// Lower stages are first, and in each stage the earliest due.
type Position struct {
	Level, Stage   int
	Due, ChangesAt time.Duration
}

// Order returns the position of a request at a time.
type Order[R any] func(r *R, now time.Duration) Position

// Item is the part of a request that its queue uses. The type of the request embeds it. Its user
// calls Init, and changes the exported fields only while the item is not queued.
type Item[R any] struct {
	Seq          uint64        // breaks ties
	SortTime     time.Duration // among requests that the order treats as equal, the lowest is first
	WaitingSince time.Duration // start of its wait

	request    *R
	tenant     string
	deferred   bool
	sendCharge int64

	position   Position
	account    *account[R] // account of its tenant, while it is queued or outstanding
	charged    int64       // total tokens charged
	selectedIn uint64      // number of the last round that includes it
	parked     bool
	inLevel    node[Item[R]]
	inTenant   node[Item[R]]
	inChanging node[Item[R]]

	nextOutstanding, prevOutstanding *Item[R]
}

// Init sets the request, its tenant, whether it may be parked, and the tokens charged when it is
// sent.
func (r *Item[R]) Init(of *R, tenant string, deferred bool, sendCharge int64) {
	r.request, r.tenant, r.deferred, r.sendCharge = of, tenant, deferred, sendCharge
}

// Level returns the level of its current or last position in the queue.
func (r *Item[R]) Level() int { return r.position.Level }

// Parked reports whether it is parked.
func (r *Item[R]) Parked() bool { return r.parked }

// Charged returns the tokens that its tenant is charged for it.
func (r *Item[R]) Charged() int64 { return r.charged }

// Queue contains the waiting requests of one model. A request that is queued again has its previous
// place.
type Queue[R any] struct {
	order    Order[R]
	n        int
	deferred int               // number of deferred requests in n
	parked   parkedRequests[R] // not included in n
	clock    time.Duration     // the latest time passed to a method
	levels   [Levels]level[R]
	changing sorted[Item[R]] // those whose position changes with time
	tenants[R]
	outstanding *Item[R] // those that were sent and have not ended, linked by nextOutstanding
	round       round[R]
}

// level contains the waiting requests of one level and their tenants.
type level[R any] struct {
	requests sorted[Item[R]]    // in order
	accounts sorted[account[R]] // the one served the fewest tokens first
}

// Init resets the queue to empty, with an order.
func (q *Queue[R]) Init(order Order[R]) {
	*q = Queue[R]{order: order}
	for i := range q.levels {
		q.levels[i].requests = sorted[Item[R]]{node: func(r *Item[R]) *node[Item[R]] { return &r.inLevel }, before: (*Item[R]).before}
		q.levels[i].accounts = sorted[account[R]]{node: func(a *account[R]) *node[account[R]] { return &a.levels[i].inLevel }, before: (*account[R]).before}
	}
	q.changing = sorted[Item[R]]{node: func(r *Item[R]) *node[Item[R]] { return &r.inChanging }, before: (*Item[R]).changesBefore}
	q.tenants = newTenants[R]()
	q.parked = newParkedRequests[R]()
}

// Len returns the number of waiting requests, without parked ones.
func (q *Queue[R]) Len() int { return q.n }

// Deferred returns the number of deferred requests in Len.
func (q *Queue[R]) Deferred() int { return q.deferred }

// before orders requests by position, then by SortTime; Seq breaks ties.
func (r *Item[R]) before(o *Item[R]) bool {
	switch {
	case r.position.Stage != o.position.Stage:
		return r.position.Stage < o.position.Stage
	case r.position.Due != o.position.Due:
		return r.position.Due < o.position.Due
	case r.SortTime != o.SortTime:
		return r.SortTime < o.SortTime
	}
	return r.Seq < o.Seq
}

func (r *Item[R]) changesBefore(o *Item[R]) bool {
	if r.position.ChangesAt != o.position.ChangesAt {
		return r.position.ChangesAt < o.position.ChangesAt
	}
	return r.Seq < o.Seq
}

// Push adds r at its place.
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

// Remove removes r, which must be queued or parked.
func (q *Queue[R]) Remove(r *Item[R]) {
	if r.parked {
		q.parked.removeRequest(r)
		q.markIdle(r.account)
		return
	}
	q.removeFromLevel(r)
	q.changeCounts(r, -1)
	q.lastDequeued = r.account
	q.changeWaiting(r.account, -1)
	q.markIdle(r.account)
}

// changeCounts adds by (1 or -1) to the counts that include r.
func (q *Queue[R]) changeCounts(r *Item[R], by int) {
	q.n += by
	if r.deferred {
		q.deferred += by
	}
}

// addToLevel adds r at the position that the order returns.
func (q *Queue[R]) addToLevel(r *Item[R]) {
	r.position = q.order(r.request, q.clock)
	l, own := &q.levels[r.position.Level], &r.account.levels[r.position.Level]
	l.requests.addItem(r)
	if own.requests.root == nil {
		l.accounts.addItem(r.account)
	}
	own.requests.addItem(r)
	if r.position.ChangesAt != Never {
		q.changing.addItem(r)
	}
}

// removeFromLevel removes r from its position.
func (q *Queue[R]) removeFromLevel(r *Item[R]) {
	l, own := &q.levels[r.position.Level], &r.account.levels[r.position.Level]
	l.requests.removeItem(r)
	own.requests.removeItem(r)
	if own.requests.root == nil {
		l.accounts.removeItem(r.account)
	}
	if r.position.ChangesAt != Never {
		q.changing.removeItem(r)
	}
}

// advance moves the requests whose position changed with time.
func (q *Queue[R]) advance(now time.Duration) {
	q.clock = max(q.clock, now)
	for r := q.changing.first(); r != nil && r.position.ChangesAt <= q.clock; r = q.changing.first() {
		q.removeFromLevel(r)
		q.addToLevel(r)
	}
}

// First appends up to n requests to into, in the order in which to try them now. Each is chosen as
// if the previous ones had been sent.
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
		into = append(into, q.round.nextRequest(q).request)
	}
	return into
}

// firstOfOneTenant is First when only one tenant has requests.
func (q *Queue[R]) firstOfOneTenant(into []*R, n int) []*R {
	var heads [Levels]*Item[R]
	for i := range q.levels {
		heads[i] = q.levels[i].requests.first()
	}
	for range n {
		i := earliestLevel(&heads, Levels-1)
		into = append(into, heads[i].request)
		heads[i] = q.levels[i].requests.nextItem(heads[i])
	}
	return into
}

// earliestLevel returns the level, up to last, whose head is first in the order. At least one head
// must not be nil.
func earliestLevel[R any](heads *[Levels]*Item[R], last int) int {
	best := -1
	for i, r := range heads[:last+1] {
		if r != nil && (best < 0 || r.before(heads[best])) {
			best = i
		}
	}
	return best
}

// Waiting appends every request except parked ones to into.
func (q *Queue[R]) Waiting(into []*R) []*R {
	for i := range q.levels {
		l := &q.levels[i].requests
		for r := l.first(); r != nil; r = l.nextItem(r) {
			into = append(into, r.request)
		}
	}
	return into
}

// OldestWait returns the waiting time of the oldest request, including parked ones; 0 for an empty
// queue.
func (q *Queue[R]) OldestWait(now time.Duration) (wait time.Duration) {
	wait = q.OldestActiveWait(now)
	if r := q.parked.requests.first(); r != nil {
		wait = max(wait, now-r.WaitingSince)
	}
	return wait
}

// OldestActiveWait is OldestWait without parked requests.
func (q *Queue[R]) OldestActiveWait(now time.Duration) (wait time.Duration) {
	for i := range q.levels {
		l := &q.levels[i].requests
		for r := l.first(); r != nil; r = l.nextItem(r) {
			wait = max(wait, now-r.WaitingSince)
		}
	}
	return wait
}

// Reorder changes the order of the queue. change may change the SortTime of a request before
// it is placed again.
func (q *Queue[R]) Reorder(now time.Duration, order Order[R], change func(r *R)) {
	all := make([]*Item[R], 0, q.n)
	for i := range q.levels {
		l := &q.levels[i].requests
		for r := l.first(); r != nil; r = l.nextItem(r) {
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
