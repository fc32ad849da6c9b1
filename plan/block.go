package plan

import (
	"math"
	"slices"
)

// unlimited means that a count has no upper bound.
const unlimited = math.MaxInt32

// blockOffering is one of Problem.GPUs in a block; a unit is one replica of the block's model on it. Every unit costs
// keepCost. Beyond the number running, a unit also costs switchCost (on a VM that another model
// frees, for at most the number switchable) or startCost. switchCost is at most startCost, or
// switchable is 0.
type blockOffering struct {
	keepCost, switchCost, startCost, tps float64
	running, switchable, max             int
}

// steps returns the price steps of the offering: the cost of a unit, and the count at which the step
// ends.
func (o *blockOffering) steps() [3]step {
	return [3]step{{o.keepCost, o.running}, {o.keepCost + o.switchCost, o.running + o.switchable}, {o.keepCost + o.startCost, unlimited}}
}

type step struct {
	cost float64
	end  int
}

// cost returns the price of x units.
func (o *blockOffering) cost(x int) float64 {
	return o.keepCost*float64(x) + o.switchCost*float64(min(max(0, x-o.running), o.switchable)) + o.startCost*float64(max(0, x-o.running-o.switchable))
}

// block is one model in one region: a count of every offering such that the local need is covered and
// the total is between min and max.
type block struct {
	offerings []blockOffering
	need      float64
	min, max  int
	// egress prices the load above the block's capacity, which other regions serve.
	egress egressCost
}

// egressCost prices the load that a region cannot serve itself and sends to others.
type egressCost struct {
	// price is in USD for one token per second throughout the hour.
	price float64
	loads []float64 // by window
}

// millionTokensPerHour is the tokens of an hour at one token per second, in millions. It converts a price per million
// tokens to one for a token per second throughout the hour.
const millionTokensPerHour = 3600.0 / 1e6

// costAt returns the price of the load above a capacity, the mean over the windows. It is convex and
// falls with the capacity.
func (a *egressCost) costAt(capacityTPS float64) float64 {
	if a.price == 0 || len(a.loads) == 0 {
		return 0
	}
	var sum float64
	for _, v := range a.loads {
		sum += max(0, v-capacityTPS)
	}
	return a.price * sum / float64(len(a.loads))
}

// capacityTPS returns the throughput of counts x.
func (b *block) capacityTPS(x []int) float64 {
	var sum float64
	for k, o := range b.offerings {
		sum += o.tps * float64(x[k])
	}
	return sum
}

// maxCapacityTPS returns the highest capacity of counts within the bounds; ok is false when no counts are
// within them.
func (b *block) maxCapacityTPS() (capacityTPS float64, ok bool) {
	count, limit := 0, 0
	order := make([]int, len(b.offerings))
	for k, o := range b.offerings {
		order[k] = k
		limit = min(unlimited, limit+o.max)
	}
	if limit < b.min || b.min > b.max {
		return 0, false
	}
	slices.SortStableFunc(order, func(p, q int) int {
		switch {
		case b.offerings[p].tps > b.offerings[q].tps:
			return -1
		case b.offerings[p].tps < b.offerings[q].tps:
			return 1
		}
		return 0
	})
	for _, k := range order {
		add := min(b.offerings[k].max, b.max-count)
		capacityTPS += b.offerings[k].tps * float64(add)
		count += add
	}
	return capacityTPS, true
}

// segment is a number of units of one offering, each at the same positive cost.
type segment struct {
	offering      int
	unitCost, tps float64
	count         int
}

// before orders segments by cost per capacity.
func (s segment) before(o segment) bool {
	a, c := s.unitCost*o.tps, o.unitCost*s.tps
	return a < c || a == c && s.offering < o.offering
}

// blockSearch finds counts of a block by depth-first branch and bound over its offerings. Its lower
// bound covers the remaining need with the cheapest segments, allowing fractions of units. Costs
// may be negative because they include the prices of coupling rows.
type blockSearch struct {
	b        *block
	segments []segment
	// baseCost[k] and baseCapacityTPS[k] are the cost and capacity of the cheapest counts of the offerings
	// from k on, if the local need is ignored.
	baseCost, baseCapacityTPS []float64
	baseCount                 []int // of each offering
	x                         []int
	limit                     float64 // counts above this cost are not visited
	work                      *effort
	visit                     func(cost, capacityTPS float64) // called with the counts in x
	// breakpointsOnly limits the last offering to the counts of breakpointsOf, one of which is the cheapest, if it has
	// more than maxEnumeratedCount units and the block has no egress cost.
	breakpointsOnly bool
}

// reset prepares a search of b and reuses the memory of the last one.
func (bs *blockSearch) reset(b *block, work *effort) {
	g := len(b.offerings)
	if len(bs.x) != g {
		bs.x, bs.baseCount = make([]int, g), make([]int, g)
		bs.baseCost, bs.baseCapacityTPS = make([]float64, g+1), make([]float64, g+1)
		bs.segments = make([]segment, 0, 3*g)
	}
	bs.b, bs.work, bs.limit, bs.segments = b, work, math.Inf(1), bs.segments[:0]
	work.spend(8 * g) // the work of preparing and sorting
	for k := g - 1; k >= 0; k-- {
		bs.addOffering(k)
	}
	for i := 1; i < len(bs.segments); i++ { // few and nearly sorted: insertion sort
		s := bs.segments[i]
		at := i
		for ; at > 0 && s.before(bs.segments[at-1]); at-- {
			bs.segments[at] = bs.segments[at-1]
		}
		bs.segments[at] = s
	}
}

// addOffering adds offering k's cheapest counts to the base and its units of positive cost to the
// segments.
func (bs *blockSearch) addOffering(k int) {
	o := &bs.b.offerings[k]
	var cost float64
	from, count := 0, 0
	for _, s := range o.steps() {
		units := min(s.end, o.max) - from
		if units <= 0 {
			continue
		}
		from += units
		switch {
		case s.cost <= 0:
			cost += s.cost * float64(units)
			count += units
		case o.tps > 0:
			bs.segments = append(bs.segments, segment{k, s.cost, o.tps, units})
		}
	}
	bs.baseCount[k] = count
	bs.baseCost[k] = bs.baseCost[k+1] + cost
	bs.baseCapacityTPS[k] = bs.baseCapacityTPS[k+1] + o.tps*float64(count)
}

// lowerBound returns the minimum cost at which the offerings from k on cover a need, with fractions of
// units allowed; +Inf when they cannot cover it.
func (bs *blockSearch) lowerBound(k int, need float64) float64 {
	cost := bs.baseCost[k]
	need -= bs.baseCapacityTPS[k] + relTolerance*math.Max(1, bs.b.need)
	for i := 0; need > 0; i++ {
		if i == len(bs.segments) {
			return math.Inf(1)
		}
		s := &bs.segments[i]
		if s.offering < k {
			continue
		}
		full := s.tps * float64(s.count)
		if full >= need {
			return cost + s.unitCost*need/s.tps
		}
		cost += s.unitCost * float64(s.count)
		need -= full
	}
	return cost
}

// searchFrom enumerates the offerings from k on; the first k have the given cost, capacity and count. For
// each offering the bound is convex in its count: the search starts near the minimum and stops in each
// direction where the bound rises above the limit.
func (bs *blockSearch) searchFrom(k int, cost, capacityTPS float64, count int) {
	if k == len(bs.x) {
		if bs.b.egress.price > 0 {
			cost += bs.b.egress.costAt(capacityTPS)
		}
		if count >= bs.b.min && meetsNeed(capacityTPS, bs.b.need) && cost <= bs.limit {
			bs.visit(cost, capacityTPS)
		}
		return
	}
	o := &bs.b.offerings[k]
	if bs.breakpointsOnly && k == len(bs.x)-1 && bs.b.egress.price == 0 && o.max > maxEnumeratedCount {
		for _, x := range bs.breakpointsOf(o, capacityTPS, count) {
			if x >= 0 && x <= o.max && count+x <= bs.b.max {
				bs.tryCount(k, x, cost, capacityTPS, count)
			}
		}
		return
	}
	start := max(0, min(bs.likelyCount(k, bs.b.need-capacityTPS), o.max, bs.b.max-count))
	lowest := math.Inf(1)
	for x, before := start, math.Inf(1); x <= o.max && count+x <= bs.b.max; x++ {
		bound := bs.tryCount(k, x, cost, capacityTPS, count)
		if bs.work.exhausted() || bound > bs.limit && bound > before {
			break
		}
		before, lowest = bound, min(lowest, bound)
	}
	for x, before := start-1, lowest; x >= 0; x-- {
		bound := bs.tryCount(k, x, cost, capacityTPS, count)
		if bs.work.exhausted() || bound > bs.limit && bound > before {
			return
		}
		before = bound
	}
}

// maxEnumeratedCount is the number of units of an offering up to which cheapest visits all of its counts, not only the
// breakpoints. Of equally cheap counts, it then finds those near likelyCount first. They satisfy capacities that several
// blocks share more often than breakpoints do.
const maxEnumeratedCount = 1000

// breakpointsOf returns the counts at which the cost of the last offering, which is piecewise linear, changes its slope or
// ends. capacityTPS and count are those of the other offerings. Some of the counts may be outside the bounds.
func (bs *blockSearch) breakpointsOf(o *blockOffering, capacityTPS float64, count int) [7]int {
	low := max(unitsFor(bs.b.need-capacityTPS, o.tps), bs.b.min-count)
	return [7]int{low, low + 1, low - 1, 0, min(o.running, o.max), min(o.running+o.switchable, o.max), min(o.max, bs.b.max-count)}
}

// likelyCount returns the approximate number of units of offering k in the cheapest cover of a need by the
// offerings from k on.
func (bs *blockSearch) likelyCount(k int, need float64) int {
	need -= bs.baseCapacityTPS[k]
	n := bs.baseCount[k]
	for i := 0; need > 0 && i < len(bs.segments); i++ {
		s := &bs.segments[i]
		if s.offering < k {
			continue
		}
		if s.offering == k {
			n += min(s.count, int(need/s.tps))
		}
		need -= s.tps * float64(s.count)
	}
	return n
}

// tryCount sets x units of offering k, and searches the offerings after it where the bound, which it
// returns, allows.
func (bs *blockSearch) tryCount(k, x int, cost, capacityTPS float64, count int) (bound float64) {
	if !bs.work.spend(1 + len(bs.segments)/2) { // the work of computing the bound
		return math.Inf(1)
	}
	o := &bs.b.offerings[k]
	cost, capacityTPS = cost+o.cost(x), capacityTPS+o.tps*float64(x)
	if bound = cost + bs.lowerBound(k+1, bs.b.need-capacityTPS); bound <= bs.limit {
		bs.x[k] = x
		bs.searchFrom(k+1, cost, capacityTPS, count+x)
	}
	return bound
}

// cheapest finds the cheapest counts and, among equally cheap ones, those of greatest capacity. ok
// is false when no counts satisfy the bounds.
func (bs *blockSearch) cheapest(x []int) (cost float64, ok bool) {
	cost = math.Inf(1)
	capacityTPS := 0.0
	bs.limit = bs.greedyCost()
	bs.visit = func(r, c float64) {
		tol := roundingError(r)
		if r < cost-tol || r <= cost+tol && c > capacityTPS {
			cost, capacityTPS, ok = math.Min(r, cost), c, true
			bs.limit = math.Min(bs.limit, cost+tol)
			copy(x, bs.x)
		}
	}
	bs.breakpointsOnly = true
	bs.searchFrom(0, 0, 0, 0)
	bs.breakpointsOnly = false
	return cost, ok
}

// greedyCost returns the cost of counts that a greedy method finds, +Inf when they do not cover the need or are
// outside the bounds. With this cost as its first limit, cheapest skips most counts.
func (bs *blockSearch) greedyCost() float64 {
	count := 0
	for _, n := range bs.baseCount {
		count += n
	}
	need := bs.b.need - bs.baseCapacityTPS[0]
	cost := bs.baseCost[0] + bs.b.egress.costAt(bs.b.need-relTolerance*math.Max(1, bs.b.need))
	size := math.Abs(bs.baseCost[0]) + math.Abs(cost-bs.baseCost[0])
	for _, s := range bs.segments {
		u := min(s.count, unitsFor(need, s.tps))
		need -= s.tps * float64(u)
		cost += s.unitCost * float64(u)
		size += s.unitCost * float64(u)
		count += u
	}
	if need > relTolerance*math.Max(1, bs.b.need) || count < bs.b.min || count > bs.b.max {
		return math.Inf(1)
	}
	return cost + roundingError(size) // the terms may cancel
}
