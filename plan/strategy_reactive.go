package plan

import (
	"fmt"
	"time"
)

// reactive is the strategy of Microsoft Office 365 (SageServe section 4): an endpoint with memory
// utilisation above 70 % gets one more replica, an endpoint below 30 % loses a replica, with 15 s
// between two changes. Starting replicas do not count: while they start, the others stay full and
// more are requested.
type reactive struct {
	options StrategyOptions
	last    cooldown
}

func newReactive(o StrategyOptions) *reactive { return &reactive{o, cooldown{}} }

func (*reactive) Name() string { return "reactive" }

func (s *reactive) Step(now time.Duration, in *StrategyInput) []Scaling {
	al := newAllocator(in, s.options)
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		if e.Utilisation == nil || !s.last.elapsed(e, now) {
			continue
		}
		scaled := false
		switch u := *e.Utilisation; {
		case u > scaleOutAbove:
			scaled = al.request(i, 1, aboveThreshold(u))
		case u < scaleInBelow:
			scaled = al.request(i, -1, belowThreshold(u))
		}
		if scaled {
			s.last[e.endpointKey()] = now
		}
	}
	return al.out
}

func aboveThreshold(u float64) string {
	return fmt.Sprintf("%s, above %.0f %%", describeMemory(u), 100*scaleOutAbove)
}

func belowThreshold(u float64) string {
	return fmt.Sprintf("%s, below %.0f %%", describeMemory(u), 100*scaleInBelow)
}

func describeMemory(u float64) string { return fmt.Sprintf("KV memory %.0f %% used", 100*u) }
