package plan

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// joinOf is a random dynamic program of a few items over a few rows; the last row is open.
func joinOf(r *rand.Rand, limit float64) *dynamicProgram {
	c := &integerProgram{work: effort{remaining: 100_000_000}}
	rows := 1 + r.IntN(4)
	g := &dynamicProgram{c: c, limit: limit, remainingPartials: 1 << 20, open: make([]bool, rows)}
	g.open[rows-1] = true
	for range rows {
		c.rows = append(c.rows, couplingRow{rhs: float64(r.IntN(12) - 2)})
		g.y = append(g.y, float64(r.IntN(3))/2)
	}
	for range 1 + r.IntN(4) {
		var used []int
		for row := range rows {
			if r.IntN(3) > 0 {
				used = append(used, row)
			}
		}
		var candidates []candidate
		for range 1 + r.IntN(5) {
			o := candidate{excess: r.Float64(), x: []int{len(candidates)}}
			o.cost = o.excess
			for _, row := range used {
				u := float64(r.IntN(7) - 2)
				o.use = append(o.use, u)
				if !g.open[row] {
					o.cost -= g.y[row] * u // cost before its rows are priced
				}
			}
			candidates = append(candidates, o)
		}
		sortByExcess(candidates)
		g.items, g.rows = append(g.items, candidates), append(g.rows, used)
	}
	return g
}

// bruteJoin tries every choice: visit gets those within the rows and the limit.
func bruteJoin(g *dynamicProgram, item int, cost, bound float64, used []float64, touched []bool, visit func(cost, open float64)) {
	if item == len(g.items) {
		for row, u := range used {
			if g.open[row] || !touched[row] {
				continue
			}
			if u > g.c.rows[row].rhs {
				return
			}
			bound += g.y[row] * (g.c.rows[row].rhs - u)
		}
		if bound <= g.limit {
			visit(cost, used[len(used)-1])
		}
		return
	}
	for _, o := range g.items[item] {
		next := append([]float64(nil), used...)
		for t, row := range g.rows[item] {
			next[row] += o.use[t]
		}
		bruteJoin(g, item+1, cost+o.cost, bound+o.excess, next, touched, visit)
	}
}

// The dynamic program finds every choice within its rows and its limit, except those that another
// one dominates in cost and in the use of the open row.
func TestDynamicProgramEqualsBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 13))
		g := joinOf(r, rapid.SampledFrom([]float64{1, 4, math.Inf(1)}).Draw(t, "limit"))
		if !g.enumerate() {
			t.Fatal("not all were tried")
		}
		open := func(q *partial) float64 {
			if len(g.live) == 0 {
				return 0
			}
			return g.memory[q.use]
		}
		touched := make([]bool, len(g.open))
		for _, rows := range g.rows {
			for _, row := range rows {
				touched[row] = true
			}
		}
		all := 0
		bruteJoin(g, 0, 0, 0, make([]float64, len(g.open)), touched, func(cost, used float64) {
			all++
			for n := range g.completeChoices() {
				if q := &g.completeChoices()[n]; q.cost <= cost+1e-9 && open(q) <= used+1e-9 {
					return
				}
			}
			t.Fatalf("cost %g with %g of the open row is not found", cost, used)
		})
		if all == 0 && len(g.completeChoices()) > 0 {
			t.Fatalf("%d choices found where there are none", len(g.completeChoices()))
		}
		for n := range g.completeChoices() {
			cost := 0.0
			for item, pick := range g.candidatesPicked(n) {
				cost += g.items[item][pick].cost
			}
			if math.Abs(cost-g.completeChoices()[n].cost) > 1e-9 {
				t.Fatalf("a choice costs %g, not %g", cost, g.completeChoices()[n].cost)
			}
		}
	})
}
