package plan

import (
	"math"
	"slices"
	"time"
)

const (
	// trackedUtilisation is the share of its throughput at which a replica is planned to run: the
	// remainder is for the rise of the load while more replicas start. It is that of the reactive rule.
	trackedUtilisation = reactiveOut
	// calibrationMinutes is the number of past minutes with load from which a tracking is calibrated.
	// With fewer, the reactive rule decides.
	calibrationMinutes = 24 * 60
	// maxCalibrationMinutes bounds the past that is replayed.
	maxCalibrationMinutes = 14 * 24 * 60
	// headroomMinutes is the period of the mean load that the headroom multiplies.
	headroomMinutes = 60
	// minSaving is the share of the reactive rule's replica-hours that a tracking must save: less is not
	// worth the risk that the load to come differs from the past.
	minSaving = 0.03
	// errorBlockMinutes is the length of the blocks over which the standard error of past overload is computed.
	errorBlockMinutes = 60
)

// stabilizationWindows and headrooms are the candidates of a calibration: windows in minutes, headrooms as
// multiples of the mean load.
var (
	stabilizationWindows = []int{5, 10, 20, 30, 60, 240}
	headrooms            = []float64{0, 1.6, 1.8, 2, 2.2}
)

// testedLoadFactors are the multiples of the past load at which tracking it must have had at most the overload
// of the reactive rule: the load to come is not exactly that of the past.
var testedLoadFactors = [...]float64{1, 1.05, 1.1}

// Tracking is how predictive follows a load. The zero value is the reactive rule of `plan backtest`.
type Tracking struct {
	// StabilizationWindow is how long replicas are kept for the highest load of a minute, like the
	// stabilization window of the Kubernetes HorizontalPodAutoscaler.
	StabilizationWindow time.Duration
	// Headroom is the minimum capacity as a multiple of the mean load of the last hour; 0 = none.
	Headroom float64
}

// loadTracker returns the replicas that a load needs, minute by minute: those that run at
// trackedUtilisation under the highest load of the window, and those of the headroom. Replicas are
// added at once. The count is never above that of the reactive rule, which removes no replica above
// 30 % utilisation, unless the load of the last minute needs more. Loads are in replicas: load divided
// by a replica's throughput.
type loadTracker struct {
	tracking Tracking
	reactive int
	// recent are the loads of the window that are higher than all later ones; hour are the known loads of the
	// last hour, and sum is their sum.
	recent []trackedLoad
	hour   []float64
	sum    float64
}

type trackedLoad struct {
	minute int
	load   float64
}

// newLoadTracker returns a tracker whose reactive rule starts with the replicas that a load needs.
func newLoadTracker(tracking Tracking, load float64) *loadTracker {
	return &loadTracker{tracking: tracking, reactive: trackedCount(load)}
}

// trackedCount returns the replicas that run at trackedUtilisation under a load.
func trackedCount(load float64) int { return unitsFor(load, trackedUtilisation) }

// observe adds the load of a minute, NaN for an unknown one. Minutes must not go backwards.
func (t *loadTracker) observe(minute int, load float64) {
	if math.IsNaN(load) {
		return
	}
	t.reactive = reactiveCount(t.reactive, load)
	n := len(t.recent)
	for n > 0 && t.recent[n-1].load <= load {
		n--
	}
	t.recent = append(t.recent[:n], trackedLoad{minute, load})
	for len(t.recent) > 1 && t.recent[0].minute <= minute-int(t.tracking.StabilizationWindow/time.Minute) {
		t.recent = t.recent[1:]
	}
	t.hour, t.sum = append(t.hour, load), t.sum+load
	if len(t.hour) > headroomMinutes {
		t.sum -= t.hour[0]
		t.hour = t.hour[1:]
	}
}

// count returns the replicas that are needed now, where a forecast requires a number of replicas.
func (t *loadTracker) count(forecast int) int {
	n := len(t.recent)
	if t.tracking == (Tracking{}) || n == 0 {
		return t.reactive
	}
	return t.tracking.required(t.minute(), forecast)
}

// trackerState is what a tracker knows in a minute: the count of the reactive rule, those for the last
// and the highest load of the window, and the mean load of the last hour.
type trackerState struct {
	reactive, last, top int
	mean                float64
}

func (t *loadTracker) minute() trackerState {
	return trackerState{
		t.reactive, trackedCount(t.recent[len(t.recent)-1].load), trackedCount(t.recent[0].load), max(t.sum, 0) / float64(len(t.hour)),
	}
}

// required returns the replicas that are needed in a minute.
func (t Tracking) required(m trackerState, forecast int) int {
	need := max(forecast, m.top)
	if t.Headroom > 0 {
		need = max(need, unitsFor(t.Headroom*m.mean, 1))
	}
	return min(need, max(m.reactive, m.last))
}

// reactiveCount is a minute of the reactive rule for replicas of one kind; LoadTrace.Reactive is the
// rule for any.
func reactiveCount(have int, load float64) int {
	switch capacity := float64(have); {
	case load > reactiveOut*capacity:
		return min(trackedCount(load), have+reactivePerMinute)
	case load < reactiveIn*capacity && load <= reactiveOut*(capacity-1):
		return have - 1
	}
	return have
}

// calibrateTracking returns the tracking with the fewest replica-hours among those that follow a past
// load with at most the overload of the reactive rule; that rule where none saves minSaving, or where too
// little load is known. At each of testedLoadFactors, the difference in overload plus its standard error must not
// be positive. The load is by minute, in replicas, NaN where unknown; startUp is in minutes.
func calibrateTracking(load []float64, startUp int) Tracking {
	load = load[max(0, len(load)-maxCalibrationMinutes):]
	known := 0
	for _, v := range load {
		if v > 0 {
			known++
		}
	}
	if known < calibrationMinutes {
		return Tracking{}
	}
	reactive := simulateTracking(load, startUp, Tracking{})
	best, fewest := Tracking{}, int((1-minSaving)*float64(reactive.replicaMinutes))
	for _, window := range stabilizationWindows {
		minutes := trackedMinutes(load, time.Duration(window)*time.Minute)
		for _, headroom := range headrooms {
			t := Tracking{time.Duration(window) * time.Minute, headroom}
			past := replayCounts(len(load), startUp, fewest, func(m int) int { return t.required(minutes[m], 0) })
			if past.replicaMinutes < fewest && past.notWorseThan(reactive, load) {
				best, fewest = t, past.replicaMinutes
			}
		}
	}
	return best
}

// trackedMinutes returns what a tracker with a window knows in each minute of a past load.
func trackedMinutes(load []float64, window time.Duration) []trackerState {
	t := newLoadTracker(Tracking{StabilizationWindow: window}, knownAt(load, 0))
	out := make([]trackerState, len(load))
	out[0] = trackerState{reactive: t.reactive, last: t.reactive, top: t.reactive}
	for m := 1; m < len(load); m++ {
		if t.observe(m-1, load[m-1]); len(t.recent) == 0 {
			out[m] = out[0]
			continue
		}
		out[m] = t.minute()
	}
	return out
}

// trackingResult is the result of tracking a past load: replica-minutes, including those of starting
// replicas, and the ready replicas by minute.
type trackingResult struct {
	replicaMinutes int
	ready          []int32
}

// simulateTracking tracks a past load.
func simulateTracking(load []float64, startUp int, tracking Tracking) trackingResult {
	t := newLoadTracker(tracking, knownAt(load, 0))
	return replayCounts(len(load), startUp, math.MaxInt, func(m int) int {
		if m > 0 {
			t.observe(m-1, load[m-1])
		}
		return t.count(0)
	})
}

// replayCounts replays the counts of a number of minutes, and ends early at a number of replica-minutes.
func replayCounts(minutes, startUp, limit int, count func(minute int) int) trackingResult {
	out := trackingResult{ready: make([]int32, minutes)}
	replicas := groupState{ready: count(0)}
	total := replicas.ready
	for m := 0; m < minutes && out.replicaMinutes < limit; m++ {
		if n := count(m); n != total {
			replicas.scale(n-total, m+startUp)
			total = n
		}
		replicas.advance(m)
		out.replicaMinutes += total
		out.ready[m] = int32(min(replicas.ready, math.MaxInt32))
	}
	return out
}

// notWorseThan reports whether the overload of a past was at most that of another one by a standard
// error, at all testedLoadFactors.
func (p trackingResult) notWorseThan(other trackingResult, load []float64) bool {
	for _, factor := range testedLoadFactors {
		sum, squares := 0.0, 0.0
		first := 0
		for minutes := range slices.Chunk(load, errorBlockMinutes) {
			excess := 0.0
			for m, v := range minutes {
				if p.ready[first+m] == other.ready[first+m] {
					continue
				}
				excess += overloadOf(factor*v, p.ready[first+m]) - overloadOf(factor*v, other.ready[first+m])
			}
			first += len(minutes)
			sum, squares = sum+excess, squares+excess*excess
		}
		if sum+math.Sqrt(squares) > relTolerance {
			return false
		}
	}
	return true
}

// overloadOf returns the load above the capacity of ready replicas, 0 where it is unknown.
func overloadOf(load float64, ready int32) float64 {
	if capacity := float64(ready); load > capacity {
		return load - capacity
	}
	return 0
}

// startUpMinutes returns a start-up time in whole minutes, as replays count them.
func startUpMinutes(d time.Duration) int { return int(math.Ceil(d.Minutes())) }
