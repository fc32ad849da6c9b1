package plan

import "math"

// modelEffort bounds the work on one model in a refinement, so that one hard
// model does not use up what all have.
const (
	modelEffort  = 2_000_000
	polishEffort = 200_000
	boundReach   = 0.02 // how far above a model's Lagrangian bound a better one is looked for
)

// refinable reports whether a model, with the rows that it shares priced, is a
// case that its own search solves: its one row of coverage is over all regions.
func (c *coupling) refinable() bool { return c.p.plainCover() }

// modelAt is model i with its other rows at prices y, within the box. Its least
// count over all regions is left out: what that row spares makes a replica cost
// less than nothing, and the search of a whole model and its bound rest on costs of
// 0 or more.
func (c *coupling) modelAt(i int, y []float64, in box) *modelCase {
	base := c.caseOf(i)
	c.work.spend(10 * c.regions * c.gpus)
	for j := range base.blocks {
		c.price(i*c.regions+j, y, in)
		copy(base.blocks[j].classes, c.priced.classes)
		if r := c.links[i*c.regions+j].least; r >= 0 {
			for k := range base.blocks[j].classes {
				base.blocks[j].classes[k].stay += y[r]
			}
		}
	}
	return newModelCase(base.blocks, base.need)
}

// solveModel solves a case within its share of the effort.
func (c *coupling) solveModel(m *modelCase, most int64) (r modelResult) {
	c.work.lend(most, func(work *effort) { r = m.solve(work, true) })
	return r
}

// wholeModels is the bound at a point's prices with every model solved over all
// its regions: at least that of its blocks by themselves, for the coverage of
// the model is kept to the unit, not priced. It offers the counts it meets.
func (c *coupling) wholeModels(p *point, in box, most int64) (bound float64) {
	x := make([][][]int, c.models)
	whole := true
	for r, row := range c.rows {
		if !row.own() {
			bound -= p.y[r] * row.right
		}
	}
	for i := range x {
		r := c.boundModel(i, p, in, most)
		x[i] = r.x
		whole = whole && r.x != nil
		c.base[i] = math.Max(r.bound, c.ofModel(p, i))
		bound += c.base[i]
	}
	if whole {
		c.offer(x)
	}
	return bound
}

// boundModel is model i at a point's prices, a proven bound of its cost with what
// it found. What a cell can hold is left to its price where there are many: units
// can then stand anywhere, and the ring of their sums is small.
func (c *coupling) boundModel(i int, p *point, in box, most int64) (r modelResult) {
	m := c.modelAt(i, p.y, in)
	if c.small() || c.p.Egress != nil {
		return c.solveModel(m, most)
	}
	for j := range m.blocks {
		for k := range m.blocks[j].classes {
			if m.blocks[j].classes[k].theta > 0 {
				m.blocks[j].classes[k].hi = unlimited
			}
		}
	}
	m = newModelCase(m.blocks, m.need)
	c.work.lend(most, func(work *effort) {
		best, right := m.maximise(work)
		if r = (modelResult{bound: math.Max(0, best.value)}); right.x != nil {
			if r = m.around(best, boundReach*best.value, work, nil); r.x == nil {
				r.x = m.finish(right)
			}
		}
	})
	return r
}

// ofModel is model i's share of a point's value: its blocks and its own rows.
func (c *coupling) ofModel(p *point, i int) float64 {
	var sum float64
	for j := range c.regions {
		sum += p.reduced[i*c.regions+j]
	}
	for _, r := range c.coverRows[i] {
		sum -= p.y[r] * c.rows[r].right
	}
	if r := c.links[i*c.regions].least; r >= 0 {
		sum -= p.y[r] * c.rows[r].right
	}
	return sum
}

// polish solves each model again under the capacity that the others leave,
// until a whole round changes nothing. Counts that break rows may come out
// keeping them: a model that is part of that is solved whatever it costs.
func (c *coupling) polish(x [][][]int) {
	if !c.refinable() || c.p.Switch != nil || c.p.MinTotal != nil || c.p.MaxTotal != nil {
		return
	}
	for again := true; again && !c.work.spent(); {
		again = false
		for i := range x {
			m := c.leftFor(i, x)
			r := c.solveModel(m, polishEffort)
			if r.x == nil || !c.breaks(i, x) && r.cost >= m.cost(x[i])-slackOf(r.cost) {
				continue
			}
			x[i], again = r.x, true
		}
		c.offer(x)
	}
}

// breaks reports whether model i's counts break its own rows or are part of
// what exceeds a capacity.
func (c *coupling) breaks(i int, x [][][]int) bool {
	if c.rules.verifyModel(i, x[i]) != nil {
		return true
	}
	for _, row := range c.capacities {
		used := 0
		for o := range x {
			used += x[o][row.region][row.gpu]
		}
		if used > row.capacity && x[i][row.region][row.gpu] > 0 {
			return true
		}
	}
	return false
}

// leftFor is model i under the capacity that the other models' counts leave.
func (c *coupling) leftFor(i int, x [][][]int) *modelCase {
	m := c.caseOf(i)
	for _, row := range c.capacities {
		left := row.capacity
		for o := range x {
			if o != i {
				left -= x[o][row.region][row.gpu]
			}
		}
		cl := &m.blocks[row.region].classes[row.gpu]
		cl.hi = min(cl.hi, max(0, left))
	}
	return newModelCase(m.blocks, m.need)
}
