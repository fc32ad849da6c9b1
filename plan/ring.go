package plan

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// ring is one model over its regions as a group relaxation: at the price mu one
// class costs about as much as it carries (its reduced cost is 0 in most
// regions), so its units fill any gap and what matters of all others is what
// they carry modulo one such unit. A state is then a point on a ring of that
// length, not one of all sums of capacity, and few states are left:
// Gomory's relaxation of the model's row of coverage.
//
// For every choice of counts the cost lies above the Lagrangian bound by the sum
// of the blocks' excess and mu times what is carried beyond the need; the
// excess is at least that of the best count of the filling class, and what is
// carried beyond at least its rest modulo the unit. So the least sum over the
// ring is a bound, whatever limits the regions have.
type ring struct {
	m *modelCase
	// blocks are the model's; those where the pool stands hold its units.
	blocks []block
	p      dualPoint
	fill   int
	unit   float64 // what a unit of the filling class carries

	// scratch
	walk walk
	next []ringState
}

// ringOption is a choice of the other classes in one block. The filling class
// may have room more units than in x at about no reduced cost.
type ringOption struct {
	excess, carried float64
	room            int
	x               []int
}

// ringState is a choice over the first blocks.
type ringState struct {
	excess, carried, at float64 // at is carried modulo the unit
	room                int
	prev, choice        int32
}

const (
	flatSlope  = 1e-3 // reduced cost of a filling unit that counts as none
	ringTrials = 64   // ends that are made into counts, in the order of their cost
)

// newRing chooses the filling class: the one with most units of about no
// reduced cost. ok is false when no class carries anything, or load that is sent
// away is priced, for then no class is flat.
func newRing(m *modelCase, p dualPoint) (r *ring, ok bool) {
	r = &ring{m: m, p: p, fill: -1}
	if p.mu <= 0 {
		return nil, false
	}
	r.blocks = slices.Clone(m.blocks)
	best := 0.0
	for k := range m.pool {
		if at := m.pool[k].region; at >= 0 {
			r.blocks[at].closed = true
		}
		score := 0.0
		for j := range m.blocks {
			c, from := &m.blocks[j].classes[k], 0
			if m.blocks[j].away.price > 0 {
				return nil, false
			}
			for _, s := range c.steps() {
				units := min(s.end, c.hi) - from
				from = max(from, min(s.end, c.hi))
				score += float64(min(max(units, 0), mostMore)) / (flatSlope + math.Abs(s.cost-p.mu*c.theta))
			}
		}
		if theta := m.blocks[0].classes[k].theta; theta > 0 && score > best {
			best, r.fill, r.unit = score, k, theta
		}
	}
	return r, r.fill >= 0
}

// options lists block j's choices of the other classes within d.
func (r *ring) options(j int, d float64, work *effort) []ringOption {
	b := r.blocks[j]
	last := len(b.classes) - 1
	b.classes = slices.Clone(b.classes)
	b.classes[r.fill], b.classes[last] = b.classes[last], b.classes[r.fill]
	w := &r.walk
	w.reset(&b, r.p.mu, r.m.need, work)
	w.limit = r.p.reduced[j] + d + slackOf(r.p.value)
	var out []ringOption
	w.filling(0, 0, 0, 0, func(reduced, carried float64, room int) {
		o := ringOption{excess: math.Max(0, reduced-r.p.reduced[j]), carried: carried, room: room, x: slices.Clone(w.x)}
		o.x[r.fill], o.x[last] = o.x[last], o.x[r.fill]
		out = append(out, o)
	})
	work.spend(len(out) * (8 + bits.Len(uint(len(out)))))
	return r.nearest(out)
}

// nearest drops the options that another one beats at every rest.
func (r *ring) nearest(out []ringOption) []ringOption {
	states := make([]ringState, len(out))
	for n, o := range out {
		states[n] = ringState{excess: o.excess, carried: o.carried, at: r.rest(o.carried), room: o.room, choice: int32(n)}
	}
	kept := make([]ringOption, 0, len(out))
	for _, s := range r.front(states) {
		kept = append(kept, out[s.choice])
	}
	return kept
}

// filling is from with the last class as the one that fills: it takes the
// counts of least reduced cost, and says how many more cost about the same.
func (w *walk) filling(k int, reduced, capacity float64, count int, leaf func(reduced, carried float64, room int)) {
	c := &w.b.classes[k]
	if k == len(w.x)-1 {
		lo := max(c.lo, w.b.min-count, unitsFor(w.b.need-capacity, c.theta))
		hi := min(w.top[k], w.b.max-count)
		if lo > hi {
			return
		}
		taken, flat := 0, 0
		for _, s := range c.steps() {
			slope := s.cost - w.mu*c.theta
			if slope < -flatSlope {
				taken = s.end
			}
			if slope <= flatSlope {
				flat = s.end
			}
		}
		from := max(lo, min(taken, hi))
		to := max(from, min(flat, hi))
		least := reduced + math.Min(w.reduced(k, from), w.reduced(k, to))
		for _, s := range c.steps() { // convex: least at an end of a step
			if s.end > from && s.end < to {
				least = math.Min(least, reduced+w.reduced(k, s.end))
			}
		}
		if least <= w.limit {
			w.x[k] = from
			leaf(least, capacity+c.theta*float64(from), to-from)
		}
		return
	}
	before := math.Inf(1)
	for x := c.lo; x <= w.top[k] && count+x <= w.b.max; x++ {
		if !w.work.spend(1 + len(w.segs)/2) {
			return
		}
		r, cp := reduced+w.reduced(k, x), capacity+c.theta*float64(x)
		least := r + w.bound(k+1, w.b.need-cp)
		if least <= w.limit {
			w.x[k] = x
			w.filling(k+1, r, cp, count+x, leaf)
		} else if least > before {
			return
		}
		before = least
	}
}

// rest is what is carried modulo the filling unit.
func (r *ring) rest(carried float64) float64 {
	at := math.Mod(carried, r.unit)
	if at > r.unit*(1-1e-9) {
		at = 0
	}
	return at
}

// compare orders states by where they stand on the ring, the greatest first, and
// those of one place by what they cost.
func (s ringState) compare(o ringState) int {
	switch {
	case s.at > o.at:
		return -1
	case s.at < o.at:
		return 1
	case s.excess != o.excess:
		return cmp.Compare(s.excess, o.excess)
	case s.room != o.room:
		return cmp.Compare(o.room, s.room)
	case s.prev != o.prev:
		return cmp.Compare(s.prev, o.prev)
	}
	return cmp.Compare(s.choice, o.choice)
}

// front keeps the states that no other beats: one that carries a little more
// beats another when that costs less at the price mu.
func (r *ring) front(states []ringState) []ringState {
	if len(states) == 0 {
		return states
	}
	slices.SortFunc(states, ringState.compare)
	ahead := math.Inf(1) // least excess + mu*at of the states seen, those past the end of the ring first
	for _, s := range states {
		ahead = math.Min(ahead, s.excess+r.p.mu*(s.at+r.unit))
	}
	out := states[:0]
	tol := slackOf(r.p.value) / 100
	for _, s := range states {
		if own := s.excess + r.p.mu*s.at; own < ahead-tol {
			out = append(out, s)
			ahead = own
		}
	}
	return out
}

// within finds the least sum of excess and priced surplus, if that is at most d,
// and the cheapest counts that keeps takes. done is false when effort ran out;
// least is d when nothing lies within it.
func (r *ring) within(d float64, work *effort, keeps func(x [][]int) bool) (x [][]int, least float64, done bool) {
	n := len(r.m.blocks)
	options := make([][]ringOption, n)
	for j := range options {
		options[j] = r.options(j, d, work)
		if work.spent() || len(options[j]) > maxPatterns {
			return nil, 0, false
		}
	}
	stages := make([][]ringState, n+1)
	stages[0] = []ringState{{}}
	for j := range options {
		joins := len(stages[j]) * len(options[j])
		if joins > maxJoins || !work.spend(4*joins) {
			return nil, 0, false
		}
		r.next = r.next[:0]
		for si, s := range stages[j] {
			for oi := range options[j] {
				o := &options[j][oi]
				if e := s.excess + o.excess; e <= d {
					carried := s.carried + o.carried
					r.next = append(r.next, ringState{e, carried, r.rest(carried), s.room + o.room, int32(si), int32(oi)})
				}
			}
		}
		if !work.spend(len(r.next) * bits.Len(uint(len(r.next)))) { // sorting
			return nil, 0, false
		}
		stages[j+1] = slices.Clone(r.front(r.next))
	}
	x, least = r.ends(stages, options, d, keeps)
	return x, least, true
}

// ends completes the last stage: the ring's least value, and the cheapest counts
// that can be made.
func (r *ring) ends(stages [][]ringState, options [][]ringOption, d float64, keeps func(x [][]int) bool) ([][]int, float64) {
	type end struct {
		value float64
		state int
	}
	last := stages[len(options)]
	need := r.m.need - relTolerance/2*math.Max(1, r.m.need)
	var ends []end
	least := d
	for n, s := range last {
		over := math.Mod(s.carried-need, r.unit)
		if over < 0 {
			over += r.unit
		}
		value := s.excess + r.p.mu*over
		least = math.Min(least, value)
		if value <= d {
			ends = append(ends, end{value, n})
		}
	}
	slices.SortFunc(ends, func(a, b end) int { return cmp.Or(cmp.Compare(a.value, b.value), cmp.Compare(a.state, b.state)) })
	for _, e := range ends[:min(len(ends), ringTrials)] {
		if x := r.counts(e.state, stages, options); x != nil && (keeps == nil || keeps(x)) {
			return x, least
		}
	}
	return nil, least
}

// counts traces an end back, and fills up in the blocks that have room where
// that is cheapest; nil when there is too little.
func (r *ring) counts(end int, stages [][]ringState, options [][]ringOption) [][]int {
	n := len(options)
	s := stages[n][end]
	units := unitsFor(r.m.need-s.carried, r.unit)
	if units > s.room {
		return nil
	}
	x := make([][]int, n)
	type place struct {
		block, room int
		slope       float64
	}
	var places []place
	for j := n - 1; j >= 0; j-- {
		o := &options[j][s.choice]
		x[j] = slices.Clone(o.x)
		if o.room > 0 {
			c := &r.m.blocks[j].classes[r.fill]
			for from, left := o.x[r.fill], o.room; left > 0; {
				for _, step := range c.steps() {
					if from < step.end {
						take := min(left, step.end-from)
						places = append(places, place{j, take, step.cost})
						from, left = from+take, left-take
						break
					}
				}
			}
		}
		s = stages[j][s.prev]
	}
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(a.slope, b.slope) })
	for _, at := range places {
		take := min(units, at.room)
		x[at.block][r.fill] += take
		units -= take
	}
	return x
}

// around searches ever wider around a dual point until the cheapest counts lie
// within, or beyond reach. Its bound holds whatever the outcome.
func (m *modelCase) around(p dualPoint, reach float64, work *effort, keeps func(x [][]int) bool) modelResult {
	res := modelResult{bound: p.value, cost: math.Inf(1)}
	r, ok := newRing(m, p)
	if !ok {
		return res
	}
	for d := startShare * p.value; !work.spent(); d *= widen {
		x, least, done := r.within(math.Min(d, reach), work, keeps)
		if !done {
			break
		}
		res.bound = math.Max(res.bound, p.value+least)
		if x != nil {
			res.x, res.cost = x, m.cost(x)
			break
		}
		if d >= reach {
			break
		}
	}
	return res
}
