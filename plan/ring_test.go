package plan

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// modelOf is the first model of a random problem, some of its cells limited.
func modelOf(r *rand.Rand, regions int) *modelCase {
	s := size{models: 1, regions: regions, gpus: 1 + r.IntN(4), windows: 3, most: 6 + r.IntN(14), bounds: 0.1}
	p := random(r, s)
	p.Capacity = make([][]*int, regions)
	for j := range p.Capacity {
		p.Capacity[j] = make([]*int, s.gpus)
		for k := 1; k < s.gpus; k++ { // the first GPU can always grow
			if r.IntN(3) == 0 {
				p.Capacity[j][k] = ptr(r.IntN(8))
			}
		}
	}
	return newSolver(p, Options{}).caseOf(0)
}

// Counted modulo a filling unit, a model's bound lies above the Lagrangian's and
// below the least cost, and its counts keep every row.
func TestRingBoundsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 5))
		m := modelOf(r, 1+r.IntN(6))
		work := effort{left: 40_000_000}
		exact := m.solve(&work, true)
		p, right := m.maximise(&work)
		if !exact.exact || right.x == nil {
			return
		}
		got := m.around(p, boundReach*p.value, &work, nil)
		if tol := 1e-6 * (1 + exact.cost); got.bound < p.value-tol || got.bound > exact.cost+tol {
			t.Fatalf("bound %g, Lagrangian %g, optimum %g", got.bound, p.value, exact.cost)
		}
		if got.x == nil {
			return
		}
		if got.cost < exact.cost-1e-6*(1+exact.cost) || math.Abs(m.cost(got.x)-got.cost) > 1e-9*(1+got.cost) {
			t.Fatalf("cost %g of %v, optimum %g", got.cost, got.x, exact.cost)
		}
		keepsRows(t, m, got.x)
	})
}

// From any price the same greatest value of the Lagrangian is found.
func TestMaximiseNearFindsWhatMaximiseDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 5))
		m := modelOf(r, 1+r.IntN(6))
		work := effort{left: 40_000_000}
		want, _ := m.maximise(&work)
		got, right := m.maximiseNear(rapid.Float64Range(0, 3).Draw(t, "share")*want.mu, &work)
		if math.Abs(got.value-want.value) > 1e-6*(1+want.value) {
			t.Fatalf("%g at price %g, want %g at %g", got.value, got.mu, want.value, want.mu)
		}
		if right.x != nil && m.bestPool() < 0 && right.short > relTolerance*math.Max(1, m.need) {
			t.Fatalf("the right end is short by %g", right.short)
		}
	})
}

// Where capacities bind there is an answer as soon as there is a bound: models
// are laid before anything longer is tried.
func TestCountsAreFoundWithLittleEffort(t *testing.T) {
	for seed := range uint64(8) {
		p := withCapacity(random(rand.New(rand.NewPCG(seed, 9)), size{models: 9, regions: 12, gpus: 4, windows: 4, most: 16}), rand.New(rand.NewPCG(seed, 10)), 1.3)
		r, err := Solve(p, Options{Effort: 4_000_000})
		if err != nil || r.X == nil || r.Gap > 0.1 {
			t.Errorf("seed %d: %s, gap %g: %v", seed, r.Status, r.Gap, err)
		}
	}
}

// keepsRows fails when counts of a case break one of its rows.
func keepsRows(t *rapid.T, m *modelCase, x [][]int) {
	var all float64
	for j := range x {
		b, count := &m.blocks[j], 0
		for k, n := range x[j] {
			count += n
			if n < b.classes[k].lo || n > b.classes[k].hi {
				t.Fatalf("region %d, class %d: %d of %d..%d", j, k, n, b.classes[k].lo, b.classes[k].hi)
			}
		}
		carried := b.capacity(x[j])
		if all += carried; !covers(carried, b.need) || count < b.min || count > b.max {
			t.Fatalf("region %d: %v carries %g of %g", j, x[j], carried, b.need)
		}
	}
	if !covers(all, m.need) {
		t.Fatalf("%v carries %g of %g", x, all, m.need)
	}
}

// Laying models anew keeps every row and never costs more, and its books agree
// with a count from the start.
func TestExchangeKeepsRowsAndNeverCostsMore(t *testing.T) {
	improved := 0
	for seed := range uint64(3) {
		p := withCapacity(random(rand.New(rand.NewPCG(seed, 9)), size{models: 9, regions: 12, gpus: 4, windows: 4, most: 16}), rand.New(rand.NewPCG(seed, 10)), 1.3)
		scaled, _ := scale(p)
		s := newSolver(scaled, Options{Effort: 400_000_000})
		c := newCoupling(s)
		in := c.box()
		a := c.newAscent(make([]float64, len(c.rows)), in, firstLevel)
		a.run(rootSteps)
		c.lookFor(a.best, in, leastSweeps, 0)
		if c.best == nil || !c.exchangeable() {
			t.Fatalf("seed %d: nothing to improve on", seed)
		}
		before := c.bestCost
		e := c.newExchange(a.best, in, seed)
		e.run(60)
		if err := scaled.Verify(e.x); err != nil || c.bestCost > before || math.Abs(scaled.Cost(e.x)-e.cost) > 1e-6 {
			t.Errorf("seed %d: %v; cost %g in the books, %g counted, %g before", seed, err, e.cost, scaled.Cost(e.x), before)
		}
		if c.bestCost < before {
			improved++
		}
		for cell := range e.used {
			if e.used[cell] < 0 || e.used[cell] != usedBy(e.x, cell, c.gpus) {
				t.Errorf("seed %d: cell %d: %d used", seed, cell, e.used[cell])
			}
		}
	}
	if improved == 0 {
		t.Error("nothing was improved")
	}
}

// usedBy counts the replicas in a region on a GPU.
func usedBy(x [][][]int, cell, gpus int) int {
	sum := 0
	for i := range x {
		sum += x[i][cell/gpus][cell%gpus]
	}
	return sum
}
