package plan

import (
	"fmt"
	"time"
)

// reactive is what O365 runs today (SageServe section 4): an endpoint whose
// memory is used above 70 % gets one replica more, one below 30 % gives one up,
// with 15 s between two changes. It does not count replicas that are starting:
// while they start, the others stay full and more are asked for.
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
