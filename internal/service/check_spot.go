package service

import (
	"fmt"
	"slices"
)

// maxOverprovision is the maximum of spot.overprovision. SpotHedge (EuroSys 2025, section 3.2) uses a few.
const maxOverprovision = 16

// HasFallback reports whether interrupted spot replicas of the region are replaced on demand at once.
func (r *RegionSpec) HasFallback() bool { return r.Spot != nil && r.Spot.DynamicFallback }

// replicas returns how many replicas of a model spot may add to the desired number; 0 if s is nil.
func (s *SpotSpec) replicas() int {
	switch {
	case s == nil:
		return 0
	case s.DynamicFallback:
		return s.Overprovision + 1
	}
	return s.Overprovision
}

// checkModelSpot checks that a model's own bounds leave room for the replicas that spot adds in a region.
func (c *checker) checkModelSpot() {
	for i, m := range c.spec.Models {
		for j := range c.spec.Regions {
			r, at := &c.spec.Regions[j], path("regions").index(j)
			own, ok := m.Regions[r.Name]
			p := path("models").index(i).key("regions").key(string(r.Name))
			if !ok || own.Max == 0 || own.Min > own.Max || !r.Name.Rented() || !c.valid(at, at.key("spot"), p, p.key("min"), p.key("max")) {
				continue
			}
			if need := own.Min + r.Spot.replicas(); own.Max < need {
				c.reportProblem(p.key("max"), "must be at least %d (min + %s.overprovision, + 1 with dynamic_fallback)", need, at.key("spot"))
			}
		}
	}
}

// checkSpot checks that a region's backup of spot replicas can take effect.
func (c *checker) checkSpot(r *RegionSpec, p path) {
	key := p.key("spot")
	if r.Spot == nil || !r.Name.Rented() || !c.valid(p.key("capacity"), key, key.key("overprovision"), key.key("dynamic_fallback")) {
		return
	}
	room := r.Spot.replicas()
	spot, onDemand := slices.Index(r.Capacity, CapacitySpot), slices.Index(r.Capacity, CapacityOnDemand)
	switch {
	case spot < 0:
		c.reportAtPath(key, Error{Problem: "requires spot in capacity", Suggestion: "for example capacity: [spot, on_demand]"})
	case r.Spot.DynamicFallback && onDemand < spot:
		c.reportAtPath(key.key("dynamic_fallback"), Error{Problem: "requires on_demand after spot in capacity", Suggestion: "for example capacity: [spot, on_demand]"})
	case r.Replicas.Min+room > r.Replicas.Max && c.valid(p.key("replicas"), p.key("replicas").key("max")):
		field := "overprovision"
		if r.Spot.Overprovision == 0 {
			field = "dynamic_fallback"
		}
		if room > 0 {
			c.reportAtPath(key.key(field), Error{Problem: fmt.Sprintf("requires replicas.max of at least %d (replicas.min + overprovision, + 1 with dynamic_fallback), but replicas.max is %d",
				r.Replicas.Min+room, r.Replicas.Max)})
		}
	}
}
