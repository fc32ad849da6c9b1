package plan

import (
	"fmt"
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
// utilisation demands: up above 70 %, down below 30 %. LT-UA does the same, but
// in the last 20 minutes of the hour it goes on beyond the planned count where
// the load is 5 times the forecast or more, and below it where it is half or
// less.
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
	if e.Utilisation == nil {
		return 0, ""
	}
	up, down, why := e.count() < e.Target.Count, e.count() > e.Target.Count, fmt.Sprintf("%d planned", e.Target.Count)
	if gap, known := s.gap(now, e); known && !up && gap >= underestimated {
		up, why = true, fmt.Sprintf("load %.1f times the forecast", gap)
	} else if known && !down && gap <= overestimated {
		down, why = true, fmt.Sprintf("load %.1f times the forecast", gap)
	}
	switch u := *e.Utilisation; {
	case u > scaleOutAbove && up:
		return 1, above(u) + ", " + why
	case u < scaleInBelow && down:
		return -1, below(u) + ", " + why
	}
	return 0, ""
}

// gap is the load over what was forecast, where LT-UA may look at it.
func (s *paced) gap(now time.Duration, e *Endpoint) (ratio float64, known bool) {
	if s.name != "lt-ua" || e.Observed == nil || e.Target.PeakTPS <= 0 || now < e.Target.Until-gapWindow || now >= e.Target.Until {
		return 0, false
	}
	return *e.Observed / e.Target.PeakTPS, true
}
