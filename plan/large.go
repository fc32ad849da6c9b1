package plan

import "math"

// The course of a search over blocks that only capacity and coverage join.
const (
	largeSteps   = 100  // of the ascent that finds about the prices
	blockClimb   = 60   // steps of a bundle over the blocks
	wholeSteps   = 8    // over whole models, at first
	roundSteps   = 3    // and in a round
	largeSweeps  = 2500 // proposals of the annealing for every block, at least
	annealShare  = 10   // of the effort left, one part
	exchanges    = 50   // trials of a round
	renewals     = 300
	renewalReach = 8e-4 // excess of choices, as a share of the bound
)

// runLarge raises the bound by bundles, lays models and renews regions by turns,
// until cost and bound meet within the asked gap, effort runs out or a round finds
// nothing to do.
func (c *coupling) runLarge(a *ascent, in box) {
	a.run(largeSteps)
	if !c.takeBound(a.best.value) {
		return
	}
	p := a.best
	c.climb(p, in, blockClimb)
	if !c.takeBound(p.value) {
		return
	}
	c.newLaying(p, in, 0).layAll()
	if c.raise(c.regionBound(p, in)); c.done(c.bound) {
		return
	}
	at := c.newPoint()
	at.copy(p)
	w := c.newWholeClimb(at, in)
	w.run(wholeSteps)
	for round, left := 0, int64(0); !c.work.spent() && !c.done(c.bound) && c.work.left != left; round++ {
		left = c.work.left
		if c.best == nil || round == 0 {
			sweeps := max(largeSweeps*len(c.blocks), int(left/(annealShare*proposeWork)))
			c.lookFor(p, in, min(sweeps<<min(round, 10), mostSweeps), round)
		}
		if c.best != nil {
			c.improve(at, in, round)
		}
		if !c.done(c.bound) {
			w.run(roundSteps)
		}
	}
}

// takeBound raises the bound; it reports false, with reasons given, when that
// proves that there are no counts, or nothing was proven.
func (c *coupling) takeBound(bound float64) bool {
	if c.noneCheaper(bound) {
		c.giveReasons()
		return false
	}
	if math.IsInf(bound, -1) {
		return false
	}
	c.raise(bound)
	return true
}

// improve is a round of looking for cheaper counts.
func (c *coupling) improve(p *point, in box, round int) {
	c.newExchange(p, in, uint64(round)).run(exchanges)
	if c.renewable() {
		c.newRenewal(p, in, renewalReach*p.value, uint64(round)).run(renewals)
	}
}
