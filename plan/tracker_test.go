package plan

import (
	"math"
	"math/rand/v2"
	"slices"
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
				tracker.observe(m-1, load[m-1]/1000, 99)
			}
			if len(want) > 1 && want[1].Minute <= m {
				want = want[1:]
			}
			if got := tracker.needed; got != want[0].Counts[0][0][0] {
				t.Fatalf("minute %d: %d replicas, reactive has %d", m, got, want[0].Counts[0][0][0])
			}
		}
	}
}

// A tracking requires the replicas for the highest load of its window, the level of an hour and the forecast, at
// most those of the reactive rule or of the last minute.
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
			tracker.add(m, v)
			top := 0.0
			for _, w := range loads[max(0, m+1-window):] {
				if w > top {
					top = w
				}
			}
			hour = append(hour, v)
			hour = hour[max(0, len(hour)-60):]
			need := max(int(math.Ceil(top/0.7)), int(math.Ceil(tracking.Headroom*levelOf(hour, startUp+1)-1e-9)), forecast)
			want := min(need, max(tracker.reactive, int(math.Ceil(v/0.7))))
			if got := tracking.required(tracker.state(startUp), tracker.highest(m, tracking.StabilizationWindow), forecast); got != want {
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

// Whatever the load and the tracking, a tracker has used at most the replica-minutes of the reactive rule, and
// while it has had more overload, at least its replicas.
func TestTrackerPaysForItsReplicas(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 11))
	for range 100 {
		startUp := rng.IntN(12)
		tracker := newLoadTracker(Tracking{StabilizationWindow: time.Duration(1+rng.IntN(60)) * time.Minute, Headroom: 2 * rng.Float64(), StartUp: time.Duration(startUp) * time.Minute}, 10)
		own, reactive := groupState{ready: tracker.needed}, groupState{ready: tracker.needed}
		var hours [2]int
		var overload [2]float64
		for m := range 2000 {
			if m > 0 {
				own.scale(tracker.needed-own.count(), m+startUp)
				reactive.scale(tracker.reactive-reactive.count(), m+startUp)
				own.advance(m)
				reactive.advance(m)
			}
			load := 30 * rng.Float64() * rng.Float64()
			for i, g := range []*groupState{&own, &reactive} {
				hours[i] += g.count()
				overload[i] += math.Max(0, load-float64(g.ready))
			}
			if hours[0] > hours[1] {
				t.Fatalf("minute %d: %d replica-minutes, the reactive rule has %d", m, hours[0], hours[1])
			}
			if n := tracker.observe(m, load, rng.IntN(30)); overload[0] > overload[1]+1e-6 && n < tracker.reactive {
				t.Fatalf("minute %d: %d replicas after more overload, the reactive rule has %d", m, n, tracker.reactive)
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
		if got := calibrateTracking(load, 10); !got.isReactive() {
			t.Errorf("%s: %+v", name, got)
		}
	}
	saved := false
	for range 5 {
		load := noisy(4 * 1440)
		tracking := calibrateTracking(load, 10)
		chosen, reactive := simulateTracking(load, 10, tracking), simulateReactive(load, 10)
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

// simulateTracking replays a tracking over a past load.
func simulateTracking(load []float64, startUp int, tracking Tracking) trackingResult {
	states, highest := trackedMinutes(load, startUp)
	w := slices.Index(stabilizationWindows, int(tracking.StabilizationWindow/time.Minute))
	return replayCounts(len(load), startUp, math.MaxInt, func(m int) int { return tracking.required(states[m], highest[w][m], 0) })
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
