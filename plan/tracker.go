package plan

import (
	"math"
	"time"
)

const (
	// trackedUtilisation is the share of its throughput at which a replica is planned to run: the
	// remainder is for the rise of the load while more replicas start. It is that of the reactive rule.
	trackedUtilisation = reactiveOut
	// calibrationMinutes is the known load from which a stabilization window is calibrated. With less,
	// the reactive rule decides.
	calibrationMinutes = 24 * 60
)

// stabilizationWindows are the windows that a calibration tries, in minutes. The shortest is twice
// the usual start-up time of a replica.
var stabilizationWindows = []int{20, 30, 60, 120, 240, 1440}

// loadTracker returns the replicas that a load needs, minute by minute: those that run at
// trackedUtilisation under the highest load of the last window minutes, like the stabilization window
// of the Kubernetes HorizontalPodAutoscaler. Replicas are added at once. The count is never above
// that of the reactive rule, which removes no replica above 30 % utilisation, unless the load of the
// last minute needs more. Loads are in replicas: load divided by a replica's throughput.
type loadTracker struct {
	window   int // minutes; 0 = the reactive rule alone
	reactive int
	// recent is the loads of the window that are higher than all later ones.
	recent []trackedLoad
}

type trackedLoad struct {
	minute int
	load   float64
}

// newLoadTracker returns a tracker whose reactive rule starts with the replicas that a load needs.
func newLoadTracker(window int, load float64) *loadTracker {
	return &loadTracker{window: window, reactive: trackedCount(load)}
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
	for t.recent[0].minute <= minute-t.window && len(t.recent) > 1 {
		t.recent = t.recent[1:]
	}
}

// count returns the replicas that are needed now.
func (t *loadTracker) count() int {
	n := len(t.recent)
	if t.window == 0 || n == 0 {
		return t.reactive
	}
	return min(trackedCount(t.recent[0].load), max(t.reactive, trackedCount(t.recent[n-1].load)))
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

// calibrateWindow returns the stabilization window, in minutes, with the fewest replica-hours among
// those that would have left no more of a past load above capacity than the reactive rule, at no more
// replica-hours; 0 where there is none, or where too little load is known. The load is by minute, in
// replicas, NaN where unknown; startUp is in minutes.
func calibrateWindow(load []float64, startUp int) int {
	known := 0
	for _, v := range load {
		if !math.IsNaN(v) {
			known++
		}
	}
	if known < calibrationMinutes {
		return 0
	}
	limit := trackPast(load, startUp, 0)
	best, fewest := 0, limit.replicaMinutes
	for _, window := range stabilizationWindows {
		if past := trackPast(load, startUp, window); past.overload <= limit.overload+relTolerance && past.replicaMinutes < fewest {
			best, fewest = window, past.replicaMinutes
		}
	}
	return best
}

// trackedPast is the result of tracking a past load: replica-minutes, including those of starting
// replicas, and the load above the capacity of the ready ones.
type trackedPast struct {
	replicaMinutes int
	overload       float64
}

// trackPast tracks a past load with a window.
func trackPast(load []float64, startUp, window int) (out trackedPast) {
	t := newLoadTracker(window, knownAt(load, 0))
	replicas := cell{ready: t.count()}
	for m, v := range load {
		if m > 0 {
			t.observe(m-1, load[m-1])
		}
		replicas.scale(t.count()-replicas.count(), m+startUp)
		replicas.advance(m)
		out.replicaMinutes += replicas.count()
		if ready := float64(replicas.ready); v > ready {
			out.overload += v - ready
		}
	}
	return out
}

// startUpMinutes returns a start-up time in whole minutes, as replays count them.
func startUpMinutes(d time.Duration) int { return int(math.Ceil(d.Minutes())) }
