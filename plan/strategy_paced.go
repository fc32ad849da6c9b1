package plan

import (
	"fmt"
	"math"
	"time"
)

// The constants of LT-UA (SageServe section 6.4).
const (
	// gapWindow is the end of the hour in which the forecast is questioned.
	gapWindow = 20 * time.Minute
	// underestimated and overestimated are observed over forecast load.
	underestimated = 5.0
	overestimated  = 0.5
)

// paced follows the hourly plan (SageServe section 6.4). LT-I goes to the
// planned count at once. LT-U goes there one by one, and only as memory
// utilisation demands: up above 70 %, down below 30 %. LT-UA does the same, but in
// the last 20 minutes of the hour traffic takes memory's place: where the load is
// 5 times what was planned for or more it goes on beyond the planned count, and
// where it is half or less it goes down, one by one and as far as the plan times
// that ratio.
type paced struct {
	name    string
	options StrategyOptions
	last    cooldown
}

func newPaced(name string, o StrategyOptions) *paced { return &paced{name, o, cooldown{}} }

func (s *paced) Name() string { return s.name }

func (s *paced) Step(now time.Duration, f *Fleet) []Scaling {
	g := newGrants(f, s.options)
	for i := range f.Endpoints {
		e := &f.Endpoints[i]
		if e.Target == nil {
			continue
		}
		if s.name == "lt-i" {
			if n := e.Target.Count - e.count(); n != 0 {
				g.want(i, n, fmt.Sprintf("%d planned for the hour, %d there", e.Target.Count, e.count()))
			}
			continue
		}
		if n, reason := s.pace(now, e); n != 0 && s.last.over(e, now) && g.want(i, n, reason) {
			s.last[e.key()] = now
		}
	}
	return g.out
}

// pace is by how much an endpoint should change, and why.
func (s *paced) pace(now time.Duration, e *Endpoint) (n int, reason string) {
	if gap, known := s.gap(now, e); known {
		if n := e.byTraffic(gap); n != 0 {
			return n, fmt.Sprintf("load %.1f times the forecast, %d planned", gap, e.Target.Count)
		}
	}
	if e.Utilisation == nil {
		return 0, ""
	}
	switch u := *e.Utilisation; {
	case u > scaleOutAbove && e.count() < e.Target.Count:
		return 1, fmt.Sprintf("%s, %d planned", above(u), e.Target.Count)
	case u < scaleInBelow && e.count() > e.Target.Count:
		return -1, fmt.Sprintf("%s, %d planned", below(u), e.Target.Count)
	}
	return 0, ""
}

// byTraffic is the next step beyond the planned count where the load is so many
// times what was planned for; 0 where the plan's error is within bounds.
func (e *Endpoint) byTraffic(gap float64) int {
	needed := int(math.Ceil(gap * float64(e.Target.Count)))
	switch {
	case gap >= underestimated && e.count() >= e.Target.Count && e.count() < needed:
		return 1
	case gap <= overestimated && e.count() > needed:
		return -1
	}
	return 0
}

// gap is the load over what was planned for, where LT-UA may look at it.
func (s *paced) gap(now time.Duration, e *Endpoint) (ratio float64, known bool) {
	if s.name != "lt-ua" || e.Observed == nil || e.Target.PeakTPS <= 0 || now < e.Target.Until-gapWindow || now >= e.Target.Until {
		return 0, false
	}
	return *e.Observed / e.Target.PeakTPS, true
}
