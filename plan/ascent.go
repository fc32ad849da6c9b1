package plan

import "math"

// ascent raises the lower bound of a program with the deflected subgradient method: a step
// continues partly in the direction of the last one (Camerini, Fratta and Maffioli). The step size
// is Polyak's, for a target above the best bound that adapts to the progress.
type ascent struct {
	c              *integerProgram
	relax          func(p *point) bool
	current, best  *point
	direction      []float64
	level          float64 // distance of the target from the best bound, as a share of that bound
	stuck          int     // steps without a better bound since the last large rise
	reservedEffort int64   // effort reserved for other steps
}

// The schedule of an ascent.
const (
	firstLevel = 0.05
	minLevel   = 1e-6
	maxStuck   = 12 // limit of ascent.stuck, at which the level is lowered
)

// newAscent starts from prices y: Lagrange multipliers, one for each row.
func (c *integerProgram) newAscent(y []float64, level float64) *ascent {
	a := &ascent{c: c, relax: c.relax, current: c.newPoint(), best: c.newPoint(), direction: make([]float64, len(y)), level: level}
	copy(a.current.y, y)
	a.best.value = math.Inf(-1)
	return a
}

// runAscent makes up to n steps. It stops when the bound cannot rise further, proves the gap or shows
// that no counts are feasible. It also stops when only the reserved effort remains.
func (a *ascent) runAscent(n int) {
	for range n {
		if a.c.work.remaining < a.reservedEffort && !math.IsInf(a.best.value, -1) || !a.relax(a.current) {
			return
		}
		rise := a.current.value - a.best.value
		switch {
		case math.IsInf(a.current.value, 1) || math.IsInf(a.best.value, -1) || rise > 0:
			if rise > 0.3*a.level*math.Abs(a.best.value) {
				a.stuck = 0
			}
			a.best.copy(a.current)
			a.c.repairCounts(a.current)
		default:
			a.stuck++
		}
		if a.best.value > a.c.maxCost || math.IsInf(a.best.value, 1) || a.c.provesGap(a.best.value) {
			return
		}
		if a.stuck >= maxStuck {
			a.level, a.stuck = a.level/2, 0
			a.current.copy(a.best)
			clear(a.direction)
		}
		if a.level < minLevel || !a.stepAscent() {
			return
		}
	}
}

// stepAscent moves the prices of the rows. It returns false when the subgradient does not move them: the bound is
// then at its maximum.
func (a *ascent) stepAscent() bool {
	var dot, norm, gradientNorm float64
	for r, row := range a.c.rows {
		g := a.current.use[r] - row.rhs
		if g < 0 && a.current.y[r] <= 0 {
			continue
		}
		gradientNorm += g * g
		dot += g * a.direction[r]
		norm += a.direction[r] * a.direction[r]
	}
	if gradientNorm == 0 {
		return false
	}
	beta := 0.0
	if dot < 0 {
		beta = -1.5 * dot / norm
	} else if norm > 0 {
		beta = 0.3 * math.Sqrt(gradientNorm/norm)
	}
	norm = 0
	for r, row := range a.c.rows {
		g := a.current.use[r] - row.rhs
		d := g + beta*a.direction[r]
		if a.current.y[r] <= 0 && d < 0 {
			d = 0
		}
		a.direction[r] = d
		norm += d * d
	}
	if norm == 0 {
		return false
	}
	target := a.best.value + a.level*math.Max(math.Abs(a.best.value), 1e-3)
	if a.c.best != nil {
		target = math.Min(target, math.Max(a.c.bestCost, a.best.value+minLevel*math.Abs(a.best.value)))
	}
	length := (target - a.current.value) / norm
	for r := range a.current.y {
		a.current.y[r] = math.Max(0, a.current.y[r]+length*a.direction[r])
	}
	return true
}

const (
	maxBisectedRows = 16 // rows up to which bisectPrices is used
	bisections      = 50 // steps for each row: prices are then exact but for rounding
)

// bisectPrices raises the bound further, row by row: the bound is concave in the price of a row. An ascent only comes
// near the maximum of the bound, which is not enough to prove an optimum if one replica costs less than a millionth of
// the total.
func (c *integerProgram) bisectPrices(best *point) {
	if len(c.rows) > maxBisectedRows || c.best == nil { // without counts, the effort is needed to find some
		return
	}
	at := c.newPoint()
	for r, row := range c.rows {
		copy(at.y, best.y)
		low, high := 0.0, 2*best.y[r]+1e-6
		for range bisections {
			at.y[r] = (low + high) / 2
			if !c.relax(at) || math.IsInf(at.value, 1) {
				return
			}
			if at.value > best.value {
				best.copy(at)
			}
			c.repairCounts(at)
			if c.provesGap(best.value) {
				return
			}
			if at.use[r] > row.rhs {
				low = at.y[r]
			} else {
				high = at.y[r]
			}
		}
	}
}
