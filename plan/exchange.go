package plan

import (
	"math"
	"math/rand/v2"
	"slices"
)

// exchange improves counts that keep every row: it takes a few models out and
// lays them anew, one after another, each as cheaply as the capacity that is
// left allows. What a model takes is priced as in the relaxation, with some
// noise, so that it leaves the others what they need more; the last one takes
// what is left.
type exchange struct {
	*coupling
	in     box
	at     *point
	x      [][][]int
	used   []int // by region and GPU
	cost   float64
	random *rand.Rand
	y      []float64 // the relaxation's prices; those in at are noisy
	loss   []float64 // by model: what it pays at the prices above its bound
}

const (
	exchanged  = 4       // models taken out at once, at most
	priceNoise = 0.01    // of a price, either way
	layReach   = 0.1     // of its Lagrangian bound: what a model may cost above it
	layEffort  = 300_000 // of one model's laying
	layings    = 20      // of all models from the first to the last
	evenLoss   = 1e-3    // of a model's mean cost: every model is drawn now and then
)

// exchangeable reports whether the rows are such that models can be laid one
// after another.
func (c *coupling) exchangeable() bool {
	return !c.small() && c.refinable() && c.p.Switch == nil && c.p.Egress == nil
}

// newExchange starts from the best counts.
func (c *coupling) newExchange(p *point, in box, seed uint64) *exchange {
	e := c.newLaying(p, in, seed)
	e.x = clone3(c.best)
	for i := range e.x {
		e.take(i, 1)
		e.cost += e.modelCost(i, e.x[i])
		e.loss[i] = e.lossOf(i)
	}
	return e
}

// newLaying starts with no model laid.
func (c *coupling) newLaying(p *point, in box, seed uint64) *exchange {
	e := &exchange{
		coupling: c, in: in, at: c.newPoint(), x: make([][][]int, c.models), used: make([]int, c.regions*c.gpus),
		random: rand.New(rand.NewPCG(seed, 0x65786368)), loss: make([]float64, c.models), y: slices.Clone(p.y),
	}
	e.at.copy(p)
	return e
}

// layAll lays every model once, at the prices, and offers what comes of it. One
// for which too little is left goes first the next time.
func (e *exchange) layAll() {
	order := e.random.Perm(e.models)
	for range layings {
		clear(e.used)
		failed := -1
		for at, i := range order {
			if e.x[i] = e.search(i, e.within(i), math.Inf(1)); e.x[i] == nil {
				failed = at
				break
			}
			e.take(i, 1)
		}
		if failed < 0 {
			e.offer(e.x)
			return
		}
		if e.work.spent() || failed == 0 {
			return
		}
		first := order[failed]
		copy(order[1:failed+1], order[:failed])
		order[0] = first
	}
}

// take adds model i's counts to what is used, or takes them out.
func (e *exchange) take(i, sign int) {
	for j, row := range e.x[i] {
		for k, n := range row {
			e.used[j*e.gpus+k] += sign * n
		}
	}
}

// modelCost is what model i's counts cost.
func (c *coupling) modelCost(i int, x [][]int) float64 {
	var sum float64
	for j := range x {
		sum += c.blocks[i*c.regions+j].cost(x[j])
	}
	return sum
}

// run lays models anew n times.
func (e *exchange) run(n int) {
	order := make([]int, e.models)
	for i := range order {
		order[i] = i
	}
	for ; n > 0 && !e.work.spent() && !e.done(e.bound); n-- {
		e.noisy()
		k := min(1+e.random.IntN(exchanged), e.models)
		first := e.worst(order)
		order[0], order[first] = order[first], order[0]
		for at := 1; at < k; at++ {
			o := at + e.random.IntN(e.models-at)
			order[at], order[o] = order[o], order[at]
		}
		e.try(order[:k])
	}
}

// noisy sets the prices anew, those of capacity with some noise.
func (e *exchange) noisy() {
	for r := range e.y {
		e.at.y[r] = e.y[r]
		if e.rows[r].kind == capacityRow {
			e.at.y[r] *= 1 + priceNoise*(2*e.random.Float64()-1)
		}
	}
}

// worst draws a model, more often one that pays much above its bound.
func (e *exchange) worst(order []int) int {
	even := evenLoss * e.cost / float64(e.models)
	sum := 0.0
	for _, i := range order {
		sum += e.loss[i] + even
	}
	u := e.random.Float64() * sum
	for at, i := range order {
		if u -= e.loss[i] + even; u <= 0 {
			return at
		}
	}
	return 0
}

// try lays models anew in this order and keeps that when it costs no more. What
// the models pay above their bounds and what is left of priced capacity is all
// that can be won: a model that needs more than that ends the trial early.
func (e *exchange) try(models []int) {
	was, change, left := make([][][]int, len(models)), 0.0, e.slack()
	for at, i := range models {
		was[at] = e.x[i]
		change -= e.modelCost(i, e.x[i])
		left += e.loss[i]
		e.take(i, -1)
	}
	laid := 0
	for at, i := range models {
		most := left - e.loss[i]
		if at == len(models)-1 {
			e.unprice()
			most = -change - e.modelCost(i, e.x[i])
		}
		x := e.lay(i, most)
		if x == nil {
			break
		}
		e.x[i] = x
		change += e.modelCost(i, x)
		left -= e.lossOf(i)
		e.take(i, 1)
		laid++
	}
	if laid == len(models) && change <= 0 {
		if e.cost += change; change < 0 {
			e.offer(e.x)
		}
		for _, i := range models {
			e.loss[i] = e.lossOf(i)
		}
		return
	}
	for at, i := range models {
		if at < laid {
			e.take(i, -1)
		}
		e.x[i] = was[at]
		e.take(i, 1)
	}
}

// slack is what the capacity that is left over is worth.
func (e *exchange) slack() float64 {
	var sum float64
	for _, row := range e.capacities {
		sum += e.y[e.links[row.region].capacity[row.gpu]] * float64(row.capacity-e.used[row.region*e.gpus+row.gpu])
	}
	return sum
}

// lossOf is what model i pays at the prices above its bound.
func (e *exchange) lossOf(i int) float64 { return e.modelAt(i, e.y, e.in).cost(e.x[i]) - e.base[i] }

// unprice takes the prices of capacity away: the last model leaves nothing to
// others.
func (e *exchange) unprice() {
	for r := range e.at.y {
		if e.rows[r].kind == capacityRow {
			e.at.y[r] = 0
		}
	}
}

// lay is model i's cheapest counts at the prices within what is left, if they
// cost at most so much more than those it has; nil when none were found.
func (e *exchange) lay(i int, more float64) [][]int {
	m := e.within(i)
	return e.search(i, m, m.cost(e.x[i])+more)
}

// within is model i at the prices under the capacity that is left.
func (e *exchange) within(i int) *modelCase {
	m := e.modelAt(i, e.at.y, e.in)
	for _, row := range e.capacities {
		cl := &m.blocks[row.region].classes[row.gpu]
		cl.hi = min(cl.hi, max(0, row.capacity-e.used[row.region*e.gpus+row.gpu]))
	}
	return m
}

// search is a model's cheapest counts of at most so much; nil when none were
// found.
func (e *exchange) search(i int, m *modelCase, most float64) [][]int {
	p, right := m.maximiseNear(e.coverPrice(i), &e.work)
	if right.x == nil || most < p.value {
		return nil
	}
	keeps := func(x [][]int) bool {
		e.fill(i, m, x)
		return e.rules.verifyModel(i, x) == nil
	}
	if p.mu == 0 && keeps(p.x) {
		return p.x
	}
	reach := math.Min(most-p.value, layReach*p.value)
	var x [][]int
	e.work.lend(layEffort, func(work *effort) { x = m.around(p, reach+slackOf(p.value), work, keeps).x })
	return x
}

// coverPrice is what a unit of what model i carries is worth at the prices.
func (e *exchange) coverPrice(i int) float64 {
	var mu float64
	for _, r := range e.coverRows[i] {
		mu += e.at.y[r] / e.rows[r].unit
	}
	return mu
}

// fill adds the cheapest replicas that the regions still hold until counts x reach
// model i's least count over all regions, or no more can be added.
func (e *exchange) fill(i int, m *modelCase, x [][]int) {
	left := total(e.p.MinTotal, i, 0)
	if left == 0 {
		return
	}
	counts := make([]int, len(x))
	for j := range x {
		for _, n := range x[j] {
			counts[j] += n
		}
		left -= counts[j]
	}
	for ; left > 0; left-- {
		where, on, least := -1, -1, math.Inf(1)
		for j := range x {
			b := &m.blocks[j]
			for k, n := range x[j] {
				c := &b.classes[k]
				if more := c.cost(n+1) - c.cost(n); counts[j] < b.max && n < c.hi && more < least {
					where, on, least = j, k, more
				}
			}
		}
		if where < 0 {
			return
		}
		x[where][on]++
		counts[where]++
	}
}
