package plan

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// option is one choice of counts of a block near its cheapest at some prices.
type option struct {
	x      []int
	excess float64 // reduced cost above the block's least
	cost   float64 // with every replica beyond n started on a new VM
	use    []float64
}

// poolRows are the rows of a block in the order in which its options state
// their use: all but those of standing VMs, whose use Cost settles.
func (c *coupling) poolRows(at int) []int {
	l := &c.links[at]
	var out []int
	for _, r := range l.capacity {
		if r >= 0 {
			out = append(out, r)
		}
	}
	out = append(out, l.cover...)
	for _, r := range []int{l.most, l.least} {
		if r >= 0 {
			out = append(out, r)
		}
	}
	return out
}

// pool lists block at's counts whose reduced cost at the point's prices is
// within d of its least, cheapest first. complete is false when there are more
// than most; it then lists the cheapest of them.
func (c *coupling) pool(p *point, in box, at int, d float64, most int) (out []option, complete bool) {
	mu := c.price(at, p.y, in)
	c.walk.reset(&c.priced, mu, c.reach[at/c.regions], &c.work)
	least := p.reduced[at]
	c.walk.limit = least + d + slackOf(math.Abs(least)+d)
	complete = true
	c.walk.leaf = func(r, _ float64) {
		out = append(out, option{x: slices.Clone(c.walk.x), excess: math.Max(0, r-least)})
		if len(out) == 4*most {
			out, complete = cheapestOptions(out, most), false
			worst := 0.0
			for n := range out {
				worst = math.Max(worst, out[n].weight())
			}
			c.walk.limit = math.Min(c.walk.limit, least+worst)
		}
	}
	c.walk.from(0, 0, 0, 0)
	c.work.spend(4 * len(out) * bits.Len(uint(len(out)))) // sorting
	complete = complete && len(out) <= most && !c.work.spent()
	out = cheapestOptions(out, most)
	for n := range out {
		c.state(at, &out[n])
	}
	return out, complete
}

// replicaWeight is what a replica weighs among options of one reduced cost, as
// a share of the greatest price: where capacity is free of its row, every count
// of it has the same reduced cost, and the small ones are the useful ones.
const replicaWeight = 1e-4

func (o *option) weight() float64 {
	count := 0
	for _, n := range o.x {
		count += n
	}
	return o.excess + replicaWeight*float64(count)
}

// cheapestOptions sorts options and keeps the first of them.
func cheapestOptions(out []option, most int) []option {
	weight := (*option).weight
	if len(out) > most {
		slices.SortStableFunc(out, func(a, b option) int { return cmp.Compare(weight(&a), weight(&b)) })
		out = out[:most]
	}
	slices.SortStableFunc(out, func(a, b option) int { return cmp.Compare(a.excess, b.excess) })
	return out
}

// state notes what an option of block at costs and uses.
func (c *coupling) state(at int, o *option) {
	b, l := &c.blocks[at], &c.links[at]
	count := 0
	for k, n := range o.x {
		cl := &b.classes[k]
		o.cost += cl.stay*float64(n) + cl.start*float64(max(0, n-cl.n))
		count += n
		if l.capacity[k] >= 0 {
			o.use = append(o.use, float64(n))
		}
	}
	carried := b.capacity(o.x)
	o.cost += b.away.cost(carried)
	for _, r := range l.cover {
		o.use = append(o.use, -carried/c.rows[r].unit)
	}
	if l.most >= 0 {
		o.use = append(o.use, float64(count))
	}
	if l.least >= 0 {
		o.use = append(o.use, -float64(count))
	}
}

// pools lists every block's options within d, at most so many of each. whole is
// false when some block has more.
func (c *coupling) pools(p *point, in box, d float64, most int) (out [][]option, whole bool) {
	out, whole = make([][]option, len(c.blocks)), true
	for at := range out {
		var complete bool
		if out[at], complete = c.pool(p, in, at, d, most); !complete {
			whole = false
		}
		if c.work.spent() {
			return nil, false
		}
	}
	return out, whole
}

// withMore adds to a block's options its cheapest with some more units of the
// class that carries load at the least reduced cost: where many options have one
// reduced cost, those that are kept may together carry too little.
func (c *coupling) withMore(p *point, in box, at int, options []option) []option {
	if len(options) == 0 {
		return options
	}
	mu := c.price(at, p.y, in)
	best, least := -1, math.Inf(1)
	for k := range c.priced.classes {
		cl := &c.priced.classes[k]
		if slope := (cl.stay + cl.start - mu*cl.theta) / cl.theta; cl.theta > 0 && slope < least {
			best, least = k, slope
		}
	}
	if best < 0 {
		return options
	}
	first, count := options[0].x, 0
	for _, n := range first {
		count += n
	}
	room := min(c.priced.classes[best].hi-first[best], c.priced.max-count)
	for more := 1; more <= min(room, mostMore); more *= 2 {
		o := option{x: slices.Clone(first)}
		o.x[best] += more
		if !slices.ContainsFunc(options, func(other option) bool { return slices.Equal(other.x, o.x) }) {
			c.state(at, &o)
			options = append(options, o)
		}
	}
	return options
}

// mostMore is the most units that withMore adds.
const mostMore = 16

// withBest adds the best counts of block at to its options.
func (c *coupling) withBest(at int, options []option) []option {
	if c.best == nil {
		return options
	}
	o := option{x: slices.Clone(c.best[at/c.regions][at%c.regions])}
	if slices.ContainsFunc(options, func(other option) bool { return slices.Equal(other.x, o.x) }) {
		return options
	}
	c.state(at, &o)
	return append(options, o)
}
