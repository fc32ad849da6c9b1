package plan

import (
	"fmt"
	"math"
	"time"

	"skyserve/internal/printable"
)

// The constants of LT-UA (SageServe section 6.4).
const (
	// loadRatioWindow is the part of the planned period, at its end, in which load is compared with the planned load.
	// In the paper, the period is an hour.
	loadRatioWindow = 20 * time.Minute
	// underestimated and overestimated are ratios of observed to planned load.
	underestimated = 5.0
	overestimated  = 0.5
)

// planFollower follows the plan (SageServe section 6.4). LT-I scales to the planned count at once.
// LT-U scales to it one replica at a time, and only as memory utilisation requires: up above 70 %,
// down below 30 %. LT-UA does the same, but within loadRatioWindow traffic takes precedence
// over memory: at 5 times the planned load or more it scales beyond the planned count, and at
// half of it or less it scales down. It changes one replica at a time, at most to the planned
// count times the ratio of load to planned load. Where traffic requires no change, memory decides.
type planFollower struct {
	name    string
	options StrategyOptions
	last    cooldown
}

func newPlanFollower(name string, o StrategyOptions) *planFollower {
	return &planFollower{name, o, cooldown{}}
}

func (s *planFollower) Name() string { return s.name }

func (s *planFollower) Step(now time.Duration, in *StrategyInput) []Scaling {
	al := newAllocator(in, s.options)
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		if e.Target == nil {
			continue
		}
		if s.name == "lt-i" {
			if n := e.Target.Count - e.count(); n != 0 {
				al.request(i, n, fmt.Sprintf("%d planned, %d current", e.Target.Count, e.count()))
			}
			continue
		}
		if n, reason := s.changeFor(now, e); n != 0 && s.last.elapsed(e, now) && al.request(i, n, reason) {
			s.last[e.endpointKey()] = now
		}
	}
	return al.out
}

// changeFor returns the change of an endpoint, and its reason.
func (s *planFollower) changeFor(now time.Duration, e *ScaledEndpoint) (n int, reason string) {
	if ratio, known := s.loadRatio(now, e); known {
		if n := e.stepForTraffic(ratio); n != 0 {
			return n, fmt.Sprintf("load %.1f times the planned load, %s planned", ratio, printable.Count(e.Target.Count, "replica"))
		}
	}
	if e.Utilisation == nil {
		return 0, ""
	}
	switch u := *e.Utilisation; {
	case u > scaleOutAbove && e.count() < e.Target.Count:
		return 1, fmt.Sprintf("%s, %s planned", aboveThreshold(u), printable.Count(e.Target.Count, "replica"))
	case u < scaleInBelow && e.count() > e.Target.Count:
		return -1, fmt.Sprintf("%s, %s planned", belowThreshold(u), printable.Count(e.Target.Count, "replica"))
	}
	return 0, ""
}

// stepForTraffic returns the next step beyond the planned count when the load is ratio times the
// planned one; 0 where the plan's error is within bounds.
func (e *ScaledEndpoint) stepForTraffic(ratio float64) int {
	needed := int(math.Ceil(ratio * float64(e.Target.Count)))
	switch {
	case ratio >= underestimated && e.count() >= e.Target.Count && e.count() < needed:
		return 1
	case ratio <= overestimated && e.count() > needed:
		return -1
	}
	return 0
}

// loadRatio returns the ratio of load to planned load, at times when LT-UA uses it.
func (s *planFollower) loadRatio(now time.Duration, e *ScaledEndpoint) (ratio float64, known bool) {
	if s.name != "lt-ua" || e.ObservedTPS == nil || e.Target.PeakTPS <= 0 || now < e.Target.Until-loadRatioWindow || now >= e.Target.Until {
		return 0, false
	}
	return *e.ObservedTPS / e.Target.PeakTPS, true
}
