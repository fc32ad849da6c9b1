package plan

import (
	"math"
	"math/rand/v2"
	"testing"
)

// hindsightMinutes returns a lower bound on the replica-minutes of any schedule of one endpoint that knows the load in
// advance and leaves at most an amount of it above the capacity. A replica costs its start-up and its ready minutes; those
// of the first minute are ready, as in a replay. The bound is the highest value of the Lagrangian: for each price of
// overload, the n-th replica's schedule is optimal on its own, because it serves the load between n-1 and n. Loads are
// in replicas.
func hindsightMinutes(load []float64, startUp int, overload float64) float64 {
	best, low, high := 0.0, 0.0, 1.0
	for range 40 {
		cost, left := pricedSchedule(load, startUp, high)
		best = max(best, cost+high*(left-overload))
		if left <= overload || high > 1e7 {
			break
		}
		low, high = high, 4*high
	}
	for range 25 {
		price := (low + high) / 2
		cost, left := pricedSchedule(load, startUp, price)
		best = max(best, cost+price*(left-overload))
		if left > overload {
			low = price
		} else {
			high = price
		}
	}
	return best
}

// pricedSchedule returns the replica-minutes, and the load above the capacity, of the schedule with the lowest sum of
// replica-minutes and priced overload.
func pricedSchedule(load []float64, startUp int, price float64) (minutes, overload float64) {
	top := 0.0
	for _, v := range load {
		top = max(top, v)
	}
	for n := range int(math.Ceil(top)) {
		m, o := pricedReplica(load, startUp, n, price)
		minutes, overload = minutes+m, overload+o
	}
	return minutes, overload
}

// replicaCost is the minutes and the overload of one replica's schedule.
type replicaCost struct{ minutes, overload float64 }

// pricedReplica returns the cost of the optimal schedule of the replica that serves the load between n and n+1. In each
// minute it is ready or off; it becomes ready after a start-up that begins in minute 0 or later.
func pricedReplica(load []float64, startUp, n int, price float64) (minutes, overload float64) {
	var on, off replicaCost
	cheaper := func(a, b replicaCost) replicaCost {
		if b.minutes+price*b.overload < a.minutes+price*a.overload {
			return b
		}
		return a
	}
	for m, v := range load {
		nextOn, nextOff := on, cheaper(off, on)
		if m >= startUp {
			nextOn = cheaper(on, replicaCost{off.minutes + float64(startUp), off.overload})
		}
		on = replicaCost{nextOn.minutes + 1, nextOn.overload}
		off = replicaCost{nextOff.minutes, nextOff.overload + min(1, max(0, v-float64(n)))}
	}
	best := cheaper(on, off)
	return best.minutes, best.overload
}

// The bound is never above the cheapest of all schedules, and equals it where no load may be above the capacity.
func TestHindsightBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(25, 25))
	for range 30 {
		load := make([]float64, 6)
		for m := range load {
			load[m] = float64(rng.IntN(7)) / 2
		}
		startUp := rng.IntN(3)
		for _, allowed := range []float64{0, 1, 2.5} {
			best := math.Inf(1)
			counts := make([]int, len(load))
			for code := range 4 * 4 * 4 * 4 * 4 * 4 {
				for m := range counts {
					counts[m] = code >> (2 * m) & 3
				}
				best = min(best, scheduleMinutes(load, counts, startUp, allowed))
			}
			bound := hindsightMinutes(load, startUp, allowed)
			if bound > best+1e-6 {
				t.Fatalf("loads %v, start-up %d, overload %g: bound %g, a schedule needs %g", load, startUp, allowed, bound, best)
			}
			if allowed == 0 && bound < best-1e-6 {
				t.Fatalf("loads %v, start-up %d, no overload: bound %g, the optimum is %g", load, startUp, bound, best)
			}
		}
	}
}

// scheduleMinutes returns the replica-minutes of ready counts by minute, infinite if they cannot be reached or more
// than an amount of load is above them.
func scheduleMinutes(load []float64, counts []int, startUp int, allowed float64) float64 {
	total, overload, have := 0, 0.0, counts[0]
	for m, n := range counts {
		if n > have {
			if m < startUp {
				return math.Inf(1)
			}
			total += (n - have) * startUp
		}
		have = n
		total += n
		overload += max(0, load[m]-float64(n))
	}
	if overload > allowed+1e-9 {
		return math.Inf(1)
	}
	return float64(total)
}
