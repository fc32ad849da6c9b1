package plan

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// crowded is a coupled problem in which capacities bind, with the bound of its
// blocks climbed.
func crowded(seed uint64, s size, epsilon, share float64) (*coupling, *point, box) {
	p := random(rand.New(rand.NewPCG(seed, 9)), s)
	p.Epsilon = epsilon
	withCapacity(p, rand.New(rand.NewPCG(seed, 10)), share)
	scaled, _ := scale(p)
	c := newCoupling(newSolver(scaled, Options{Effort: 400_000_000}))
	in := c.box()
	a := c.newAscent(make([]float64, len(c.rows)), in, firstLevel)
	a.run(largeSteps)
	c.climb(a.best, in, blockClimb)
	return c, a.best, in
}

var middling = size{models: 9, regions: 12, gpus: 4, windows: 4, most: 16}

// tent is a concave function of two prices in two parts, less what rows allow: its
// greatest value is 3, at (1, 2).
func tent(y []float64) (at tangents, ok bool) {
	for r, top := range []float64{1, 2} {
		use := make([]float64, 2)
		if use[r] = 1.5; y[r] > top {
			use[r] = -0.5
		}
		// The part falls or rises from its top, where it is worth 1.5 top + the row's.
		at.worth = append(at.worth, top+0.5*top+use[r]*(y[r]-top))
		at.use = append(at.use, use)
	}
	return at, true
}

// A bundle finds the greatest bound from wherever it starts, within the rows'
// prices of 0 and more.
func TestBundleFindsTheGreatestBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		y := []float64{rapid.Float64Range(0, 9).Draw(t, "y0"), rapid.Float64Range(0, 9).Draw(t, "y1")}
		c := &coupling{solver: &solver{work: effort{left: 1_000_000}}}
		at, _ := tent(y)
		b := c.newBundle(y, []float64{0.5, 0.5}, at)
		if b.run(500, tent) {
			t.Fatalf("not ended at %v, bound %g", b.centre, b.value)
		}
		if math.Abs(b.value-3) > 1e-4 {
			t.Fatalf("bound %g at %v", b.value, b.centre)
		}
	})
}

// Every bound lies below any counts' cost, and one that keeps more of the rows to
// the unit does not lie below that of the blocks.
func TestBoundsOfWholeModelsAndRegions(t *testing.T) {
	higher := 0
	for seed := range uint64(4) {
		c, p, in := crowded(seed, middling, 0.6, 1.2)
		blocks := p.value
		region := c.regionBound(p, in)
		at := c.newPoint()
		at.copy(p)
		c.newWholeClimb(at, in).run(10)
		whole := c.bound
		c.newLaying(p, in, 0).layAll()
		for round := range 6 {
			c.lookFor(p, in, leastSweeps<<round, round)
		}
		if c.best == nil {
			t.Fatalf("seed %d: no counts", seed)
		}
		tol := 1e-6 * c.bestCost
		if region < blocks-tol || region > c.bestCost+tol || whole < blocks-tol || whole > c.bestCost+tol {
			t.Errorf("seed %d: blocks %g, regions %g, whole models %g, cost %g", seed, blocks, region, whole, c.bestCost)
		}
		if region > blocks+tol && whole > blocks+tol {
			higher++
		}
	}
	if higher == 0 {
		t.Error("neither bound rose above the blocks'")
	}
}

// On problems small enough to be solved to proof, no bound lies above the optimum,
// and regions solved anew do not get below it.
func TestBoundsStayBelowTheOptimum(t *testing.T) {
	checked := 0
	rapid.Check(t, func(t *rapid.T) {
		p := small(t, 0.7)
		p.Epsilon = rapid.SampledFrom([]float64{0.5, 1}).Draw(t, "epsilon")
		exact := solve(t, p, Options{Effort: 30_000_000})
		c := newCoupling(newSolver(p, Options{Effort: 30_000_000}))
		if exact.Status != StatusOptimal || len(c.capacities) == 0 {
			return
		}
		in := c.box()
		a := c.newAscent(make([]float64, len(c.rows)), in, firstLevel)
		a.run(largeSteps)
		c.climb(a.best, in, blockClimb)
		region := c.regionBound(a.best, in)
		c.newWholeClimb(a.best, in).run(5)
		tol := 1e-6 * (1 + exact.Objective)
		if math.Max(a.best.value, math.Max(region, c.bound)) > exact.Objective+tol {
			t.Fatalf("blocks %g, regions %g, whole models %g, optimum %g", a.best.value, region, c.bound, exact.Objective)
		}
		if c.lookFor(a.best, in, leastSweeps, 0); c.best == nil {
			return
		}
		c.newRenewal(a.best, in, math.Inf(1), 1).run(20)
		if c.bestCost < exact.Objective-tol {
			t.Fatalf("cost %g, optimum %g", c.bestCost, exact.Objective)
		}
		checked++
	})
	if checked == 0 {
		t.Error("no problem was checked")
	}
}

// Where every region carries its own peak nothing joins regions, and they are
// solved to proof.
func TestRegionsApartAreProven(t *testing.T) {
	for seed := range uint64(4) {
		p := random(rand.New(rand.NewPCG(seed, 9)), middling)
		p.Epsilon = 1
		withCapacity(p, rand.New(rand.NewPCG(seed, 10)), 1.4)
		r := solve(t, p, Options{Effort: 60_000_000})
		if r.Status != StatusOptimal {
			t.Errorf("seed %d: %s, gap %g", seed, r.Status, r.Gap)
		}
	}
}

// Renewing regions keeps every row and never costs more, and its books agree with
// a count from the start.
func TestRenewalKeepsRowsAndNeverCostsMore(t *testing.T) {
	improved := 0
	for seed := range uint64(3) {
		c, p, in := crowded(seed, middling, 0.6, 1.3)
		c.lookFor(p, in, 10*leastSweeps, 0)
		if c.best == nil || !c.renewable() {
			t.Fatalf("seed %d: nothing to improve on", seed)
		}
		before := c.bestCost
		r := c.newRenewal(p, in, 10*renewalReach*p.value, seed)
		r.run(60)
		if err := c.p.Verify(r.x); err != nil || c.bestCost > before {
			t.Errorf("seed %d: %v; cost %g, %g before", seed, err, c.bestCost, before)
		}
		if c.bestCost < before {
			improved++
		}
		for cell := range r.used {
			if r.used[cell] != usedBy(r.x, cell, c.gpus) {
				t.Errorf("seed %d: cell %d: %d used", seed, cell, r.used[cell])
			}
		}
		for i := range r.total {
			carried := 0.0
			for j := range r.x[i] {
				carried += c.p.carried(r.x, i, j)
			}
			if math.Abs(r.total[i]-carried) > 1e-6*carried {
				t.Errorf("seed %d: model %d carries %g in the books, %g counted", seed, i, r.total[i], carried)
			}
		}
	}
	if improved == 0 {
		t.Error("nothing was improved")
	}
}

// The loss of all regions together is what counts cost above the relaxation.
func TestLossIsWhatCountsCostAboveTheRelaxation(t *testing.T) {
	c, p, in := crowded(1, middling, 0.6, 1.3)
	c.newLaying(p, in, 0).layAll()
	if c.best == nil {
		t.Fatal("no counts")
	}
	r := c.newRenewal(p, in, renewalReach*p.value, 1)
	for j := range c.regions {
		r.set = append(r.set, j)
	}
	if want := c.bestCost - p.value; math.Abs(r.loss()-want) > 1e-6*c.bestCost {
		t.Errorf("loss %g, want %g", r.loss(), want)
	}
}
