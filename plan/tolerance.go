package plan

import "math"

// relTolerance is how far sums of decimal prices and rates may be off by
// rounding: 0.7 x 10 must not ask for more than 7.
const relTolerance = 1e-9

// covers reports whether a capacity meets a need but for rounding.
func covers(capacity, need float64) bool { return capacity >= need-relTolerance*math.Max(1, need) }

// slackOf is the rounding that costs of this size carry.
func slackOf(cost float64) float64 { return relTolerance * math.Max(1e-3, math.Abs(cost)) }

// unitsFor is how many units of theta each cover a need; 0 for no need.
func unitsFor(need, theta float64) int {
	if need <= 0 || theta <= 0 {
		return 0
	}
	u := math.Ceil(need/theta - relTolerance*math.Max(1, need/theta))
	return int(math.Min(u, maxCount*1000))
}

// effort is a budget of counted work, so that a bound on effort gives the same
// answer on every machine.
type effort struct {
	left int64
	stop func() bool // the caller's own bound, nil for none
	next int64       // asked again when so much is left
	// stopped says that the caller ended it.
	stopped bool
}

// askEvery is the work between two questions to the caller: some milliseconds.
const askEvery = 500_000

// spend takes n units and reports whether the budget still stands.
func (e *effort) spend(n int) bool {
	e.left -= int64(n)
	if e.stop != nil && e.left >= 0 && (e.next == 0 || e.left <= e.next) {
		if e.next = max(1, e.left-askEvery); e.stop() {
			e.left, e.stopped = -1, true
		}
	}
	return e.left >= 0
}

// lend lets do spend up to most of the budget.
func (e *effort) lend(most int64, do func(part *effort)) {
	part := effort{left: min(most, e.left), stop: e.stop}
	before := part.left
	do(&part)
	e.left -= before - part.left
	if part.stopped {
		e.left, e.stopped = -1, true
	}
}

func (e *effort) spent() bool { return e.left < 0 }
