package plan

import (
	"math"
	"slices"
)

// pattern is one choice of counts of a block, kept with how far its reduced
// cost lies above the block's least.
type pattern struct {
	excess, capacity, cost float64
	x                      []int
}

// state is a partial choice over the first blocks: what it carries and costs,
// and where it came from.
type state struct {
	capacity, cost, excess float64
	prev, choice           int
}

// Bounds of one search's memory: past them it gives up and the Lagrangian bound
// stands.
const (
	maxPatterns = 1 << 17 // counts of one block
	maxJoins    = 1 << 22 // states joined with patterns in one step
)

// within finds the cheapest counts among those whose cost lies within d of the
// Lagrangian bound at p. x is nil when there are none; done is false when
// effort ran out first.
func (m *modelCase) within(p dualPoint, d float64, work *effort) (x [][]int, cost float64, done bool) {
	patterns := make([][]pattern, len(m.blocks))
	for j := range m.blocks {
		patterns[j] = m.patterns(j, p, d, work)
		if work.spent() || len(patterns[j]) > maxPatterns {
			return nil, 0, false
		}
	}
	least, most := rests(patterns)
	stages := make([][]state, len(m.blocks)+1)
	stages[0] = []state{{}}
	hasPool := m.bestPool() >= 0
	for j := range m.blocks {
		joins := len(stages[j]) * len(patterns[j])
		if joins > maxJoins || !work.spend(4*joins) { // each is made, sorted and swept
			return nil, 0, false
		}
		keep := func(s state) bool {
			if !hasPool && !covers(s.capacity+most[j+1], m.need) {
				return false
			}
			return s.excess+p.mu*math.Max(0, s.capacity+least[j+1]-m.need) <= d
		}
		stages[j+1] = front(merge(stages[j], patterns[j], keep))
	}
	return m.cheapestEnd(p, d, stages, patterns, work)
}

// rests gives, for each block, the least and the most capacity that the blocks
// from it on can add.
func rests(patterns [][]pattern) (least, most []float64) {
	n := len(patterns)
	least, most = make([]float64, n+1), make([]float64, n+1)
	for j := n - 1; j >= 0; j-- {
		lo, hi := math.Inf(1), 0.0
		for _, p := range patterns[j] {
			lo, hi = math.Min(lo, p.capacity), math.Max(hi, p.capacity)
		}
		least[j], most[j] = least[j+1]+lo, most[j+1]+hi
	}
	return least, most
}

// patterns lists block j's counts whose reduced cost is within d of its least,
// but for those with a new unit that could as well stand in the pool.
func (m *modelCase) patterns(j int, p dualPoint, d float64, work *effort) []pattern {
	b := &m.blocks[j]
	w := newWalk(b, p.mu, m.need, work)
	w.limit = p.reduced[j] + d + slackOf(p.value)
	var out []pattern
	w.leaf = func(r, c float64) {
		if len(out) > maxPatterns {
			w.limit = math.Inf(-1)
		} else if !m.movable(b, w.x, c) {
			out = append(out, pattern{excess: math.Max(0, r-p.reduced[j]), capacity: c, cost: b.cost(w.x), x: slices.Clone(w.x)})
		}
	}
	w.from(0, 0, 0, 0)
	return out
}

// movable reports whether counts x of block b, which carry the given capacity,
// hold a new unit that the block does not need and the pool has no dearer.
func (m *modelCase) movable(b *block, x []int, capacity float64) bool {
	if b.closed {
		return false
	}
	count := 0
	for _, n := range x {
		count += n
	}
	for k, c := range b.classes {
		if m.pool[k].cost <= c.stay+c.start && x[k] > max(c.n+c.m, c.lo) && count > b.min && covers(capacity-c.theta, b.need) {
			return true
		}
	}
	return false
}

// merge joins every state with every pattern of the next block.
func merge(states []state, patterns []pattern, keep func(state) bool) []state {
	var out []state
	for si, s := range states {
		for pi, p := range patterns {
			n := state{capacity: s.capacity + p.capacity, cost: s.cost + p.cost, excess: s.excess + p.excess, prev: si, choice: pi}
			if keep(n) {
				out = append(out, n)
			}
		}
	}
	return out
}

// front keeps the states that no other beats in both capacity and cost.
func front(states []state) []state {
	slices.SortStableFunc(states, func(a, b state) int {
		switch {
		case a.capacity > b.capacity:
			return -1
		case a.capacity < b.capacity:
			return 1
		case a.cost < b.cost:
			return -1
		case a.cost > b.cost:
			return 1
		}
		return 0
	})
	out := states[:0]
	cheapest := math.Inf(1)
	for _, s := range states {
		if s.cost < cheapest-relTolerance*math.Abs(cheapest) || math.IsInf(cheapest, 1) {
			out = append(out, s)
			cheapest = s.cost
		}
	}
	return out
}

// cheapestEnd completes the last stage's states from the pool and traces the
// cheapest back.
func (m *modelCase) cheapestEnd(p dualPoint, d float64, stages [][]state, patterns [][]pattern, work *effort) ([][]int, float64, bool) {
	last := stages[len(m.blocks)]
	extras := m.extras(p, d, work)
	if !work.spend(len(last)*len(extras)) || work.spent() {
		return nil, 0, false
	}
	best, bestState, bestExtra, bestFill := math.Inf(1), -1, -1, 0
	k := m.bestPool()
	for si, s := range last {
		for ei, e := range extras {
			cost, fill := s.cost+e.cost, 0
			if have := s.capacity + e.capacity; !covers(have, m.need) {
				if k < 0 {
					continue
				}
				fill = unitsFor(m.need-have, m.pool[k].theta)
				cost += float64(fill) * m.pool[k].cost
			}
			if cost < best-slackOf(best) || math.IsInf(best, 1) {
				best, bestState, bestExtra, bestFill = cost, si, ei, fill
			}
		}
	}
	if bestState < 0 {
		return nil, 0, true
	}
	x := make([][]int, len(m.blocks))
	for j, si := len(m.blocks)-1, bestState; j >= 0; j-- {
		s := stages[j+1][si]
		x[j] = slices.Clone(patterns[j][s.choice].x)
		si = s.prev
	}
	for class, n := range extras[bestExtra].x {
		if n > 0 {
			x[m.pool[class].region][class] += n
		}
	}
	if bestFill > 0 {
		x[m.pool[k].region][k] += bestFill
	}
	return x, best, true
}

// extras lists the useful choices from the pool, its best class left out: those
// whose reduced cost is at most d. Without a pool that is the empty choice.
func (m *modelCase) extras(p dualPoint, d float64, work *effort) []pattern {
	g := len(m.pool)
	fill := m.bestPool()
	var out []pattern
	x := make([]int, g)
	var from func(k int, excess, capacity, cost float64)
	from = func(k int, excess, capacity, cost float64) {
		if k == g {
			out = append(out, pattern{excess: excess, capacity: capacity, cost: cost, x: slices.Clone(x)})
			return
		}
		from(k+1, excess, capacity, cost)
		u := m.pool[k]
		if k == fill || u.region < 0 {
			return
		}
		slope := math.Max(0, u.cost-p.mu*u.theta)
		for n := 1; n <= unitsFor(m.need, u.theta) && work.spend(1); n++ {
			if excess+slope*float64(n) > d {
				break
			}
			x[k] = n
			from(k+1, excess+slope*float64(n), capacity+u.theta*float64(n), cost+u.cost*float64(n))
		}
		x[k] = 0
	}
	from(0, 0, 0, 0)
	return out
}
