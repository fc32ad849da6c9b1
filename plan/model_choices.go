package plan

import "math"

// Bounds of a proof by enumeration. Beyond them the enumeration stops, and the bound proven so far is
// kept.
const (
	maxBlockCandidates  = 1 << 13 // candidates of a block
	maxModelPartials    = 1 << 19 // partial choices of a model
	maxModelChoices     = 1 << 15 // choices of a model that are combined with those of other models
	maxAllPartials      = 1 << 21 // partial choices of all models
	firstSearchDistance = 1e-4    // distance of the first search above the bound, as a share of the bound
	distanceGrowth      = 2       // factor of the distance after a search without a result
)

// modelChoices are the possible counts of one model whose cost is within a distance of its lower bound.
type modelChoices struct {
	candidates []candidate
	rows       []int // rows[t] is the shared row that entry t of a candidate's use refers to
}

// joinModelBlocks lists choices of model i, each with one candidate of every block (one block for each region), whose
// cost is at most d above the lower bound. They satisfy the model's own rows; the rows shared with other models are
// priced. With shared, it lists every choice that no other one dominates in cost and use of shared rows; otherwise
// only the cheapest one. ok is false if there are too many to enumerate. loose are the rows that no choice can
// violate.
func (c *integerProgram) joinModelBlocks(p *point, i int, d float64, shared bool, loose []bool) (out modelChoices, ok bool) {
	g := &dynamicProgram{c: c, y: p.y, limit: d, remainingPartials: maxModelPartials, open: make([]bool, 3*len(c.rows))} // with the artificial rows of sharedRowUse
	for r := range g.open {
		g.open[r] = r >= len(c.rows) || c.rows[r].model != i
	}
	for at := i * c.regions; at < (i+1)*c.regions; at++ {
		candidates, complete := c.candidates(p, at, d, maxBlockCandidates)
		if !complete {
			return out, false
		}
		var rows []int
		if shared {
			rows = c.sharedRowUse(at, candidates, loose)
		} else {
			rows = c.priceShared(p, at, i, candidates)
			candidates = undominated(candidates)
		}
		g.items, g.rows = append(g.items, candidates), append(g.rows, rows)
	}
	if !g.enumerate() || len(g.completeChoices()) > maxModelChoices {
		return out, false
	}
	for n, q := range g.completeChoices() {
		o := candidate{excess: q.bound, cost: q.cost, use: g.memory[q.use : int(q.use)+len(g.live)]}
		for j, pick := range g.candidatesPicked(n) {
			o.x = append(o.x, g.items[j][pick].x...)
		}
		out.candidates = append(out.candidates, o)
	}
	sortByExcess(out.candidates)
	out.rows = g.live
	return out, true
}

// priceShared prepares the candidates of a block of model i for a search with the model's own rows. The prices of own rows are
// subtracted from the excess cost, those of shared rows remain in it, and shared rows are removed from the use. It returns
// the own rows.
func (c *integerProgram) priceShared(p *point, at, i int, candidates []candidate) (rows []int) {
	for n := range candidates {
		o := &candidates[n]
		own := o.use[:0]
		o.cost = o.excess
		for t, l := range c.links[at] {
			if c.rows[l.row].model == i {
				o.cost -= p.y[l.row] * o.use[t]
				own = append(own, o.use[t])
			}
		}
		o.use = own
	}
	for _, l := range c.links[at] {
		if c.rows[l.row].model == i {
			rows = append(rows, l.row)
		}
	}
	return rows
}

// undominated removes the candidates that another one dominates in cost and use.
func undominated(candidates []candidate) []candidate {
	if len(candidates) == 0 {
		return nil
	}
	all := make([]partial, len(candidates))
	var memory []float64
	for n, o := range candidates {
		all[n] = partial{cost: o.cost, use: int32(len(memory)), candidate: int32(n)}
		memory = append(memory, o.use...)
	}
	var out []candidate
	for _, q := range paretoFront(all, memory, len(candidates[0].use)) {
		out = append(out, candidates[q.candidate])
	}
	sortByExcess(out)
	return out
}

// sharedRowUse lists the row of each entry of the use of a block's candidates; -1 for a loose row, by
// which candidates are not compared. Where VMs can switch between models, only choices with equal
// counts are compared, because their cost is known only for complete choices. For this, each row r of
// running VMs gets two artificial rows, len(c.rows)+r and 2*len(c.rows)+r, whose use is the count x
// and -x.
func (c *integerProgram) sharedRowUse(at int, candidates []candidate, loose []bool) (rows []int) {
	for _, l := range c.links[at] {
		if rows = append(rows, l.row); loose[l.row] {
			rows[len(rows)-1] = -1
		}
	}
	for k, r := range c.runningRows[at] {
		if r < 0 {
			continue
		}
		rows = append(rows, len(c.rows)+r, 2*len(c.rows)+r)
		for n := range candidates {
			x := float64(candidates[n].x[k])
			candidates[n].use = append(candidates[n].use, x, -x)
		}
	}
	return rows
}

// looseRows returns the shared rows that no candidates within their models' distances can violate.
func (c *integerProgram) looseRows(p *point, d []float64) []bool {
	maxUse := make([]float64, len(c.rows))
	for at := range c.blocks {
		candidates, complete := c.candidates(p, at, d[at/c.regions], maxBlockCandidates)
		for t, l := range c.links[at] {
			top := math.Inf(-1)
			for _, o := range candidates {
				top = math.Max(top, o.use[t])
			}
			if !complete {
				top = math.Inf(1)
			}
			maxUse[l.row] += top
		}
	}
	loose := make([]bool, len(c.rows))
	for r, row := range c.rows {
		loose[r] = row.model < 0 && maxUse[r] <= row.rhs
	}
	return loose
}

// boundWholeModels bounds the cost of each model with its own rows satisfied and the shared rows priced.
// gains is how much this raises the bound, by model; flat are the counts of the models' cheapest choices, in the order
// of the models. A model without a choice is missing in flat. Complete counts are passed to offerIncumbent. all is
// false if not all choices were enumerated; gains then contains what is proven so far.
func (c *integerProgram) boundWholeModels(p *point) (gains []float64, flat []int, all bool) {
	gains, all = make([]float64, c.models), true
	maxGain := c.costLimit() - p.value
	for i := range gains {
		first := firstSearchDistance * math.Abs(p.value) / float64(c.models)
		for d := math.Max(first, roundingError(p.value)); ; d *= distanceGrowth {
			d = math.Min(d, maxGain+roundingError(c.costLimit()))
			found, ok := c.joinModelBlocks(p, i, d, false, nil)
			if !ok {
				all = false
				break
			}
			if found.candidates != nil {
				gains[i] = found.candidates[0].excess
				flat = append(flat, found.candidates[0].x...)
				break
			}
			if gains[i] = d; d >= maxGain {
				return gains, flat, true // no counts can improve the incumbent
			}
		}
		maxGain -= gains[i]
	}
	if len(flat) == len(c.blocks)*c.gpus {
		c.offerIncumbent(c.unflatten(flat))
	}
	return gains, flat, all
}

// relaxModels solves every model at the point's prices of shared rows. Like relax it reports
// whether the value is a proven bound.
func (c *integerProgram) relaxModels(p *point) bool {
	if !c.relax(p) || math.IsInf(p.value, 1) {
		return !c.work.exhausted()
	}
	gains, flat, _ := c.boundWholeModels(p)
	for _, f := range gains {
		p.value += f
	}
	if len(flat) < len(p.x) {
		return !c.work.exhausted()
	}
	copy(p.x, flat)
	for r, row := range c.rows {
		if p.use[r] = 0; row.model >= 0 {
			p.use[r] = row.rhs // the row is satisfied
		}
	}
	for at := range c.blocks {
		x := p.x[at*c.gpus : (at+1)*c.gpus]
		c.priceBlock(at, p.y)
		c.addUse(at, x, p.use, func(row int) bool { return c.rows[row].model < 0 })
	}
	return !c.work.exhausted()
}

// enumerateAll raises the bound at p model by model. If that does not close the gap, it enumerates all
// choices of all models that cost less than the incumbent. It returns the bound, and whether the
// search is settled: the requested gap is proven, or no cheaper counts exist.
func (c *integerProgram) enumerateAll(p *point) (bound float64, settled bool) {
	gains, _, all := c.boundWholeModels(p)
	bound = p.value
	for _, f := range gains {
		bound += f
	}
	if c.provesGap(bound) || bound > c.costLimit() {
		return bound, true
	}
	var d []float64 // how far above its blocks' bound a model's choices may be
	for _, f := range gains {
		d = append(d, c.costLimit()-bound+f)
	}
	if !all {
		return bound, false
	}
	loose := c.looseRows(p, d)
	g := &dynamicProgram{c: c, y: p.y, limit: c.costLimit() - bound, remainingPartials: maxAllPartials, open: make([]bool, 3*len(c.rows)), incomparable: c.p.SwitchCostUSD != nil}
	for i, gain := range gains {
		found, ok := c.joinModelBlocks(p, i, d[i], true, loose)
		if !ok {
			return bound, false
		}
		for n := range found.candidates {
			found.candidates[n].excess -= gain
		}
		for t, r := range found.rows {
			if r >= len(c.rows) {
				found.rows[t] = -1
			}
		}
		g.items, g.rows = append(g.items, found.candidates), append(g.rows, found.rows)
	}
	if !g.enumerate() {
		return bound, false
	}
	best, cost := [][][]int(nil), math.Inf(1)
	for n := range g.completeChoices() {
		var flat []int
		for i, pick := range g.candidatesPicked(n) {
			flat = append(flat, g.items[i][pick].x...)
		}
		if x := c.unflatten(flat); c.p.Cost(x) < cost {
			best, cost = x, c.p.Cost(x)
		}
	}
	if best != nil {
		c.offerIncumbent(best)
	}
	return c.costLimit(), true
}
