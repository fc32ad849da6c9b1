package plan

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// option is one choice of a block's counts, near the cheapest at some row prices.
type option struct {
	x      []int
	excess float64   // cost including its rows' prices, above the block's minimum
	cost   float64   // with every replica beyond the current ones started on a new VM
	use    []float64 // by link of the block
}

// options lists the counts of a block whose cost, at the point's prices, is within d of the minimum,
// cheapest first. complete is false when there are more than limit or the effort is spent; the list
// then has the cheapest of those found.
func (c *integerProgram) options(p *point, at int, d float64, limit int) (out []option, complete bool) {
	c.priceBlock(at, p.y)
	bs, floor := &c.search, p.reduced[at]
	bs.limit = floor + d + roundingError(math.Abs(floor)+d)
	complete = true
	var memory []int
	bs.visit = func(cost, _ float64) {
		memory = append(memory, bs.x...)
		out = append(out, option{x: memory[len(memory)-len(bs.x) : len(memory) : len(memory)], excess: math.Max(0, cost-floor)})
		if len(out) == 4*limit {
			out, complete = cheapestOptions(out, limit), false
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
	out = cheapestOptions(out, limit)
	use := make([]float64, len(out)*len(c.links[at]))
	for n := range out {
		out[n].use = use[:0:len(c.links[at])]
		use = use[len(c.links[at]):]
		c.fillOption(at, &out[n])
	}
	return out, complete
}

// replicaWeight is the weight of a replica among options of equal cost, as a share of the highest
// price. Where the prices of a class's rows offset its cost, every count costs the same. Small counts
// are then the useful ones.
const replicaWeight = 1e-4

func (o *option) weight() float64 {
	count := 0
	for _, n := range o.x {
		count += n
	}
	return o.excess + replicaWeight*float64(count)
}

// cheapestOptions returns the limit options of lowest weight, sorted by excess cost.
func cheapestOptions(out []option, limit int) []option {
	if len(out) > limit {
		slices.SortFunc(out, func(a, b option) int {
			return cmp.Or(cmp.Compare(a.weight(), b.weight()), slices.Compare(a.x, b.x))
		})
		out = out[:limit]
	}
	byExcess(out)
	return out
}

// byExcess sorts options by excess cost, cheapest first.
func byExcess(out []option) {
	slices.SortFunc(out, func(a, b option) int {
		if a.excess != b.excess {
			return cmp.Compare(a.excess, b.excess)
		}
		return slices.Compare(a.x, b.x)
	})
}

// fillOption sets the cost and the row use of a block's option.
func (c *integerProgram) fillOption(at int, o *option) {
	b := &c.blocks[at]
	for k, n := range o.x {
		cl := &b.classes[k]
		o.cost += cl.keepCost*float64(n) + cl.startCost*float64(max(0, n-cl.running))
	}
	o.cost += b.egress.costAt(b.capacity(o.x))
	for _, l := range c.links[at] {
		o.use = append(o.use, rowUse(l.factor, o.x))
	}
}

// allOptions lists every block's options within d, at most limit of each. complete is false when
// some block has more; out is nil when the effort is spent.
func (c *integerProgram) allOptions(p *point, d float64, limit int) (out [][]option, complete bool) {
	out, complete = make([][]option, len(c.blocks)), true
	for at := range out {
		var listed bool
		out[at], listed = c.options(p, at, d, limit)
		complete = complete && listed
		if c.work.exhausted() {
			return nil, false
		}
	}
	return out, complete
}
