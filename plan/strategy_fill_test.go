package plan

import (
	"math"
	"testing"
	"time"
)

// hours updates a fill level every 5 s with so many first tokens per hour, of which the share given
// by late is late, and returns that share over the last half of the time.
func (l *fillLevel) hours(n, perHour float64, late func(fill float64) float64) float64 {
	var arrived, debt, all, gone float64
	looks := int(n * 720)
	for i := range looks {
		arrived += perHour / 720
		tokens := FirstTokens{Total: int64(arrived)}
		arrived -= float64(tokens.Total)
		debt += late(l.factor()) * float64(tokens.Total)
		tokens.Late = min(int64(debt), tokens.Total)
		debt -= float64(tokens.Late)
		l.update(l.at+5*time.Second, tokens)
		if i >= looks/2 {
			all, gone = all+float64(tokens.Total), gone+float64(tokens.Late)
		}
	}
	return gone / all
}

// Whatever the dependence of late first tokens on the fill level, their share converges to the
// target, with high and with low traffic.
func TestLateShareConvergesToItsTarget(t *testing.T) {
	for name, late := range map[string]func(fill float64) float64{
		"steep":        func(fill float64) float64 { return 0.02 * math.Pow(fill, 12) },
		"flat":         func(fill float64) float64 { return 0.06 * fill * fill * fill },
		"all or none":  func(fill float64) float64 { return map[bool]float64{true: 1}[fill > 0.9] },
		"far too many": func(fill float64) float64 { return 0.2 * math.Pow(fill, 5) },
	} {
		for _, perHour := range []float64{500, 50_000} {
			l := &fillLevel{targetLateShare: 0.05}
			if got := l.hours(200, perHour, late); math.Abs(got-0.05) > 0.004 {
				t.Errorf("%s, %g an hour: %.4f are late, want 0.05; filled %.2f times", name, perHour, got, l.factor())
			}
		}
	}
}

// Lateness that more replicas do not reduce does not add replicas without end, and no lateness does
// not fill them without end.
func TestFillLevelIsBounded(t *testing.T) {
	for share, want := range map[float64]float64{1: minFill, 0: maxFill} {
		l := &fillLevel{targetLateShare: 0.05}
		l.hours(100, 1000, func(float64) float64 { return share })
		if math.Abs(l.factor()-want) > 1e-9 {
			t.Errorf("%g are late: filled %g times, want %g", share, l.factor(), want)
		}
	}
}

// How far a model's replicas are filled after hours without lateness does not depend on how often the strategy is
// stepped, nor on the traffic: an hour of the usual traffic adds fillGain.
func TestFillLevelDoesNotDependOnTheStep(t *testing.T) {
	for _, perHour := range []int{20, 60, 600, 50_000} {
		for _, step := range []time.Duration{time.Second, 5 * time.Second, 15 * time.Second, time.Minute} {
			l := &fillLevel{targetLateShare: 0.05}
			reported := 0
			for now := step; now <= 6*time.Hour; now += step {
				total := int(float64(perHour) * now.Hours())
				l.update(now, FirstTokens{Total: int64(total - reported)})
				reported = total
			}
			if want := 6 * fillGain; math.Abs(l.logFactor-want) > 0.1*want {
				t.Errorf("%d first tokens an hour, a step every %s: the level rose by %.3f in 6 hours, want %.3f", perHour, step, l.logFactor, want)
			}
		}
	}
}

// A balancer that reconnects reports all counts since its start: one step must not undo what was
// learned over hours, nor what is learned after it.
func TestOneStepChangesFillLevelLittle(t *testing.T) {
	calm := func(float64) float64 { return 0.05 }
	for _, jump := range []FirstTokens{{1_000_000, 200_000}, {1_000_000, 0}} {
		l := &fillLevel{targetLateShare: 0.05}
		l.hours(10, 1000, calm)
		before := l.factor()
		l.update(l.at+5*time.Second, jump)
		if change := l.factor() / before; math.Abs(change-1) > 0.001 {
			t.Errorf("%+v: filled %g times as far", jump, change)
		}
		if l.usualRate > 1100 {
			t.Errorf("%+v: %g an hour are usual", jump, l.usualRate)
		}
	}
	before := FirstTokens{100, 10}
	for now, want := range map[FirstTokens]FirstTokens{{130, 12}: {30, 2}, {5, 1}: {}, {120, 3}: {}} {
		if got := now.since(before); got != want {
			t.Errorf("%+v since %+v: got %+v, want %+v", now, before, got, want)
		}
	}
}
