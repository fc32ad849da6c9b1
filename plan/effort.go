package plan

import "math"

// relTolerance is the rounding error of sums of decimal prices and rates: 0.7 x 10 must not require
// more than 7.
const relTolerance = 1e-9

// costTolerance is the relative difference below which costs are equal: prices are not known more
// precisely, and bills do not show smaller differences.
const costTolerance = 1e-7

// meetsNeed reports whether a capacity meets a need up to rounding.
func meetsNeed(capacity, need float64) bool { return capacity >= need-relTolerance*math.Max(1, need) }

// roundingError returns the rounding error of costs of this size.
func roundingError(cost float64) float64 { return relTolerance * math.Max(1e-3, math.Abs(cost)) }

// unitsFor returns how many units with a throughput of tps each cover a need; 0 for no need.
func unitsFor(need, tps float64) int {
	if need <= 0 || tps <= 0 {
		return 0
	}
	u := math.Ceil(need/tps - relTolerance*math.Max(1, need/tps))
	return int(math.Min(u, maxCount))
}

// effort limits the solver's work by a number of counted operations. Unlike a time limit, it yields
// the same result on every machine.
type effort struct {
	remaining     int64
	interrupt     func() bool // the caller's interrupt, nil for none
	nextInterrupt int64       // the remaining work at which interrupt is called next
	// stopped is set when the caller interrupted the work.
	stopped bool
}

// interruptEvery is the work between two calls of the interrupt: a few milliseconds.
const interruptEvery = 500_000

// spend uses n units of work and reports whether it was within the limit.
func (e *effort) spend(n int) bool {
	e.remaining -= int64(n)
	if e.interrupt != nil && e.remaining >= 0 && (e.nextInterrupt == 0 || e.remaining <= e.nextInterrupt) {
		if e.nextInterrupt = max(1, e.remaining-interruptEvery); e.interrupt() {
			e.remaining, e.stopped = -1, true
		}
	}
	return e.remaining >= 0
}

// split returns an effort of its own for a part of the work: the remaining work, but at most limit.
// Call charge when the part is done.
func (e *effort) split(limit int64) effort {
	return effort{remaining: min(limit, e.remaining), interrupt: e.interrupt}
}

// charge subtracts the work of a part that began with initial units.
func (e *effort) charge(part *effort, initial int64) {
	e.remaining -= initial - part.remaining
	if part.stopped {
		e.remaining, e.stopped = -1, true
	}
}

func (e *effort) exhausted() bool { return e.remaining < 0 }
