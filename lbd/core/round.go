package core

// round lists who goes next while nothing is sent in fact: each request that it
// takes counts as sent.
type round struct {
	number uint64
	heads  [lanes]*request // the first of each lane that is not taken
	fresh  [lanes]*account // the least served of whom nothing is taken
	served [lanes][]turnOf // of whom something is
}

// turnOf is one account in a heap, with what it had been served when it was
// put there: it may be more by now, never less.
type turnOf struct {
	will int64
	a    *account
}

func (e turnOf) before(o turnOf) bool {
	if e.will != o.will {
		return e.will < o.will
	}
	return e.a.born < o.a.born
}

func (t *round) begin(q *queue) {
	t.number++
	for i := range t.heads {
		t.heads[i] = q.lanes[i].requests.first()
		t.fresh[i] = q.lanes[i].accounts.first()
		t.served[i] = t.served[i][:0]
	}
}

// next takes the request that goes next; one must be left.
func (t *round) next(q *queue) *request {
	turn := foremost(&t.heads, lanes-1)
	var a *account
	for i := turn; i >= 0; i-- {
		if b := t.least(q, i); b != nil && (a == nil || t.will(b) < t.will(a)) {
			a = b
		}
	}
	t.touch(a)
	i := foremost(&a.cursors, turn)
	r := a.cursors[i]
	a.cursors[i] = a.shares[i].requests.next(r)
	r.taken = t.number
	for h := t.heads[i]; h != nil && h.taken == t.number; h = t.heads[i] {
		t.heads[i] = q.lanes[i].requests.next(h)
	}
	a.will += r.fare()
	return r
}

func (t *round) will(a *account) int64 {
	if a.round == t.number {
		return a.will
	}
	return a.served
}

// touch begins to follow an account.
func (t *round) touch(a *account) {
	if a.round == t.number {
		return
	}
	a.round, a.will = t.number, a.served
	for i := range a.cursors {
		a.cursors[i] = a.shares[i].requests.first()
		if a.cursors[i] != nil {
			t.put(i, turnOf{a.will, a})
		}
	}
}

// least is the least served account with a request left in lane i; nil when
// there is none.
func (t *round) least(q *queue, i int) *account {
	for t.fresh[i] != nil && t.fresh[i].round == t.number {
		t.fresh[i] = q.lanes[i].accounts.next(t.fresh[i])
	}
	t.tidy(i)
	h := t.served[i]
	switch f := t.fresh[i]; {
	case len(h) == 0:
		return f
	case f == nil || h[0].before(turnOf{f.served, f}):
		return h[0].a
	default:
		return f
	}
}

// tidy brings the front of a heap up to date.
func (t *round) tidy(i int) {
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

func (t *round) put(i int, e turnOf) {
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
func (t *round) sink(i int) {
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
