package plan

import "math"

// relTolerance is how far sums of decimal prices and rates may be off by
// rounding: 0.7 x 10 must not ask for more than 7.
const relTolerance = 1e-9

// costTolerance is the share by which costs differ that are called equal: prices
// are not known as well, and no bill shows it.
const costTolerance = 1e-7

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

// part is a budget of at most so much of what is left; settle charges it.
func (e *effort) part(limit int64) effort { return effort{left: min(limit, e.left), stop: e.stop} }

// settle charges what was spent of a part that began with a budget of given.
func (e *effort) settle(part *effort, given int64) {
	e.left -= given - part.left
	if part.stopped {
		e.left, e.stopped = -1, true
	}
}

func (e *effort) spent() bool { return e.left < 0 }
