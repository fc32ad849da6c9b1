package service

import (
	"fmt"
	"slices"
)

// maxOverprovision is the maximum of spot.overprovision. SpotHedge (EuroSys 2025, section 3.2) uses a few.
const maxOverprovision = 16

// HasFallback reports whether interrupted spot replicas of the region are replaced on demand at once.
func (r *RegionSpec) HasFallback() bool { return r.Spot != nil && r.Spot.DynamicFallback }

// checkSpot checks that a region's backup of spot replicas can take effect.
func (c *checker) checkSpot(r *RegionSpec, p path) {
	key := p.key("spot")
	if r.Spot == nil || !r.Name.Rented() || !c.valid(p.key("capacity"), key, key.key("overprovision"), key.key("dynamic_fallback")) {
		return
	}
	spot, onDemand := slices.Index(r.Capacity, CapacitySpot), slices.Index(r.Capacity, CapacityOnDemand)
	room := r.Spot.Overprovision
	if r.Spot.DynamicFallback {
		room++
	}
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
