package fair

// round lists who goes next while nothing is sent in fact: each request that it
// takes counts as sent.
type round[R any] struct {
	number uint64
	heads  [Levels]*Item[R]    // the first of each level that is not taken
	fresh  [Levels]*account[R] // the least served of whom nothing is taken
	served [Levels][]turnOf[R] // of whom something is
}

// turnOf is one account in a heap, with what it had been served when it was
// put there: it may be more by now, never less.
type turnOf[R any] struct {
	will int64
	a    *account[R]
}

func (e turnOf[R]) before(o turnOf[R]) bool {
	if e.will != o.will {
		return e.will < o.will
	}
	return e.a.born < o.a.born
}

func (t *round[R]) begin(q *Queue[R]) {
	t.number++
	for i := range t.heads {
		t.heads[i] = q.levels[i].requests.first()
		t.fresh[i] = q.levels[i].accounts.first()
		t.served[i] = t.served[i][:0]
	}
}

// next takes the request that goes next; one must be left.
func (t *round[R]) next(q *Queue[R]) *Item[R] {
	turn := foremost(&t.heads, Levels-1)
	var a *account[R]
	for i := turn; i >= 0; i-- {
		if b := t.leastServed(q, i); b != nil && (a == nil || t.will(b) < t.will(a)) {
			a = b
		}
	}
	t.touch(a)
	i := foremost(&a.cursors, turn)
	r := a.cursors[i]
	a.cursors[i] = a.shares[i].requests.next(r)
	r.taken = t.number
	for h := t.heads[i]; h != nil && h.taken == t.number; h = t.heads[i] {
		t.heads[i] = q.levels[i].requests.next(h)
	}
	a.will += r.fare
	return r
}

func (t *round[R]) will(a *account[R]) int64 {
	if a.round == t.number {
		return a.will
	}
	return a.served
}

// touch begins to follow an account.
func (t *round[R]) touch(a *account[R]) {
	if a.round == t.number {
		return
	}
	a.round, a.will = t.number, a.served
	for i := range a.cursors {
		a.cursors[i] = a.shares[i].requests.first()
		if a.cursors[i] != nil {
			t.put(i, turnOf[R]{a.will, a})
		}
	}
}

// leastServed is the least served account with a request left in level i; nil when
// there is none.
func (t *round[R]) leastServed(q *Queue[R], i int) *account[R] {
	for t.fresh[i] != nil && t.fresh[i].round == t.number {
		t.fresh[i] = q.levels[i].accounts.next(t.fresh[i])
	}
	t.tidy(i)
	h := t.served[i]
	switch f := t.fresh[i]; {
	case len(h) == 0:
		return f
	case f == nil || h[0].before(turnOf[R]{f.served, f}):
		return h[0].a
	default:
		return f
	}
}

// tidy brings the front of a heap up to date.
func (t *round[R]) tidy(i int) {
	for h := t.served[i]; len(h) > 0; h = t.served[i] {
		switch top := h[0]; {
		case top.a.cursors[i] == nil:
			h[0] = h[len(h)-1]
			t.served[i] = h[:len(h)-1]
		case top.will != top.a.will:
			h[0].will = top.a.will
		default:
			return
		}
		t.sink(i)
	}
}

func (t *round[R]) put(i int, e turnOf[R]) {
	h := append(t.served[i], e)
	t.served[i] = h
	for c := len(h) - 1; c > 0; {
		p := (c - 1) / 2
		if !h[c].before(h[p]) {
			return
		}
		h[c], h[p] = h[p], h[c]
		c = p
	}
}

// sink moves the front of a heap down to its place.
func (t *round[R]) sink(i int) {
	h := t.served[i]
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
