package plan

import (
	"math"
	"slices"
)

// unlimited stands for no upper bound of a count.
const unlimited = math.MaxInt32

// class is one GPU as a block sees it: the first n units (those that stand)
// cost stay each, the next m (on VMs that another model gives up) stay + turn,
// further ones stay + start; turn is at most start, or m is 0.
type class struct {
	stay, turn, start, theta float64
	n, m, lo, hi             int
}

// steps are the class's runs of units of one price: the unit's cost, and after
// how many units the run ends.
func (c *class) steps() [3]step {
	return [3]step{{c.stay, c.n}, {c.stay + c.turn, c.n + c.m}, {c.stay + c.start, unlimited}}
}

type step struct {
	cost float64
	end  int
}

// cost is the price of x units.
func (c *class) cost(x int) float64 {
	return c.stay*float64(x) + c.turn*float64(min(max(0, x-c.n), c.m)) + c.start*float64(max(0, x-c.n-c.m))
}

// block is one model in one region: choose a count of every class so that the
// local need is covered and the total lies between min and max.
type block struct {
	classes  []class
	need     float64
	min, max int
	// minTotal is how many replicas the model has at least over all regions, where
	// that row is priced; all of them may stand in this one.
	minTotal int
	// away prices the load above the block's capacity, which other regions serve.
	away away
	// closed says that the pool serves no unit of the block.
	closed bool
}

// cost is the price of counts x.
func (b *block) cost(x []int) float64 {
	var sum float64
	for k := range b.classes {
		sum += b.classes[k].cost(x[k])
	}
	if b.away.price > 0 {
		sum += b.away.cost(b.capacity(x))
	}
	return sum
}

// capacity is what counts x carry.
func (b *block) capacity(x []int) float64 {
	var sum float64
	for k, c := range b.classes {
		sum += c.theta * float64(x[k])
	}
	return sum
}

// open reports whether units of class k can be added without limit.
func (b *block) open(k int) bool {
	return !b.closed && b.classes[k].hi >= unlimited && b.max >= unlimited && b.classes[k].theta > 0
}

// possible reports whether any counts satisfy the bounds, and the greatest
// capacity such counts reach.
func (b *block) possible() (reach float64, ok bool) {
	x := make([]int, len(b.classes))
	count, room := 0, 0
	order := make([]int, len(b.classes))
	for k, c := range b.classes {
		if c.lo > c.hi {
			return 0, false
		}
		x[k], order[k] = c.lo, k
		count += c.lo
		room = min(unlimited, room+c.hi)
		if c.hi >= unlimited && b.max >= unlimited && c.theta > 0 {
			reach = math.Inf(1)
		}
	}
	if count > b.max || room < b.min || b.min > b.max {
		return 0, false
	}
	if reach > 0 {
		return reach, true
	}
	slices.SortStableFunc(order, func(p, q int) int {
		switch {
		case b.classes[p].theta > b.classes[q].theta:
			return -1
		case b.classes[p].theta < b.classes[q].theta:
			return 1
		}
		return 0
	})
	for _, k := range order {
		if b.classes[k].theta <= 0 {
			break
		}
		add := min(b.classes[k].hi-x[k], b.max-count)
		x[k] += add
		count += add
	}
	return b.capacity(x), true
}

// segment is a run of units of one class at one positive reduced cost each.
type segment struct {
	class        int
	slope, theta float64
	count        int
}

// walk searches a block's counts at a price mu for capacity: the reduced cost
// of counts x is their cost less mu for each unit of capacity.
type walk struct {
	b    *block
	mu   float64
	top  []int // greatest useful count of each class
	segs []segment
	// baseCost and baseCap are those of the cheapest counts, local need aside,
	// of the classes from k on.
	baseCost, baseCap []float64
	baseCount         []int // of each class
	x                 []int
	limit             float64
	work              *effort
	leaf              func(reduced, capacity float64)
}

// newWalk prepares a search at price mu; global is the model's need over all
// regions, beyond which capacity is useless anywhere.
func newWalk(b *block, mu, global float64, work *effort) *walk {
	w := &walk{}
	w.reset(b, mu, global, work)
	return w
}

// reset prepares another search with the memory of the last.
func (w *walk) reset(b *block, mu, global float64, work *effort) {
	g := len(b.classes)
	if len(w.x) != g {
		w.x, w.top, w.baseCount = make([]int, g), make([]int, g), make([]int, g)
		w.baseCost, w.baseCap = make([]float64, g+1), make([]float64, g+1)
		w.segs = make([]segment, 0, 3*g)
	}
	w.b, w.mu, w.work, w.limit, w.segs = b, mu, work, math.Inf(1), w.segs[:0]
	work.spend(8 * g) // what preparing and sorting looks at
	for k := g - 1; k >= 0; k-- {
		w.top[k] = b.top(k, global)
		w.addClass(k)
	}
	for i := 1; i < len(w.segs); i++ { // few and nearly in order: insertion
		s := w.segs[i]
		at := i
		for ; at > 0 && s.before(w.segs[at-1]); at-- {
			w.segs[at] = w.segs[at-1]
		}
		w.segs[at] = s
	}
}

// before orders segments by reduced cost for their capacity.
func (s segment) before(o segment) bool {
	a, c := s.slope*o.theta, o.slope*s.theta
	return a < c || a == c && s.class < o.class
}

// top is the greatest count of class k that any solution worth finding has: a
// unit above it could be taken away without breaking a row of coverage or a least
// count, or (where adding is unlimited) stand in another region.
func (b *block) top(k int, global float64) int {
	c := b.classes[k]
	useful := mostUseful(math.Max(b.need, global), c.theta, b.min, b.minTotal)
	if b.open(k) {
		useful = max(min(c.n+c.m, useful), mostUseful(b.need, c.theta, b.min, b.minTotal))
	}
	return min(c.hi, max(c.lo, useful), b.max)
}

// mostUseful is the greatest count of one model on one GPU in one region that rows
// ask for: to carry need alone, or to be the least count alone, there or over all
// regions. One more could be taken away: no row breaks, and nothing costs more.
func mostUseful(need, theta float64, least, leastTotal int) int {
	if theta <= 0 {
		return 0 // the model does not run there
	}
	return max(unitsFor(need, theta), least, leastTotal)
}

// addClass adds class k's cheapest counts to the base and its units of positive
// reduced cost to the segments.
func (w *walk) addClass(k int) {
	c := &w.b.classes[k]
	cost, count := w.reduced(k, c.lo), c.lo
	from := c.lo
	for _, s := range c.steps() {
		units := min(s.end, w.top[k]) - from
		if units <= 0 {
			continue
		}
		from += units
		switch slope := s.cost - w.mu*c.theta; {
		case slope <= 0:
			cost += slope * float64(units)
			count += units
		case c.theta > 0:
			w.segs = append(w.segs, segment{k, slope, c.theta, units})
		}
	}
	w.baseCount[k] = count
	w.baseCost[k] = w.baseCost[k+1] + cost
	w.baseCap[k] = w.baseCap[k+1] + c.theta*float64(count)
}

// reduced is the reduced cost of x units of class k.
func (w *walk) reduced(k, x int) float64 {
	c := &w.b.classes[k]
	return c.cost(x) - w.mu*c.theta*float64(x)
}

// bound is the least reduced cost at which the classes from k on cover a need,
// fractions of units allowed; +Inf when they cannot.
func (w *walk) bound(k int, need float64) float64 {
	cost := w.baseCost[k]
	need -= w.baseCap[k] + relTolerance*math.Max(1, w.b.need)
	for i := 0; need > 0; i++ {
		if i == len(w.segs) {
			return math.Inf(1)
		}
		s := &w.segs[i]
		if s.class < k {
			continue
		}
		full := s.theta * float64(s.count)
		if full >= need {
			return cost + s.slope*need/s.theta
		}
		cost += s.slope * float64(s.count)
		need -= full
	}
	return cost
}

// from fixes the classes from k on, the first k having the given reduced cost,
// capacity and count. For each class the bound is convex in its count: from
// about its least, each way ends where it rises above the limit.
func (w *walk) from(k int, reduced, capacity float64, count int) {
	if k == len(w.x) {
		if w.b.away.price > 0 {
			reduced += w.b.away.cost(capacity)
		}
		if count >= w.b.min && covers(capacity, w.b.need) && reduced <= w.limit {
			w.leaf(reduced, capacity)
		}
		return
	}
	c := &w.b.classes[k]
	start := max(c.lo, min(w.likely(k, w.b.need-capacity), w.top[k], w.b.max-count))
	first := math.Inf(1)
	for x, before := start, math.Inf(1); x <= w.top[k] && count+x <= w.b.max; x++ {
		least := w.with(k, x, reduced, capacity, count)
		if w.work.spent() || least > w.limit && least > before {
			break
		}
		before, first = least, min(first, least)
	}
	for x, before := start-1, first; x >= c.lo; x-- {
		least := w.with(k, x, reduced, capacity, count)
		if w.work.spent() || least > w.limit && least > before {
			return
		}
		before = least
	}
}

// likely is about how many units of class k cover a need cheapest, with those
// of the classes after it.
func (w *walk) likely(k int, need float64) int {
	need -= w.baseCap[k]
	n := w.baseCount[k]
	for i := 0; need > 0 && i < len(w.segs); i++ {
		s := &w.segs[i]
		if s.class < k {
			continue
		}
		if s.class == k {
			n += min(s.count, int(need/s.theta))
		}
		need -= s.theta * float64(s.count)
	}
	return n
}

// with fixes x units of class k, and the classes after it where the bound,
// which it returns, allows.
func (w *walk) with(k, x int, reduced, capacity float64, count int) (least float64) {
	if !w.work.spend(1 + len(w.segs)/2) { // what the bound looks at
		return math.Inf(1)
	}
	c := &w.b.classes[k]
	r, cp := reduced+w.reduced(k, x), capacity+c.theta*float64(x)
	if least = r + w.bound(k+1, w.b.need-cp); least <= w.limit {
		w.x[k] = x
		w.from(k+1, r, cp, count+x)
	}
	return least
}

// cheapest finds the counts of least reduced cost, of those the ones of most
// capacity. ok is false when none satisfy the bounds.
func (w *walk) cheapest(x []int) (reduced, capacity float64, ok bool) {
	reduced = math.Inf(1)
	w.limit = w.greedy()
	w.leaf = func(r, c float64) {
		tol := slackOf(r)
		if r < reduced-tol || r <= reduced+tol && c > capacity {
			reduced, capacity, ok = math.Min(r, reduced), c, true
			w.limit = math.Min(w.limit, reduced+tol)
			copy(x, w.x)
		}
	}
	w.from(0, 0, 0, 0)
	return reduced, capacity, ok
}

// greedy is the reduced cost of one good choice of counts, +Inf when that one
// breaks a bound: it spares cheapest most of its search.
func (w *walk) greedy() float64 {
	count := 0
	need := w.b.need - w.baseCap[0]
	cost := w.baseCost[0] + w.b.away.cost(w.b.need-relTolerance*math.Max(1, w.b.need))
	for k := range w.b.classes {
		c := &w.b.classes[k]
		count += c.lo
		from := c.lo
		for _, s := range c.steps() {
			units := max(0, min(s.end, w.top[k])-from)
			from += units
			if s.cost-w.mu*c.theta <= 0 {
				count += units
			}
		}
	}
	for _, s := range w.segs {
		u := min(s.count, unitsFor(need, s.theta))
		need -= s.theta * float64(u)
		cost += s.slope * float64(u)
		count += u
	}
	if need > relTolerance*math.Max(1, w.b.need) || count < w.b.min || count > w.b.max {
		return math.Inf(1)
	}
	return cost + slackOf(cost)
}
