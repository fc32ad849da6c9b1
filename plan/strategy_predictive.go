package plan

import (
	"fmt"
	"math"
	"time"
)

// predictive follows the interactive load of each endpoint, minute by minute, like the rule predictive of
// `plan backtest`. It keeps the replicas that a loadTracker requires. The plan calibrates the tracker on the
// history, and gives it the highest value of the mean forecast from now until its end. Queued requests and memory
// utilisation add replicas as under auto. An endpoint loses no replica until it has a plan and a known load for
// the first time.
type predictive struct {
	options StrategyOptions
	states  map[endpointKey]*predictiveState
}

// predictiveState is the state kept per endpoint; tracker is nil until the load is known.
type predictiveState struct {
	tracker *loadTracker
	next    time.Duration // when the tracker observes the load again
	load    float64       // the last one, in replicas
}

func newPredictive(o StrategyOptions) *predictive {
	return &predictive{o, map[endpointKey]*predictiveState{}}
}

func (*predictive) Name() string { return "predictive" }

func (s *predictive) Step(now time.Duration, in *StrategyInput) []Scaling {
	al := newAllocator(in, s.options)
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		need, why := e.clampNeed(s.required(now, e))
		if n := need - e.count(); n != 0 {
			al.request(i, n, fmt.Sprintf("%s: %d required, %d current", why, need, e.count()))
		}
	}
	return al.out
}

// required returns the replicas that an endpoint's load and forecast require, and the reason.
func (s *predictive) required(now time.Duration, e *ScaledEndpoint) (need int, why string) {
	st := s.states[e.endpointKey()]
	if st == nil {
		st = &predictiveState{next: now}
		s.states[e.endpointKey()] = st
	}
	if e.LastMinuteTPS != nil && e.Target != nil && e.Target.ReplicaTPS > 0 && now >= st.next {
		st.load, st.next = *e.LastMinuteTPS/e.Target.ReplicaTPS, now+time.Minute
		if st.tracker == nil {
			st.tracker = newLoadTracker(e.Target.Tracking, st.load)
		}
		st.tracker.tracking = e.Target.Tracking
		st.tracker.observe(int(now/time.Minute), st.load, e.Target.replicasForForecast(now))
	}
	if st.tracker == nil {
		return max(e.count(), e.countForMemory(targetMemoryUtilisation)), e.describeNeed(0, false)
	}
	return st.tracker.needed, e.describeNeed(st.load, true)
}

// replicasForForecast returns the replicas for the highest value of the mean forecast from a time on, 0 without
// a forecast.
func (t *HourlyTarget) replicasForForecast(now time.Duration) int {
	if t == nil || len(t.ForecastTPS) == 0 || t.ForecastStep <= 0 || t.ReplicaTPS <= 0 {
		return 0
	}
	from := min(max(int((now-t.From)/t.ForecastStep), 0), len(t.ForecastTPS)-1)
	top := 0.0
	for _, v := range t.ForecastTPS[from:] {
		top = math.Max(top, v)
	}
	return unitsFor(top, t.ReplicaTPS)
}
