package plan

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// With window 0 a tracker is the reactive rule.
func TestTrackerWithoutWindowIsReactive(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for range 50 {
		load := make([]float64, 300)
		for m := range load {
			load[m] = float64(rng.IntN(9000))
		}
		p := pastOf(load...)
		want := p.Reactive()
		tracker := newLoadTracker(Tracking{}, load[0]/1000)
		for m := range load {
			if m > 0 {
				tracker.observe(m-1, load[m-1]/1000)
			}
			if len(want) > 1 && want[1].Minute <= m {
				want = want[1:]
			}
			if got := tracker.count(99); got != want[0].Counts[0][0][0] {
				t.Fatalf("minute %d: %d replicas, reactive has %d", m, got, want[0].Counts[0][0][0])
			}
		}
	}
}

// A tracker has the replicas for the highest load of its window, the mean load of an hour and the
// forecast, at most those of the reactive rule or of the last minute.
func TestTrackerEqualsHighestLoadOfWindow(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	for range 50 {
		window, headroom, forecast := 1+rng.IntN(30), float64(rng.IntN(3)), rng.IntN(20)
		tracker := newLoadTracker(Tracking{StabilizationWindow: time.Duration(window) * time.Minute, Headroom: headroom}, 3)
		var loads []float64
		for m := range 200 {
			v := 20 * rng.Float64() * rng.Float64()
			if rng.IntN(10) == 0 {
				v = math.NaN()
			}
			loads = append(loads, v)
			tracker.observe(m, v)
			if math.IsNaN(v) {
				continue
			}
			top := 0.0
			for _, w := range loads[max(0, m+1-window):] {
				if w > top {
					top = w
				}
			}
			mean, known := 0.0, 0
			for m := len(loads) - 1; m >= 0 && known < 60; m-- {
				if !math.IsNaN(loads[m]) {
					mean, known = mean+loads[m], known+1
				}
			}
			need := max(int(math.Ceil(top/0.7)), int(math.Ceil(headroom*mean/float64(known)-1e-9)), forecast)
			want := min(need, max(tracker.reactive, int(math.Ceil(v/0.7))))
			if got := tracker.count(forecast); got != want {
				t.Fatalf("minute %d, window %d: %d replicas, want %d", m, window, got, want)
			}
		}
	}
}

// A calibration selects nothing from less than a day with load, and never a tracking that left more of the
// past load above capacity than the reactive rule, nor of a load that is a tenth higher.
func TestCalibratedTracking(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 10))
	noisy := func(minutes int) []float64 {
		out := make([]float64, minutes)
		for m := range out {
			out[m] = 10 * (1 + 0.8*math.Cos(float64(m)*math.Pi/720)) * math.Exp(0.15*rng.NormFloat64())
		}
		return out
	}
	for name, load := range map[string][]float64{
		"less than a day": noisy(calibrationMinutes - 1), "no load for days": append(make([]float64, 3*1440), noisy(calibrationMinutes-1)...),
	} {
		if got := calibrateTracking(load, 10); got != (Tracking{}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	saved := false
	for range 5 {
		load := noisy(4 * 1440)
		tracking := calibrateTracking(load, 10)
		chosen, reactive := simulateTracking(load, 10, tracking), simulateTracking(load, 10, Tracking{})
		for _, factor := range []float64{1, 1.1} {
			var overload [2]float64
			for m, v := range load {
				overload[0] += math.Max(0, factor*v-float64(chosen.ready[m]))
				overload[1] += math.Max(0, factor*v-float64(reactive.ready[m]))
			}
			if overload[0] > overload[1]+1e-6 || chosen.replicaMinutes > reactive.replicaMinutes {
				t.Errorf("%+v: overload %g, reactive %g, at %g times the load", tracking, overload[0], overload[1], factor)
			}
		}
		saved = saved || chosen.replicaMinutes < reactive.replicaMinutes
	}
	if !saved {
		t.Error("no tracking saved replica-hours")
	}
}

// A saving that depends on luck is no proof: the same overload on average, with bursts that one rule
// survives and the other does not, in turn.
func TestProofNeedsMoreThanChance(t *testing.T) {
	load := make([]float64, 20*errorBlockMinutes)
	one, other := trackingResult{ready: make([]int32, len(load))}, trackingResult{ready: make([]int32, len(load))}
	for m := range load {
		load[m], one.ready[m], other.ready[m] = 10, 20, 20
	}
	if !one.notWorseThan(other, load) {
		t.Error("no overload is not more than none")
	}
	for b := range 20 {
		if b%2 == 0 {
			one.ready[b*errorBlockMinutes] = 5
		} else {
			other.ready[b*errorBlockMinutes] = 5
		}
	}
	if one.notWorseThan(other, load) {
		t.Error("equal overload in different hours was accepted")
	}
	for b := range 20 {
		one.ready[b*errorBlockMinutes] = 20
	}
	if !one.notWorseThan(other, load) {
		t.Error("less overload in every hour was rejected")
	}
}

// The plan has at most the overload and the hours of the reactive rule, on a daily load and on a day of
// twice the usual load.
func TestPlanHasAtMostReactiveOverloadAndHours(t *testing.T) {
	for name, change := range map[string]func(minute int, tps float64) float64{
		"daily": func(_ int, tps float64) float64 { return tps / 2 },
		"strong day": func(m int, tps float64) float64 {
			if m/1440 == 2 {
				return tps / 1.2
			}
			return tps / 2.4
		},
	} {
		b := backtested(t, days(t, 4, change), BacktestOptions{})
		planned, reactive := b.Rules[0], b.Rules[3]
		if planned.OverloadTokens > reactive.OverloadTokens || planned.ReplicaHours > reactive.ReplicaHours {
			t.Errorf("%s: %+v, reactive %+v", name, planned, reactive)
		}
	}
}

// Minutes without a known load prove nothing: they neither add to an overload nor hide it.
func TestUnknownMinutesProveNothing(t *testing.T) {
	load := make([]float64, 120)
	for m := range load {
		load[m] = 2
	}
	load[60] = math.NaN()
	fewer, reactive := trackingResult{ready: make([]int32, 120)}, trackingResult{ready: make([]int32, 120)}
	for m := range load {
		fewer.ready[m], reactive.ready[m] = 1, 3 // one replica has an overload in every minute, three have none
	}
	if fewer.notWorseThan(reactive, load) {
		t.Error("an overload in all known minutes counts as proven because one minute is unknown")
	}
	if !reactive.notWorseThan(fewer, load) {
		t.Error("no overload is not proven")
	}
}
