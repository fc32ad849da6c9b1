package fair

// round lists the next requests without sending them: each request that it selects counts as sent.
type round[R any] struct {
	number    uint64
	heads     [Levels]*Item[R]       // the first of each level that is not selected
	untouched [Levels]*account[R]    // the least served account without a selected request
	touched   [Levels][]heapEntry[R] // accounts with a selected request
}

// heapEntry is one account in a heap, with its served tokens at the time when it was added. The
// current value may be higher, never lower.
type heapEntry[R any] struct {
	servedAfter int64
	account     *account[R]
}

func (e heapEntry[R]) before(o heapEntry[R]) bool {
	if e.servedAfter != o.servedAfter {
		return e.servedAfter < o.servedAfter
	}
	return e.account.created < o.account.created
}

func (t *round[R]) start(q *Queue[R]) {
	t.number++
	for i := range t.heads {
		t.heads[i] = q.levels[i].requests.first()
		t.untouched[i] = q.levels[i].accounts.first()
		t.touched[i] = t.touched[i][:0]
	}
}

// nextRequest selects the next request; at least one must remain.
func (t *round[R]) nextRequest(q *Queue[R]) *Item[R] {
	turn := earliestLevel(&t.heads, Levels-1)
	var a *account[R]
	for i := turn; i >= 0; i-- {
		if b := t.leastServed(q, i); b != nil && (a == nil || t.servedAfter(b) < t.servedAfter(a)) {
			a = b
		}
	}
	t.addAccount(a)
	i := earliestLevel(&a.cursors, turn)
	r := a.cursors[i]
	a.cursors[i] = a.levels[i].requests.nextItem(r)
	r.selectedIn = t.number
	for h := t.heads[i]; h != nil && h.selectedIn == t.number; h = t.heads[i] {
		t.heads[i] = q.levels[i].requests.nextItem(h)
	}
	a.servedAfter += r.sendCharge
	return r
}

func (t *round[R]) servedAfter(a *account[R]) int64 {
	if a.round == t.number {
		return a.servedAfter
	}
	return a.served
}

// addAccount adds an account to the round.
func (t *round[R]) addAccount(a *account[R]) {
	if a.round == t.number {
		return
	}
	a.round, a.servedAfter = t.number, a.served
	for i := range a.cursors {
		a.cursors[i] = a.levels[i].requests.first()
		if a.cursors[i] != nil {
			t.pushEntry(i, heapEntry[R]{a.servedAfter, a})
		}
	}
}

// leastServed returns the least served account with a remaining request in level i; nil if there is
// none.
func (t *round[R]) leastServed(q *Queue[R], i int) *account[R] {
	for t.untouched[i] != nil && t.untouched[i].round == t.number {
		t.untouched[i] = q.levels[i].accounts.nextItem(t.untouched[i])
	}
	t.refreshTop(i)
	h := t.touched[i]
	switch f := t.untouched[i]; {
	case len(h) == 0:
		return f
	case f == nil || h[0].before(heapEntry[R]{f.served, f}):
		return h[0].account
	default:
		return f
	}
}

// refreshTop updates the top of a heap.
func (t *round[R]) refreshTop(i int) {
	for h := t.touched[i]; len(h) > 0; h = t.touched[i] {
		switch top := h[0]; {
		case top.account.cursors[i] == nil:
			h[0] = h[len(h)-1]
			t.touched[i] = h[:len(h)-1]
		case top.servedAfter != top.account.servedAfter:
			h[0].servedAfter = top.account.servedAfter
		default:
			return
		}
		t.siftDown(i)
	}
}

func (t *round[R]) pushEntry(i int, e heapEntry[R]) {
	h := append(t.touched[i], e)
	t.touched[i] = h
	for c := len(h) - 1; c > 0; {
		p := (c - 1) / 2
		if !h[c].before(h[p]) {
			return
		}
		h[c], h[p] = h[p], h[c]
		c = p
	}
}

// siftDown moves the top of a heap down to its place.
func (t *round[R]) siftDown(i int) {
	h := t.touched[i]
	for p := 0; ; {
		c := 2*p + 1
		if c+1 < len(h) && h[c+1].before(h[c]) {
			c++
		}
		if c >= len(h) || !h[c].before(h[p]) {
			return
		}
		h[p], h[c] = h[c], h[p]
		p = c
	}
}
