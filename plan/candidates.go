package plan

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// candidate is one choice of a block's counts whose cost is near the minimum at some row prices.
type candidate struct {
	x      []int
	excess float64   // its reduced cost (cost plus its rows' prices) above the block's minimum
	cost   float64   // its cost if every replica beyond the current ones starts on a new VM
	use    []float64 // its use of each row, by link of the block
}

// candidates lists the counts of a block whose reduced cost, at the point's prices, is at most d above
// the minimum, cheapest first. complete is false when there are more than limit or the effort is
// spent; the list then contains those of lowest weight of the ones found.
func (c *integerProgram) candidates(p *point, at int, d float64, limit int) (out []candidate, complete bool) {
	c.priceBlock(at, p.y)
	bs, floor := &c.search, p.reducedCost[at]
	bs.limit = floor + d + roundingError(math.Abs(floor)+d)
	complete = true
	var memory []int
	bs.visit = func(cost, _ float64) {
		memory = append(memory, bs.x...)
		out = append(out, candidate{x: memory[len(memory)-len(bs.x) : len(memory) : len(memory)], excess: math.Max(0, cost-floor)})
		if len(out) == 4*limit {
			out, complete = cheapestCandidates(out, limit), false
			worst := 0.0
			for n := range out {
				worst = math.Max(worst, out[n].weight())
			}
			bs.limit = math.Min(bs.limit, floor+worst)
		}
	}
	bs.searchFrom(0, 0, 0, 0)
	c.work.spend(4 * len(out) * bits.Len(uint(len(out)))) // sorting
	complete = complete && len(out) <= limit && !c.work.exhausted()
	out = cheapestCandidates(out, limit)
	use := make([]float64, len(out)*len(c.links[at]))
	for n := range out {
		out[n].use = use[:0:len(c.links[at])]
		use = use[len(c.links[at]):]
		c.fillCandidate(at, &out[n])
	}
	return out, complete
}

// replicaWeight is the cost added for each replica when candidates are ranked, as a share of the
// highest price. It breaks ties: where row prices offset the price of an offering, all counts have equal
// reduced cost, and small counts are preferred.
const replicaWeight = 1e-4

// weight returns the cost by which candidates are ranked.
func (o *candidate) weight() float64 {
	count := 0
	for _, n := range o.x {
		count += n
	}
	return o.excess + replicaWeight*float64(count)
}

// cheapestCandidates returns at most limit candidates, those of lowest weight, sorted by excess cost.
func cheapestCandidates(out []candidate, limit int) []candidate {
	if len(out) > limit {
		slices.SortFunc(out, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(a.weight(), b.weight()), slices.Compare(a.x, b.x))
		})
		out = out[:limit]
	}
	sortByExcess(out)
	return out
}

// sortByExcess sorts candidates by excess cost, cheapest first.
func sortByExcess(out []candidate) {
	slices.SortFunc(out, func(a, b candidate) int {
		if a.excess != b.excess {
			return cmp.Compare(a.excess, b.excess)
		}
		return slices.Compare(a.x, b.x)
	})
}

// fillCandidate sets the cost and the row use of a block's candidate.
func (c *integerProgram) fillCandidate(at int, o *candidate) {
	b := &c.blocks[at]
	for k, n := range o.x {
		bo := &b.offerings[k]
		o.cost += bo.keepCost*float64(n) + bo.startCost*float64(max(0, n-bo.running))
	}
	o.cost += b.egress.costAt(b.capacityTPS(o.x))
	for _, l := range c.links[at] {
		o.use = append(o.use, rowUse(l.factor, o.x))
	}
}

// allCandidates lists the candidates of every block within d, at most limit for each block. complete
// is false when a block has more; out is nil when the effort is spent.
func (c *integerProgram) allCandidates(p *point, d float64, limit int) (out [][]candidate, complete bool) {
	out, complete = make([][]candidate, len(c.blocks)), true
	for at := range out {
		var listed bool
		out[at], listed = c.candidates(p, at, d, limit)
		complete = complete && listed
		if c.work.exhausted() {
			return nil, false
		}
	}
	return out, complete
}
