package plan

import (
	"math"
	"math/rand/v2"
	"testing"
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
		tracker := newLoadTracker(0, load[0]/1000)
		for m := range load {
			if m > 0 {
				tracker.observe(m-1, load[m-1]/1000)
			}
			if len(want) > 1 && want[1].Minute <= m {
				want = want[1:]
			}
			if got := tracker.count(); got != want[0].Counts[0][0][0] {
				t.Fatalf("minute %d: %d replicas, reactive has %d", m, got, want[0].Counts[0][0][0])
			}
		}
	}
}

// A tracker has the replicas for the highest load of its window, at most those of the reactive rule
// or of the last minute.
func TestTrackerEqualsHighestLoadOfWindow(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	for range 50 {
		window := 1 + rng.IntN(30)
		tracker := newLoadTracker(window, 3)
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
			want := min(int(math.Ceil(top/0.7)), max(tracker.reactive, int(math.Ceil(v/0.7))))
			if got := tracker.count(); got != want {
				t.Fatalf("minute %d, window %d: %d replicas, want %d", m, window, got, want)
			}
		}
	}
}

// A calibration never selects a window that left more of the past load above capacity than the
// reactive rule, and selects none from less than a day.
func TestCalibratedWindow(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 10))
	noisy := func(minutes int) []float64 {
		out := make([]float64, minutes)
		for m := range out {
			out[m] = 10 * (1 + 0.8*math.Cos(float64(m)*math.Pi/720)) * math.Exp(0.15*rng.NormFloat64())
		}
		return out
	}
	if got := calibrateWindow(noisy(calibrationMinutes-1), 10); got != 0 {
		t.Errorf("less than a day: %d minutes", got)
	}
	saved := false
	for range 5 {
		load := noisy(4 * 1440)
		window := calibrateWindow(load, 10)
		chosen, reactive := trackPast(load, 10, window), trackPast(load, 10, 0)
		if chosen.overload > reactive.overload+1e-6 || chosen.replicaMinutes > reactive.replicaMinutes {
			t.Errorf("window %d: %+v, reactive %+v", window, chosen, reactive)
		}
		saved = saved || chosen.replicaMinutes < reactive.replicaMinutes
	}
	if !saved {
		t.Error("no window saved replica-hours")
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
