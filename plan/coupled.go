package plan

import "math"

// The course of a search over coupled blocks.
const (
	rootSteps    = 250
	farSteps     = 1000 // where nothing but the ascent makes prices good
	searchShare  = 0.6  // of effort, that the first ascent leaves
	moreSteps    = 100
	rounds       = 40
	nearestSmall = 0.1    // the same where cells are few
	nearest      = 2e-4   // options of an annealing, as a share of the bound
	poolOptions  = 24     // of a block, in an annealing
	leastSweeps  = 20_000 // proposals of the first annealing, at least,
	blockSweeps  = 2_500  // and for every block
	mostSweeps   = 32_000_000
	brokenCost   = 0.1  // of a row, beyond its price
	exactOptions = 4096 // of a block, in a proof
)

// run raises the bound and looks for counts by turns, until they meet within
// the asked gap or effort runs out; then it branches.
func (c *coupling) run(y []float64) {
	in := c.box()
	a := c.newAscent(y, in, firstLevel)
	a.keep = int64(searchShare * float64(c.work.left))
	if c.exchangeable() {
		c.runLarge(a, in)
		return
	}
	if c.small() {
		a.run(rootSteps)
	} else {
		a.run(farSteps)
	}
	if c.noneCheaper(a.best.value) {
		c.giveReasons()
		return
	}
	if math.IsInf(a.best.value, -1) {
		return
	}
	c.raise(a.best.value)
	if !c.small() {
		c.tighten(a, in)
	}
	a.keep = 0
	sweeps := max(leastSweeps, blockSweeps*len(c.blocks))
	for round := range rounds {
		before := c.bestCost
		c.lookFor(a.best, in, sweeps, round)
		if (c.small() && round%8 == 0 || round%8 == 7) && !c.done(c.bound) {
			c.tighten(a, in)
		}
		if c.work.spent() || c.done(c.bound) || c.wrong != nil || c.small() && c.bestCost >= before {
			break
		}
		sweeps = min(2*sweeps, mostSweeps)
	}
	if c.small() && !c.work.spent() && !c.done(c.bound) && c.wrong == nil {
		newBranching(c).run(a.best.y, in)
	}
}

// small reports whether the last resort is to branch.
func (c *coupling) small() bool { return len(c.blocks)*c.gpus <= branchCells }

// tighten raises the bound by more steps and, where their rows allow it, by
// solving models whole.
func (c *coupling) tighten(a *ascent, in box) {
	a.level, a.stuck = math.Max(a.level, 1e-3), 0
	a.run(moreSteps)
	if c.noneCheaper(a.best.value) {
		c.giveReasons()
		return
	}
	if c.raise(a.best.value); c.done(c.bound) || !c.refinable() {
		return
	}
	c.raise(c.wholeModels(a.best, in, modelEffort))
}

// raise takes a proven bound.
func (c *coupling) raise(bound float64) { c.bound = math.Max(c.bound, math.Min(bound, c.bestCost)) }

// noneCheaper reports whether a bound lies above the cost of any solution that
// has nothing to spare: then there is none.
func (c *coupling) noneCheaper(bound float64) bool {
	return c.best == nil && bound > c.most+slackOf(c.most)
}

// lookFor anneals over the options near the relaxation at p. Rounds differ in
// how near, and in what a broken row costs.
func (c *coupling) lookFor(p *point, in box, proposals, round int) {
	d, most := nearest*float64(1+round%3), poolOptions*(1+round%2)
	if c.small() {
		d, most = nearestSmall, 8*poolOptions
	}
	d *= math.Max(math.Abs(p.value), 1e-3)
	if c.best != nil {
		d = math.Min(d, c.bestCost-p.value+slackOf(c.bestCost))
	}
	pool, _ := c.pools(p, in, d, most)
	if pool == nil {
		return
	}
	for at := range pool {
		pool[at] = c.withBest(at, c.withMore(p, in, at, pool[at]))
	}
	a := c.newAnnealing(p, pool, brokenCost*float64(1+round%4), uint64(round))
	a.begin(a.pick)
	a.run(proposals, hottest)
	if a.best != nil {
		if c.offer(a.counts(a.best)); c.done(c.bound) {
			return
		}
	}
	// Where rows are broken in the end, mending them may cost less than a.best.
	c.polish(a.counts(a.pick))
	if a.best != nil && a.broken > 0 {
		c.polish(a.counts(a.best))
	}
}
