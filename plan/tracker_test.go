package plan

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// With window 0 a tracker is the threshold rule.
func TestTrackerWithoutWindowIsThreshold(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for range 50 {
		load := make([]float64, 300)
		for m := range load {
			load[m] = float64(rng.IntN(9000))
		}
		p := pastOf(load...)
		want := p.ThresholdCounts()
		tracker := newLoadTracker(Tracking{}, load[0]/1000)
		for m := range load {
			if m > 0 {
				tracker.observe(m-1, load[m-1]/1000, 99)
			}
			if len(want) > 1 && want[1].Minute <= m {
				want = want[1:]
			}
			if got := tracker.needed; got != want[0].Counts[0][0][0] {
				t.Fatalf("minute %d: %d replicas, threshold has %d", m, got, want[0].Counts[0][0][0])
			}
		}
	}
}

// A tracking requires the replicas for the highest load of its window, the level of an hour and the forecast, at
// most those of the threshold rule or of the last minute.
func TestTrackingEqualsHighestLoadOfWindow(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	for range 50 {
		window, startUp, forecast := 1+rng.IntN(30), rng.IntN(12), rng.IntN(20)
		tracking := Tracking{StabilizationWindow: time.Duration(window) * time.Minute, Headroom: float64(rng.IntN(3))}
		tracker := newLoadTracker(tracking, 3)
		var loads, hour []float64
		for m := range 200 {
			v := 20 * rng.Float64() * rng.Float64()
			if rng.IntN(10) == 0 {
				v = math.NaN()
			}
			loads = append(loads, v)
			if math.IsNaN(v) {
				continue
			}
			tracker.addLoad(m, v)
			top := 0.0
			for _, w := range loads[max(0, m+1-window):] {
				if w > top {
					top = w
				}
			}
			hour = append(hour, v)
			hour = hour[max(0, len(hour)-60):]
			need := max(int(math.Ceil(top/0.7)), int(math.Ceil(tracking.Headroom*levelOf(hour, startUp+1)-1e-9)), forecast)
			want := min(need, max(tracker.threshold, int(math.Ceil(v/0.7))))
			if got := tracking.required(tracker.state(startUp), tracker.highestLoad(m, tracking.StabilizationWindow), forecast); got != want {
				t.Fatalf("minute %d, window %d: %d replicas, want %d", m, window, got, want)
			}
		}
	}
}

// levelOf is the mean of loads, or what their regression line rises to in some minutes.
func levelOf(loads []float64, ahead int) float64 {
	n, mean := float64(len(loads)), 0.0
	for _, v := range loads {
		mean += v / n
	}
	if len(loads) < 60 {
		return mean
	}
	var xy, xx float64
	for i, v := range loads {
		x := float64(i) - (n-1)/2
		xy, xx = xy+x*(v-mean), xx+x*x
	}
	return math.Max(mean, mean+xy/xx*((n-1)/2+float64(ahead)))
}

// Whatever the load and the tracking, a tracker has used at most the replica-minutes of the threshold rule. While it
// has had more overload than that rule and the tolerated share of the load, it has at least the replicas of that rule.
// Its overload is at most that of the rule plus the tolerance plus n for each minute of a start-up, where n is the
// largest number of replicas by which it was below the rule.
func TestTrackerUsesNoMoreThanThreshold(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 11))
	for i := range 100 {
		startUp, tolerance := rng.IntN(12), 0.01*float64(i%2)*rng.Float64()
		tracker := newLoadTracker(Tracking{StabilizationWindow: time.Duration(1+rng.IntN(60)) * time.Minute, Headroom: 2 * rng.Float64(), StartUp: time.Duration(startUp) * time.Minute, OverloadTolerance: tolerance}, 10)
		var counts [2][]int
		var hours [2]int
		var overload [2]float64
		fewer, tolerated := 0, 0.0
		for m := range 2000 {
			load := 30 * rng.Float64() * rng.Float64()
			for i, n := range []int{tracker.needed, tracker.threshold} {
				counts[i] = append(counts[i], n)
				hours[i] += n
				overload[i] += math.Max(0, load-float64(readyOf(counts[i], startUp)))
			}
			fewer, tolerated = max(fewer, counts[1][m]-counts[0][m]), tolerated+tolerance*load
			if hours[0] > hours[1] {
				t.Fatalf("minute %d: %d replica-minutes, the threshold rule has %d", m, hours[0], hours[1])
			}
			if bound := float64(fewer*(startUp+1)) + tolerated; overload[0]-overload[1] > bound+1e-6 {
				t.Fatalf("minute %d: overload %g, the threshold rule has %g; at most %g more", m, overload[0], overload[1], bound)
			}
			if n := tracker.observe(m, load, rng.IntN(30)); overload[0] > overload[1]+tolerated+1e-6 && n < tracker.threshold {
				t.Fatalf("minute %d: %d replicas after more overload, the threshold rule has %d", m, n, tracker.threshold)
			}
		}
	}
}

// readyOf returns the ready replicas of the last minute: those that ran since a start-up time ago.
func readyOf(counts []int, startUp int) int {
	return slices.Min(counts[max(0, len(counts)-1-startUp):])
}

// No rule without knowledge of the future can save replica-hours and never have more overload: where the threshold rule
// has had none, a minute with exactly its capacity is overload for a rule with fewer replicas.
func TestSavingCanCauseOverload(t *testing.T) {
	const startUp = 10
	rng := rand.New(rand.NewPCG(12, 12))
	past := make([]float64, 4*1440)
	for m := range past {
		past[m] = 10 * (1 + 0.8*math.Cos(float64(m)*math.Pi/720)) * math.Exp(0.15*rng.NormFloat64())
	}
	tracking := calibrateTracking(past, startUp, 0)
	if tracking.isThreshold() {
		t.Fatal("no tracking saved replica-hours")
	}
	tracker := newLoadTracker(tracking, past[0])
	var counts [2][]int
	for m := range past {
		counts[0], counts[1] = append(counts[0], tracker.needed), append(counts[1], tracker.threshold)
		own, threshold := readyOf(counts[0], startUp), readyOf(counts[1], startUp)
		if past[m] > float64(min(own, threshold)) {
			t.Fatalf("minute %d: overload before the jump", m)
		}
		if own >= threshold {
			tracker.observe(m, past[m], 0)
			continue
		}
		tracker.observe(m, float64(threshold), 0)
		if l := tracker.comparison; l.thresholdOverload != 0 || l.ownOverload != float64(threshold-own) {
			t.Errorf("overload %g, the threshold rule has %g, after a jump to its %d replicas with %d", l.ownOverload, l.thresholdOverload, threshold, own)
		}
		return
	}
	t.Error("the tracker never had fewer ready replicas than the threshold rule")
}

// A calibration selects nothing from less than a day with load, and never a tracking that left more of the
// past load above capacity than the threshold rule, nor of a load that is a fifth higher.
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
		"less than a day": noisy(minCalibrationMinutes - 1), "no load for days": append(make([]float64, 3*1440), noisy(minCalibrationMinutes-1)...),
	} {
		if got := calibrateTracking(load, 10, 0); !got.isThreshold() {
			t.Errorf("%s: %+v", name, got)
		}
	}
	saved, cheaper := false, false
	for range 5 {
		load := noisy(4 * 1440)
		tracking := calibrateTracking(load, 10, 0)
		chosen, threshold := simulateTracking(load, 10, tracking), simulateThreshold(load, 10)
		for _, factor := range []float64{1, 1.2} {
			var overload [2]float64
			for m, v := range load {
				overload[0] += math.Max(0, factor*v-float64(chosen.ready[m]))
				overload[1] += math.Max(0, factor*v-float64(threshold.ready[m]))
			}
			if overload[0] > overload[1]+1e-6 || chosen.replicaMinutes > threshold.replicaMinutes {
				t.Errorf("%+v: overload %g, threshold %g, at %g times the load", tracking, overload[0], overload[1], factor)
			}
		}
		saved = saved || chosen.replicaMinutes < threshold.replicaMinutes
		const tolerance = 0.002
		tolerant := simulateTracking(load, 10, calibrateTracking(load, 10, tolerance))
		var excess, total float64
		for m, v := range load {
			excess, total = excess+math.Max(0, v-float64(tolerant.ready[m]))-math.Max(0, v-float64(threshold.ready[m])), total+v
		}
		if excess > tolerance*total || tolerant.replicaMinutes > chosen.replicaMinutes {
			t.Errorf("%g of the load tolerated: %g more overload, %d replica-minutes after %d", tolerance, excess/total, tolerant.replicaMinutes, chosen.replicaMinutes)
		}
		cheaper = cheaper || tolerant.replicaMinutes < chosen.replicaMinutes
	}
	if !cheaper {
		t.Error("a tolerance never saved replica-hours")
	}
	if !saved {
		t.Error("no tracking saved replica-hours")
	}
}

// simulateTracking replays a tracking over a past load.
func simulateTracking(load []float64, startUp int, tracking Tracking) trackingResult {
	states, highest := trackedMinutes(load, startUp)
	w := slices.Index(stabilizationWindows, int(tracking.StabilizationWindow/time.Minute))
	return replayCounts(len(load), startUp, math.MaxInt, func(m int) int { return tracking.required(states[m], highest[w][m], 0) })
}

// A saving that may be due to chance is rejected: the same overload on average, with bursts that one rule
// survives and the other does not, in turn.
func TestCalibrationRejectsSavingsByChance(t *testing.T) {
	load := make([]float64, 20*errorBlockMinutes)
	one, other := trackingResult{ready: make([]int32, len(load))}, trackingResult{ready: make([]int32, len(load))}
	for m := range load {
		load[m], one.ready[m], other.ready[m] = 10, 20, 20
	}
	if !one.notWorseThan(other, load, 0) {
		t.Error("no overload is not more than none")
	}
	for b := range 20 {
		if b%2 == 0 {
			one.ready[b*errorBlockMinutes] = 5
		} else {
			other.ready[b*errorBlockMinutes] = 5
		}
	}
	if one.notWorseThan(other, load, 0) {
		t.Error("equal overload in different hours was accepted")
	}
	for b := range 20 {
		one.ready[b*errorBlockMinutes] = 20
	}
	if !one.notWorseThan(other, load, 0) {
		t.Error("less overload in every hour was rejected")
	}
}

// The plan has at most the overload and the hours of the threshold rule, on a daily load and on a day of
// twice the usual load.
func TestPredictiveHasAtMostThresholdOverload(t *testing.T) {
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
		planned, threshold := b.Rules[0], b.Rules[3]
		if planned.OverloadTokens > threshold.OverloadTokens || planned.ReplicaHours > threshold.ReplicaHours {
			t.Errorf("%s: %+v, threshold %+v", name, planned, threshold)
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
	fewer, threshold := trackingResult{ready: make([]int32, 120)}, trackingResult{ready: make([]int32, 120)}
	for m := range load {
		fewer.ready[m], threshold.ready[m] = 1, 3 // one replica has an overload in every minute, three have none
	}
	if fewer.notWorseThan(threshold, load, 0) {
		t.Error("an overload in all known minutes counts as proven because one minute is unknown")
	}
	if !threshold.notWorseThan(fewer, load, 0) {
		t.Error("no overload is not proven")
	}
}
