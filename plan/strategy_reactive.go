package plan

import (
	"fmt"
	"time"
)

// reactive is the strategy of O365 (SageServe section 4): an endpoint with memory utilisation above
// 70 % gets one more replica, one below 30 % loses one, with 15 s between two changes. Starting
// replicas do not count: while they start, the others stay full and more are requested.
type reactive struct {
	options StrategyOptions
	last    cooldown
}

func newReactive(o StrategyOptions) *reactive { return &reactive{o, cooldown{}} }

func (*reactive) Name() string { return "reactive" }

func (s *reactive) Step(now time.Duration, f *Fleet) []Scaling {
	g := newGrants(f, s.options)
	for i := range f.Endpoints {
		e := &f.Endpoints[i]
		if e.Utilisation == nil || !s.last.over(e, now) {
			continue
		}
		asked := false
		switch u := *e.Utilisation; {
		case u > scaleOutAbove:
			asked = g.want(i, 1, above(u))
		case u < scaleInBelow:
			asked = g.want(i, -1, below(u))
		}
		if asked {
			s.last[e.key()] = now
		}
	}
	return g.out
}

func above(u float64) string {
	return fmt.Sprintf("%s, above %.0f %%", memoryUsed(u), 100*scaleOutAbove)
}

func below(u float64) string {
	return fmt.Sprintf("%s, below %.0f %%", memoryUsed(u), 100*scaleInBelow)
}

func memoryUsed(u float64) string { return fmt.Sprintf("memory %.0f %% used", 100*u) }
