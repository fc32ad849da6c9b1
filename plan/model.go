package plan

import (
	"fmt"
	"math"
	"slices"
)

// modelCase is one model over its regions: every block covers its own need, and
// together they cover the model's.
type modelCase struct {
	blocks []block
	need   float64
	pool   []poolUnit
}

// poolUnit is where a new unit of a class that no region needs for itself
// stands: in the region where it is cheapest, of those without limits.
type poolUnit struct {
	region      int // -1 = nowhere
	cost, theta float64
}

// modelResult is what solving one model gave.
type modelResult struct {
	x    [][]int // by region and class; nil when nothing was found
	cost float64 // of x
	// bound is a proven lower bound of the cost of any counts.
	bound float64
	// exact says that cost is proven least.
	exact bool
}

// newModelCase finds the pool of a set of blocks.
func newModelCase(blocks []block, need float64) *modelCase {
	m := &modelCase{blocks: blocks, need: need, pool: make([]poolUnit, len(blocks[0].classes))}
	for k := range m.pool {
		m.pool[k] = poolUnit{region: -1, cost: math.Inf(1), theta: blocks[0].classes[k].theta}
		for j := range blocks {
			if c := blocks[j].classes[k]; blocks[j].open(k) && c.stay+c.start < m.pool[k].cost {
				m.pool[k].region, m.pool[k].cost = j, c.stay+c.start
			}
		}
	}
	return m
}

// bestPool is the pool's cheapest class for its capacity, -1 when it is empty.
func (m *modelCase) bestPool() int {
	best := -1
	for k, u := range m.pool {
		if u.region >= 0 && (best < 0 || u.cost*m.pool[best].theta < m.pool[best].cost*u.theta) {
			best = k
		}
	}
	return best
}

// impossible says in words why no counts satisfy the model's rows, "" when
// some do. The caller puts the model's name in front, and region(j) names one.
func (m *modelCase) impossible(region func(j int) string) string {
	var reach float64
	for j := range m.blocks {
		b := &m.blocks[j]
		r, ok := b.possible()
		switch {
		case !ok:
			return fmt.Sprintf("in %s: no count lies between its least (%d) and what bounds and capacity allow", region(j), b.min)
		case !covers(r, b.need):
			return fmt.Sprintf("in %s: needs %.6g tokens a second of its own, bounds and capacity allow %.6g", region(j), b.need, r)
		}
		reach += r
	}
	if !covers(reach, m.need) {
		return fmt.Sprintf("over all regions: needs %.6g tokens a second, bounds and capacity allow %.6g", m.need, reach)
	}
	return ""
}

// dualPoint is the Lagrangian at one price mu for the model's capacity.
type dualPoint struct {
	mu, value float64
	// short is the need less the capacity of the blocks' cheapest counts.
	short   float64
	reduced []float64
	x       [][]int
}

// at solves every block at price mu; ok is false when effort ran out, for then
// the value proves nothing, or when a block has no counts.
func (m *modelCase) at(mu float64, work *effort) (p dualPoint, ok bool) {
	p = dualPoint{mu: mu, value: mu * m.need, short: m.need, reduced: make([]float64, len(m.blocks)), x: make([][]int, len(m.blocks))}
	for j := range m.blocks {
		p.x[j] = make([]int, len(m.pool))
		r, c, ok := newWalk(&m.blocks[j], mu, m.need, work).cheapest(p.x[j])
		if !ok || work.spent() {
			return dualPoint{}, false
		}
		p.reduced[j] = r
		p.value += r
		p.short -= c
	}
	return p, true
}

// maximise finds the price at which the Lagrangian is greatest, by tangents,
// and the cheapest counts at a price where they cover the need, but for what the
// pool's best class adds (right). Either has a nil x when effort ran out before
// it was found; what has been found is sound all the same.
func (m *modelCase) maximise(work *effort) (best, right dualPoint) {
	left, ok := m.at(0, work)
	if !ok || covers(m.need-left.short, m.need) {
		return left, left
	}
	if right, ok = m.rightEnd(work); !ok {
		return left, dualPoint{}
	}
	return m.narrow(left, right, work)
}

// narrow is maximise between two points, of which the left one is short.
func (m *modelCase) narrow(left, right dualPoint, work *effort) (best, end dualPoint) {
	best = left
	for range 100 {
		if right.value > best.value {
			best = right
		}
		if right.short >= 0 { // still short at the greatest price that makes sense
			break
		}
		mu := (right.value - left.value + left.short*left.mu - right.short*right.mu) / (left.short - right.short)
		if !(mu > left.mu && mu < right.mu) {
			break
		}
		p, ok := m.at(mu, work)
		if !ok {
			break
		}
		if p.value > best.value {
			best = p
		}
		tangent := left.value + left.short*(mu-left.mu)
		if p.short > 0 {
			left = p
		} else {
			right = p
		}
		if p.value >= tangent-slackOf(tangent) {
			break
		}
	}
	return best, right
}

// maximiseNear is maximise for a case whose price is likely near mu: few prices
// are then tried, none above that of the pool, where the blocks alone prove
// nothing.
func (m *modelCase) maximiseNear(mu float64, work *effort) (best, right dualPoint) {
	most := math.Inf(1)
	if k := m.bestPool(); k >= 0 {
		most = m.pool[k].cost / m.pool[k].theta
	}
	if mu <= 0 || mu > most {
		return m.maximise(work)
	}
	p, ok := m.at(mu, work)
	if !ok {
		return m.maximise(work)
	}
	for step := nearStep; step < 1; step *= 4 {
		next := mu * (1 + step)
		if p.short <= 0 {
			next = mu * (1 - step)
		}
		if next > most {
			break
		}
		q, ok := m.at(next, work)
		switch {
		case !ok:
			return m.maximise(work)
		case p.short > 0 && q.short <= 0:
			return m.narrow(p, q, work)
		case p.short <= 0 && q.short > 0:
			return m.narrow(q, p, work)
		}
		p = q
	}
	return m.maximise(work)
}

// nearStep is the first step from a likely price, as a share of it.
const nearStep = 0.004

// rightEnd is the Lagrangian at the greatest price that makes sense: that of
// the pool's best class, or, without a pool, one at which the blocks cover the
// need themselves.
func (m *modelCase) rightEnd(work *effort) (dualPoint, bool) {
	if k := m.bestPool(); k >= 0 {
		return m.at(m.pool[k].cost/m.pool[k].theta, work)
	}
	mu := 1e-6
	for _, b := range m.blocks {
		for _, c := range b.classes {
			if c.theta > 0 {
				mu = math.Max(mu, (c.stay+c.start)/c.theta)
			}
		}
	}
	for range 60 {
		if p, ok := m.at(mu, work); !ok || covers(m.need-p.short, m.need) {
			return p, ok
		}
		mu *= 2
	}
	return dualPoint{}, false
}

// finish makes counts that cover the model's need out of those of a dual point
// by adding units of the pool's best class; nil when that cannot be.
func (m *modelCase) finish(p dualPoint) [][]int {
	x := make([][]int, len(p.x))
	var have float64
	for j := range p.x {
		x[j] = append([]int(nil), p.x[j]...)
		have += m.blocks[j].capacity(x[j])
	}
	if covers(have, m.need) {
		return x
	}
	k := m.bestPool()
	if k < 0 {
		return nil
	}
	x[m.pool[k].region][k] += unitsFor(m.need-have, m.pool[k].theta)
	return x
}

// cost is the price of counts x.
func (m *modelCase) cost(x [][]int) float64 {
	var sum float64
	for j := range m.blocks {
		sum += m.blocks[j].cost(x[j])
	}
	return sum
}

// start is how wide the first search of improve is, as a share of the bound,
// and widen by how much each further one is wider.
const (
	startShare = 1e-4
	widen      = 2.5
)

// solve finds the cheapest counts. With exact false, or when effort runs out,
// it stops at the Lagrangian bound and the counts that came with it.
func (m *modelCase) solve(work *effort, exact bool) modelResult {
	best, right := m.maximise(work)
	res := modelResult{bound: math.Max(best.value, 0), cost: math.Inf(1)}
	if right.x != nil {
		m.take(m.finish(right), &res)
	}
	if free, priced := m.freeAway(); priced && res.x == nil {
		part := effort{left: polishEffort} // beyond the budget, rather than no answer
		m.take(free.solve(&part, false).x, &res)
		work.left -= polishEffort - part.left
	}
	m.settle(&res)
	if exact && !res.exact && best.x != nil && !work.spent() {
		m.improve(best, &res, work)
	}
	return res
}

// take keeps counts that cost less than those found before; nil is none.
func (m *modelCase) take(x [][]int, res *modelResult) {
	if x == nil {
		return
	}
	if cost := m.cost(x); cost < res.cost {
		res.x, res.cost = x, cost
	}
}

// freeAway is the case with nothing charged for load that is sent away: its counts
// are quick to find. priced is false where nothing is charged anyway.
func (m *modelCase) freeAway() (free *modelCase, priced bool) {
	blocks := slices.Clone(m.blocks)
	for j := range blocks {
		priced = priced || blocks[j].away.price > 0
		blocks[j].away, blocks[j].closed = away{}, false
	}
	return newModelCase(blocks, m.need), priced
}

// settle notes that a cost equal to its bound is least.
func (m *modelCase) settle(r *modelResult) {
	if r.x != nil && r.cost-r.bound <= slackOf(r.cost) {
		r.exact, r.bound = true, r.cost
	}
}

// improve searches all counts whose cost is within d of the bound, for growing
// d, until the best it found is within d: then nothing cheaper exists.
func (m *modelCase) improve(best dualPoint, res *modelResult, work *effort) {
	d := math.Max(startShare*best.value, slackOf(best.value))
	for !work.spent() {
		gap := res.cost - best.value
		if d > gap {
			d = gap + slackOf(res.cost)
		}
		x, cost, done := m.within(best, d, work)
		if !done {
			return
		}
		if x != nil && cost < res.cost {
			res.x, res.cost = x, cost
		}
		if res.cost-best.value <= d+slackOf(res.cost) {
			res.exact, res.bound = true, res.cost
			return
		}
		// Everything within d was seen and cost more.
		res.bound = math.Max(res.bound, best.value+d)
		d *= widen
	}
}
