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
	// maxStabilizationMinutes is the longest of stabilizationWindows.
	maxStabilizationMinutes = 240
	// headroomMinutes is the period of the level that the headroom multiplies.
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
	stabilizationWindows = []int{1, 5, 20, 60, maxStabilizationMinutes}
	headrooms            = []float64{0, 1.5, 1.6, 1.7, 1.8, 1.9, 2, 2.1}
)

// testedLoadFactors are the multiples of the past load at which tracking it must have had at most the overload
// of the reactive rule: the load to come is not exactly that of the past.
var testedLoadFactors = [...]float64{1, 1.1}

// Tracking is how predictive follows a load. Without a window it is the reactive rule of `plan backtest`.
type Tracking struct {
	// StabilizationWindow is how long replicas are kept for the highest load of a minute, like the
	// stabilization window of the Kubernetes HorizontalPodAutoscaler.
	StabilizationWindow time.Duration
	// Headroom is the minimum capacity, as a multiple of the level of the load: its mean in the last hour or, if
	// the load rises, the load expected when replicas that start now are ready; 0 = none.
	Headroom float64
	// StartUp is the time until a new replica is ready.
	StartUp time.Duration
}

// isReactive reports whether the reactive rule decides.
func (t Tracking) isReactive() bool { return t.StabilizationWindow <= 0 }

// loadTracker returns the replicas that a load needs, minute by minute: those that run at
// trackedUtilisation under the highest load of the window, and those of the headroom. Replicas are
// added at once. The count is never above that of the reactive rule, which removes no replica above
// 30 % utilisation, unless the load of the last minute needs more. A ledger compares the tracker with
// that rule from its first minute on. Loads are in replicas: load divided by a replica's throughput.
type loadTracker struct {
	tracking Tracking
	reactive int
	needed   int // the replicas that the next minute needs
	// recent are the loads of the longest window that are higher than all later ones; hour are the last known loads.
	recent []trackedLoad
	hour   loadTrend
	ledger trackingLedger
}

type trackedLoad struct {
	minute int
	load   float64
}

// newLoadTracker returns a tracker whose reactive rule starts with the replicas that a load needs.
func newLoadTracker(tracking Tracking, load float64) *loadTracker {
	n := trackedCount(load)
	return &loadTracker{tracking: tracking, reactive: n, needed: n, ledger: newTrackingLedger(n)}
}

// trackedCount returns the replicas that run at trackedUtilisation under a load.
func trackedCount(load float64) int { return unitsFor(load, trackedUtilisation) }

// observe adds the load of a minute, NaN for an unknown one, and returns the replicas that the next minute
// needs, where a forecast requires a number of replicas. Minutes must not go backwards.
func (t *loadTracker) observe(minute int, load float64, forecast int) int {
	if math.IsNaN(load) {
		return t.needed
	}
	t.ledger.addMinute(load)
	t.add(minute, load)
	t.needed = t.reactive
	startUp := startUpMinutes(t.tracking.StartUp)
	if !t.tracking.isReactive() {
		s := t.state(startUp)
		t.needed = t.ledger.limit(t.tracking.required(s, t.highest(minute, t.tracking.StabilizationWindow), forecast), t.reactive, s.last, startUp)
	}
	t.ledger.scale(minute+1, startUp, t.needed, t.reactive)
	return t.needed
}

// add adds a known load without a decision.
func (t *loadTracker) add(minute int, load float64) {
	t.reactive = reactiveCount(t.reactive, load)
	n := len(t.recent)
	for n > 0 && t.recent[n-1].load <= load {
		n--
	}
	t.recent = append(t.recent[:n], trackedLoad{minute, load})
	if t.recent[0].minute <= minute-maxStabilizationMinutes {
		t.recent = t.recent[1:]
	}
	t.hour.add(load)
}

// highest returns the highest load of a window that ends with a minute.
func (t *loadTracker) highest(minute int, window time.Duration) float64 {
	for _, l := range t.recent {
		if l.minute > minute-int(window/time.Minute) {
			return l.load
		}
	}
	return t.recent[len(t.recent)-1].load
}

// trackerState is what a tracker knows in a minute, whatever its tracking: the count of the reactive rule,
// that for the last load, and the level of the last hour.
type trackerState struct {
	reactive, last int
	level          float64
}

func (t *loadTracker) state(startUp int) trackerState {
	return trackerState{t.reactive, trackedCount(t.recent[len(t.recent)-1].load), t.hour.level(startUp + 1)}
}

// required returns the replicas that are needed in a minute, after the highest load of the window.
func (t Tracking) required(m trackerState, highest float64, forecast int) int {
	need := max(forecast, trackedCount(highest))
	if t.Headroom > 0 {
		need = max(need, unitsFor(t.Headroom*m.level, 1))
	}
	return min(need, max(m.reactive, m.last))
}

// loadTrend is the last loads of headroomMinutes, with their sum and the sum of their products with their index.
type loadTrend struct {
	loads        []float64
	sum, indexed float64
}

func (h *loadTrend) add(load float64) {
	h.indexed += float64(len(h.loads)) * load
	h.loads, h.sum = append(h.loads, load), h.sum+load
	if len(h.loads) > headroomMinutes {
		h.sum -= h.loads[0]
		h.indexed -= h.sum
		h.loads = h.loads[1:]
	}
}

// level returns the mean of the loads, or the value of their regression line some minutes after the last one
// where that is higher: a mean is behind a rising load.
func (h *loadTrend) level(ahead int) float64 {
	n := float64(len(h.loads))
	mean := max(h.sum, 0) / n
	if len(h.loads) < headroomMinutes {
		return mean
	}
	slope := (h.indexed - (n-1)/2*h.sum) / (n * (n*n - 1) / 12)
	return mean + max(0, slope)*((n-1)/2+float64(ahead))
}

// trackingLedger compares a tracker with the reactive rule over the minutes in which it decided: the
// replicas of both, their replica-minutes, and the load above the capacity of the ready ones.
type trackingLedger struct {
	own, reactive                 groupState
	ownMinutes, reactiveMinutes   int
	ownOverload, reactiveOverload float64
	minutes                       int
}

// newTrackingLedger returns the ledger of a tracker that starts with ready replicas.
func newTrackingLedger(replicas int) trackingLedger {
	return trackingLedger{own: groupState{ready: replicas}, reactive: groupState{ready: replicas}}
}

// addMinute adds a minute with a load.
func (l *trackingLedger) addMinute(load float64) {
	if l.minutes++; l.minutes > maxCalibrationMinutes {
		*l = trackingLedger{own: l.own, reactive: l.reactive}
	}
	l.ownMinutes += l.own.count()
	l.reactiveMinutes += l.reactive.count()
	l.ownOverload += overloadOf(load, int32(min(l.own.ready, math.MaxInt32)))
	l.reactiveOverload += overloadOf(load, int32(min(l.reactive.ready, math.MaxInt32)))
}

// limit returns the count that is required. While the tracker has had more overload than the reactive rule, it is
// at least that of the rule. While it has had less, it may be lower, down to that for the last load: all missing
// replicas together, until they have started, cannot cost more than the overload that was avoided. It is above
// that of the rule only as far as saved replica-minutes pay for it until new replicas have started.
func (l *trackingLedger) limit(required, reactive, last, startUp int) int {
	avoided := l.reactiveOverload - l.ownOverload
	if avoided < -relTolerance {
		required = max(required, reactive)
	} else {
		required = min(required, max(last, reactive-int(avoided)/(startUp+1)))
	}
	return min(required, reactive+max(0, l.reactiveMinutes-l.ownMinutes)/(startUp+1))
}

// scale changes the counts of a minute.
func (l *trackingLedger) scale(minute, startUp, own, reactive int) {
	for _, c := range []struct {
		group *groupState
		want  int
	}{{&l.own, own}, {&l.reactive, reactive}} {
		if d := c.want - c.group.count(); d != 0 {
			c.group.scale(d, minute+startUp)
		}
		c.group.advance(minute)
	}
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
	none := Tracking{StartUp: time.Duration(startUp) * time.Minute}
	load = load[max(0, len(load)-maxCalibrationMinutes):]
	known := 0
	for _, v := range load {
		if v > 0 {
			known++
		}
	}
	if known < calibrationMinutes {
		return none
	}
	reactive := simulateReactive(load, startUp)
	best, fewest := none, int((1-minSaving)*float64(reactive.replicaMinutes))
	states, highest := trackedMinutes(load, startUp)
	for w, window := range stabilizationWindows {
		for _, headroom := range headrooms {
			t := Tracking{time.Duration(window) * time.Minute, headroom, best.StartUp}
			past := replayCounts(len(load), startUp, fewest, func(m int) int { return t.required(states[m], highest[w][m], 0) })
			if past.replicaMinutes < fewest && past.notWorseThan(reactive, load) {
				best, fewest = t, past.replicaMinutes
			}
		}
	}
	return best
}

// trackedMinutes returns what a tracker knows in each minute of a past load, and the highest load of each of
// stabilizationWindows.
func trackedMinutes(load []float64, startUp int) ([]trackerState, [][]float64) {
	t := newLoadTracker(Tracking{}, knownAt(load, 0))
	states, highest := make([]trackerState, len(load)), make([][]float64, len(stabilizationWindows))
	for w := range highest {
		highest[w] = make([]float64, len(load))
		highest[w][0] = knownAt(load, 0)
	}
	states[0] = trackerState{reactive: t.reactive, last: t.reactive}
	for m := 1; m < len(load); m++ {
		states[m] = states[m-1]
		if !math.IsNaN(load[m-1]) {
			t.add(m-1, load[m-1])
			states[m] = t.state(startUp)
		}
		for w, window := range stabilizationWindows {
			highest[w][m] = highest[w][m-1]
			if len(t.recent) > 0 {
				highest[w][m] = t.highest(m-1, time.Duration(window)*time.Minute)
			}
		}
	}
	return states, highest
}

// trackingResult is the result of tracking a past load: replica-minutes, including those of starting
// replicas, and the ready replicas by minute.
type trackingResult struct {
	replicaMinutes int
	ready          []int32
}

// simulateReactive replays the reactive rule over a past load.
func simulateReactive(load []float64, startUp int) trackingResult {
	count := trackedCount(knownAt(load, 0))
	return replayCounts(len(load), startUp, math.MaxInt, func(m int) int {
		if m > 0 && !math.IsNaN(load[m-1]) {
			count = reactiveCount(count, load[m-1])
		}
		return count
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
