package plan

import (
	"math"
	"slices"
	"time"
)

const (
	// trackedUtilisation is the share of its throughput at which a replica is planned to run: the
	// remainder is for the rise of the load while more replicas start. The threshold rule
	// (backtest_rules.go) uses the same share.
	trackedUtilisation = scaleOutThreshold
	// minCalibrationMinutes is the minimum number of past minutes with load for a calibration. With
	// fewer, the threshold rule decides.
	minCalibrationMinutes = 24 * 60
	// maxCalibrationMinutes bounds the past that is replayed.
	maxCalibrationMinutes = 14 * 24 * 60
	// maxStabilizationMinutes is the longest of stabilizationWindows.
	maxStabilizationMinutes = 240
	// headroomMinutes is the period from which the level of the load is computed, which Tracking.Headroom multiplies.
	headroomMinutes = 60
	// minSaving is the share of the threshold rule's replica-hours that a tracking must save: less is not
	// worth the risk that the future load differs from the past.
	minSaving = 0.03
	// errorBlockMinutes is the length of the blocks over which the standard error of past overload is computed.
	errorBlockMinutes = 60
)

// stabilizationWindows and headrooms are the values that a calibration tries: windows in minutes, headrooms as in
// Tracking.Headroom.
var (
	stabilizationWindows = []int{1, 5, 20, 60, maxStabilizationMinutes}
	headrooms            = []float64{0, 1.5, 1.6, 1.7, 1.8, 1.9, 2, 2.1}
)

// testedLoadFactors are multiples of the past load. At each of them, tracking must have at most the overload of the
// threshold rule, because the future load is not exactly that of the past. With a higher last factor, tracking saves
// fewer replica-hours, and exceeds the overload of that rule on fewer series (`make compare-plan`).
var testedLoadFactors = [...]float64{1, 1.2}

// Tracking contains the parameters with which the strategy predictive tracks a load. If StabilizationWindow is 0, the
// threshold rule of `plan backtest` decides instead.
type Tracking struct {
	// StabilizationWindow is how long replicas are kept after the minute with the highest load, like the
	// stabilization window of the Kubernetes HorizontalPodAutoscaler.
	StabilizationWindow time.Duration
	// Headroom is the minimum capacity, as a multiple of the level of the load: its mean in the last hour or, if
	// the load rises, the load expected when replicas that start now are ready; 0 = none.
	Headroom float64
	// StartUp is the time until a new replica is ready.
	StartUp time.Duration
	// OverloadTolerance is how much more overload (load above capacity) than the threshold rule the tracking may have, as
	// a share of the load, 0..1.
	OverloadTolerance float64
}

// isThreshold reports whether the threshold rule decides.
func (t Tracking) isThreshold() bool { return t.StabilizationWindow <= 0 }

// loadTracker computes, minute by minute, the number of replicas that a load needs: the highest of three numbers, those
// that serve the highest load of the window at trackedUtilisation, that the headroom requires and that the forecast
// requires. The count is at most the higher of two: that of the threshold rule, and that for the load of the last minute.
// Replicas are added at once. The tracker compares itself with the threshold rule from its first minute on. Loads are in
// replicas: load divided by a replica's throughput.
type loadTracker struct {
	tracking  Tracking
	threshold int // the count of the threshold rule
	needed    int // the replicas that the next minute needs
	// recent are the loads of the longest window that are higher than all later ones; trend is of the last known loads.
	recent     []trackedLoad
	trend      loadTrend
	comparison ruleComparison
}

type trackedLoad struct {
	minute int
	load   float64
}

// newLoadTracker returns a tracker whose threshold rule starts with the replicas that a load needs.
func newLoadTracker(tracking Tracking, load float64) *loadTracker {
	n := trackedCount(load)
	return &loadTracker{tracking: tracking, threshold: n, needed: n, comparison: newRuleComparison(n)}
}

// trackedCount returns the number of replicas that serve a load at trackedUtilisation.
func trackedCount(load float64) int { return unitsFor(load, trackedUtilisation) }

// observe adds the load of a minute, NaN for an unknown one, and returns the replicas that the next minute
// needs. forecast is the number of replicas that the forecast requires. Minutes must not go backwards.
func (t *loadTracker) observe(minute int, load float64, forecast int) int {
	if math.IsNaN(load) {
		return t.needed
	}
	t.comparison.addMinute(load)
	t.addLoad(minute, load)
	t.needed = t.threshold
	startUp := startUpMinutes(t.tracking.StartUp)
	if !t.tracking.isThreshold() {
		s := t.state(startUp)
		t.needed = t.comparison.limit(t.tracking.required(s, t.highestLoad(minute, t.tracking.StabilizationWindow), forecast), t.threshold, s.last, startUp, t.tracking.OverloadTolerance)
	}
	t.comparison.scale(minute+1, startUp, t.needed, t.threshold)
	return t.needed
}

// addLoad adds a known load. It does not change t.needed.
func (t *loadTracker) addLoad(minute int, load float64) {
	t.threshold = thresholdCount(t.threshold, load)
	n := len(t.recent)
	for n > 0 && t.recent[n-1].load <= load {
		n--
	}
	t.recent = append(t.recent[:n], trackedLoad{minute, load})
	if t.recent[0].minute <= minute-maxStabilizationMinutes {
		t.recent = t.recent[1:]
	}
	t.trend.addLoad(load)
}

// highestLoad returns the highest load of a window that ends with a minute.
func (t *loadTracker) highestLoad(minute int, window time.Duration) float64 {
	for _, l := range t.recent {
		if l.minute > minute-int(window/time.Minute) {
			return l.load
		}
	}
	return t.recent[len(t.recent)-1].load
}

// trackerState is the part of a tracker's state in a minute that does not depend on its parameters: the count of the
// threshold rule, the count for the last load, and the level of the load (see Tracking.Headroom).
type trackerState struct {
	threshold, last int
	level           float64
}

func (t *loadTracker) state(startUp int) trackerState {
	return trackerState{t.threshold, trackedCount(t.recent[len(t.recent)-1].load), t.trend.level(startUp + 1)}
}

// required returns the replicas that are needed in a minute with state m. highest is the highest load of the
// stabilization window, forecast the number of replicas that the forecast requires.
func (t Tracking) required(m trackerState, highest float64, forecast int) int {
	need := max(forecast, trackedCount(highest))
	if t.Headroom > 0 {
		need = max(need, unitsFor(t.Headroom*m.level, 1))
	}
	return min(need, max(m.threshold, m.last))
}

// loadTrend is the last loads of headroomMinutes, with their sum and the sum of their products with their index.
type loadTrend struct {
	loads        []float64
	sum, indexed float64
}

func (h *loadTrend) addLoad(load float64) {
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

// ruleComparison compares a tracker (own) with the threshold rule over the minutes with a known load: the
// replicas of both, their replica-minutes, the load, and the overload, which is the load above the capacity of the ready
// replicas. After maxCalibrationMinutes the sums start again from 0.
type ruleComparison struct {
	own, threshold                 groupState
	ownMinutes, thresholdMinutes   int
	ownOverload, thresholdOverload float64
	load                           float64
	minutes                        int
}

// newRuleComparison returns the comparison of a tracker that starts with ready replicas.
func newRuleComparison(replicas int) ruleComparison {
	return ruleComparison{own: groupState{ready: replicas}, threshold: groupState{ready: replicas}}
}

// addMinute adds a minute with a load.
func (l *ruleComparison) addMinute(load float64) {
	if l.minutes++; l.minutes > maxCalibrationMinutes {
		*l = ruleComparison{own: l.own, threshold: l.threshold}
	}
	l.load += load
	l.ownMinutes += l.own.count()
	l.thresholdMinutes += l.threshold.count()
	l.ownOverload += overloadOf(load, int32(min(l.own.ready, math.MaxInt32)))
	l.thresholdOverload += overloadOf(load, int32(min(l.threshold.ready, math.MaxInt32)))
}

// limit limits the required count by two budgets, both for the startUp+1 minutes until other replicas are ready:
//
//   - Overload. A tracker that has had more overload than the threshold rule and the tolerance allow has at least the
//     count of the rule. Any other one spends the overload that it has avoided: n replicas fewer than the rule cause an
//     overload of at most n a minute. So the count is at most that of the rule minus n, for the largest n that the avoided
//     overload pays for, or that for the last load if it is higher.
//   - Replicas. A count above that of the rule is paid with the replica-minutes that the tracker has saved: n replicas more
//     use n a minute.
func (l *ruleComparison) limit(required, threshold, last, startUp int, tolerance float64) int {
	avoided := l.thresholdOverload - l.ownOverload
	if avoided < -relTolerance-tolerance*l.load {
		required = max(required, threshold)
	} else {
		required = min(required, max(last, threshold-int(max(0, avoided))/(startUp+1)))
	}
	return min(required, threshold+max(0, l.thresholdMinutes-l.ownMinutes)/(startUp+1))
}

// scale sets the counts of the tracker and of the threshold rule from a minute on.
func (l *ruleComparison) scale(minute, startUp, own, threshold int) {
	for _, c := range []struct {
		group *groupState
		want  int
	}{{&l.own, own}, {&l.threshold, threshold}} {
		if d := c.want - c.group.count(); d != 0 {
			c.group.scale(d, minute+startUp)
		}
		c.group.advance(minute)
	}
}

// thresholdCount returns the count of the threshold rule in the minute after a load. It is for replicas that are all
// alike; LoadTrace.ThresholdCounts is for several GPUs.
func thresholdCount(have int, load float64) int {
	switch capacity := float64(have); {
	case load > scaleOutThreshold*capacity:
		return min(trackedCount(load), have+thresholdPerMinute)
	case load < scaleInThreshold*capacity && load <= scaleOutThreshold*(capacity-1):
		return have - 1
	}
	return have
}

// calibrateTracking returns the tracking that would have had the fewest replica-hours for a past load, of those that
// notWorseThan accepts. If none saves minSaving, or too little load is known, the result is the threshold rule. The load
// is by minute, in replicas, NaN where unknown; startUp is in minutes.
func calibrateTracking(load []float64, startUp int, tolerance float64) Tracking {
	none := Tracking{StartUp: time.Duration(startUp) * time.Minute, OverloadTolerance: tolerance}
	load = load[max(0, len(load)-maxCalibrationMinutes):]
	known := 0
	for _, v := range load {
		if v > 0 {
			known++
		}
	}
	if known < minCalibrationMinutes {
		return none
	}
	threshold := simulateThreshold(load, startUp)
	best, fewest := none, int((1-minSaving)*float64(threshold.replicaMinutes))
	states, highest := trackedMinutes(load, startUp)
	for w, window := range stabilizationWindows {
		for _, headroom := range headrooms {
			t := Tracking{time.Duration(window) * time.Minute, headroom, best.StartUp, tolerance}
			past := replayCounts(len(load), startUp, fewest, func(m int) int { return t.required(states[m], highest[w][m], 0) })
			if past.replicaMinutes < fewest && past.notWorseThan(threshold, load, tolerance) {
				best, fewest = t, past.replicaMinutes
			}
		}
	}
	return best
}

// trackedMinutes returns the state of a tracker in each minute of a past load, and the highest load of each of
// stabilizationWindows.
func trackedMinutes(load []float64, startUp int) ([]trackerState, [][]float64) {
	t := newLoadTracker(Tracking{}, knownAt(load, 0))
	states, highest := make([]trackerState, len(load)), make([][]float64, len(stabilizationWindows))
	for w := range highest {
		highest[w] = make([]float64, len(load))
		highest[w][0] = knownAt(load, 0)
	}
	states[0] = trackerState{threshold: t.threshold, last: t.threshold}
	for m := 1; m < len(load); m++ {
		states[m] = states[m-1]
		if !math.IsNaN(load[m-1]) {
			t.addLoad(m-1, load[m-1])
			states[m] = t.state(startUp)
		}
		for w, window := range stabilizationWindows {
			highest[w][m] = highest[w][m-1]
			if len(t.recent) > 0 {
				highest[w][m] = t.highestLoad(m-1, time.Duration(window)*time.Minute)
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

// simulateThreshold replays the threshold rule over a past load.
func simulateThreshold(load []float64, startUp int) trackingResult {
	count := trackedCount(knownAt(load, 0))
	return replayCounts(len(load), startUp, math.MaxInt, func(m int) int {
		if m > 0 && !math.IsNaN(load[m-1]) {
			count = thresholdCount(count, load[m-1])
		}
		return count
	})
}

// replayCounts replays the counts of a number of minutes. It ends early when the replica-minutes reach limit.
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

// notWorseThan reports whether the overload is at most that of another result plus a tolerated share of the load, at
// every one of testedLoadFactors. The standard error of the difference counts as overload.
func (p trackingResult) notWorseThan(other trackingResult, load []float64, tolerance float64) bool {
	total := 0.0
	for _, v := range load {
		if !math.IsNaN(v) {
			total += v
		}
	}
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
		if sum+math.Sqrt(squares) > relTolerance+tolerance*factor*total {
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

// startUpMinutes returns a start-up time in minutes, rounded up: replays have steps of a minute.
func startUpMinutes(d time.Duration) int { return int(math.Ceil(d.Minutes())) }
