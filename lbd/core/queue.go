package core

import (
	"time"

	"skyserve/internal/service"
)

// queue holds the waiting requests of one model. A request that comes back
// (failed, bounced) takes its old place again.
//
// Who goes next is settled in two steps. The order (Config.Order) says whose
// turn it is among all that wait, and thereby which tiers may go: that of this
// request and the more urgent ones. Of the tenants with a request of those tiers
// the one that was served the fewest tokens then sends the first of its own, in
// order. So a tenant that floods the queue delays itself, and a lower tier never
// takes the turn of a higher one. Under fcfs, which knows no tiers, all requests
// are of one. With one tenant the order alone decides.
type queue struct {
	model    string
	ordering ordering
	n        int
	deferred int           // of those, NIW
	apart    apart         // n does not count them
	room     int           // how many more of those the last report has room for
	clock    time.Duration // the latest time heard of
	lanes    [lanes]lane
	turning  sorted[request] // those whose standing changes with time
	tenants
	running   *request      // those at a target, linked by nextRunning
	chargedAt time.Duration // when they were last charged for
	answers   answers       // of the model's requests that ended
	// firsts counts the first tokens of IW-F requests of clients here, late those of
	// them that came after the tier's target.
	firsts, late int64
	// passed: the front of it was weighed since the last news of a peer; unweighed
	// counts those that never were since they came.
	passed bool
	// assignedAt is when a whole pool of it was last decided on.
	assignedAt time.Duration
	barrier    bool // some of its ranks waited for each other when last looked at
	unweighed  int
	round      round
}

// lane is the waiting requests of one class and the tenants that have some.
type lane struct {
	requests sorted[request] // in order
	accounts sorted[account] // the least served first
}

// ticket is what a request carries for its queue.
type ticket struct {
	standing
	account  *account // of its tenant, while it waits or is outstanding
	charged  int64    // tokens, in all; see charge.go
	spent    int64    // tokens that a try which failed cost: no less is charged, unless it is served
	taken    uint64   // the last round that has it
	inLane   node[request]
	inTenant node[request]
	inTurns  node[request]

	nextRunning, prevRunning *request // among those at a target
}

func newQueue(model string, o ordering) *queue {
	q := &queue{model: model, ordering: o}
	for i := range q.lanes {
		q.lanes[i].requests = sorted[request]{node: func(r *request) *node[request] { return &r.inLane }, before: (*request).before}
		q.lanes[i].accounts = sorted[account]{node: func(a *account) *node[account] { return &a.shares[i].inLane }, before: (*account).before}
	}
	q.turning = sorted[request]{node: func(r *request) *node[request] { return &r.inTurns }, before: (*request).turnsBefore}
	q.tenants = newTenants()
	q.apart = newApart()
	return q
}

func (q *queue) len() int { return q.n }

// before orders requests by their standing, then by rank; seq breaks ties.
func (r *request) before(o *request) bool {
	switch {
	case r.stage != o.stage:
		return r.stage < o.stage
	case r.due != o.due:
		return r.due < o.due
	case r.rank != o.rank:
		return r.rank < o.rank
	}
	return r.seq < o.seq
}

func (r *request) turnsBefore(o *request) bool {
	if r.turns != o.turns {
		return r.turns < o.turns
	}
	return r.seq < o.seq
}

// push puts r at its place.
func (q *queue) push(now time.Duration, r *request) {
	q.clock = max(q.clock, now)
	a := q.open(r.Tenant)
	if a.waiting == 0 {
		q.lift(a)
	}
	q.count(r, 1)
	r.weighed = false
	q.unweighed++
	r.account = a
	q.recount(a, 1)
	q.stand(r)
}

// remove takes r out; it must be in the queue.
func (q *queue) remove(r *request) {
	q.sit(r)
	q.count(r, -1)
	if !r.weighed {
		q.unweighed--
	}
	q.left = r.account
	q.recount(r.account, -1)
	q.rest(r.account)
}

// count notes that one request more, or with -1 one less, waits.
func (q *queue) count(r *request, by int) {
	q.n += by
	if r.Tier == service.TierDeferred {
		q.deferred += by
	}
}

// noteFirst counts r's first token, once, where its client is.
func (q *queue) noteFirst(now time.Duration, r *request) {
	if r.counted || r.From != "" || laneOf(r.Tier) != laneFast {
		return
	}
	r.counted = true
	q.firsts++
	if now-r.came > q.ordering.targets.of(r.Tier) {
		q.late++
	}
}

// weigh notes that r was weighed.
func (q *queue) weigh(r *request) {
	if !r.weighed {
		r.weighed = true
		q.unweighed--
	}
}

// stand puts r where the order says.
func (q *queue) stand(r *request) {
	r.standing = q.ordering.place(r.Tier, r.arrived, q.clock)
	l, share := &q.lanes[r.lane], &r.account.shares[r.lane]
	l.requests.add(r)
	if share.requests.root == nil {
		l.accounts.add(r.account)
	}
	share.requests.add(r)
	if r.turns != never {
		q.turning.add(r)
	}
}

// sit takes r from where it stands.
func (q *queue) sit(r *request) {
	l, share := &q.lanes[r.lane], &r.account.shares[r.lane]
	l.requests.remove(r)
	share.requests.remove(r)
	if share.requests.root == nil {
		l.accounts.remove(r.account)
	}
	if r.turns != never {
		q.turning.remove(r)
	}
}

// advance lets time pass: requests whose standing turned stand anew.
func (q *queue) advance(now time.Duration) {
	q.clock = max(q.clock, now)
	for r := q.turning.first(); r != nil && r.turns <= q.clock; r = q.turning.first() {
		q.sit(r)
		q.stand(r)
	}
}

// first appends up to n requests to into, in the order in which they are to be
// tried now, as if each were sent in turn.
func (q *queue) first(into []*request, now time.Duration, n int) []*request {
	q.advance(now)
	n = min(n, q.n)
	if n == 0 {
		return into
	}
	if q.longest().waiting == q.n {
		return q.merge(into, n)
	}
	q.round.begin(q)
	for range n {
		into = append(into, q.round.next(q))
	}
	return into
}

// merge is first where one tenant alone waits.
func (q *queue) merge(into []*request, n int) []*request {
	var heads [lanes]*request
	for i := range q.lanes {
		heads[i] = q.lanes[i].requests.first()
	}
	for range n {
		i := foremost(&heads, lanes-1)
		into = append(into, heads[i])
		heads[i] = q.lanes[i].requests.next(heads[i])
	}
	return into
}

// foremost is the lane, up to the last one allowed, whose request goes first;
// one of them must have one.
func foremost(heads *[lanes]*request, last int) int {
	best := -1
	for i, r := range heads[:last+1] {
		if r != nil && (best < 0 || r.before(heads[best])) {
			best = i
		}
	}
	return best
}

// all appends every request to into but those held apart.
func (q *queue) all(into []*request) []*request {
	for i := range q.lanes {
		l := &q.lanes[i].requests
		for r := l.first(); r != nil; r = l.next(r) {
			into = append(into, r)
		}
	}
	return into
}

// oldestWait is how long the request that came first has waited; 0 for an empty
// queue.
func (q *queue) oldestWait(now time.Duration) (wait time.Duration) {
	for i := range q.lanes {
		l := &q.lanes[i].requests
		for r := l.first(); r != nil; r = l.next(r) {
			wait = max(wait, now-r.arrived)
		}
	}
	if r := q.apart.requests.first(); r != nil {
		wait = max(wait, now-r.arrived)
	}
	return wait
}
