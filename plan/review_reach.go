package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
)

// RegionPair is a pair of regions, in alphabetical order.
type RegionPair struct{ A, B service.Region }

// NewRegionPair returns the pair of two regions.
func NewRegionPair(a, b service.Region) RegionPair {
	if b < a {
		a, b = b, a
	}
	return RegionPair{a, b}
}

// setReach sets the round trips between regions, and the regions whose loss the plan must survive. It
// fails on a region that the service does not have.
func (r *review) setReach() error {
	for _, name := range r.o.Survive {
		if isAnyOneRegion(name) {
			continue
		}
		if r.regionIndex(service.Region(name)) < 0 {
			return fmt.Errorf("survive: must be %q (the loss of any one region) or regions of the service (%s), got %q", AnyOneRegion, strings.Join(r.p.Regions, ", "), name)
		}
		r.p.SurviveRegions = append(r.p.SurviveRegions, name)
	}
	if r.p.Survive = len(r.o.Survive) > 0; slices.ContainsFunc(r.o.Survive, isAnyOneRegion) {
		r.p.SurviveRegions = nil
	}
	if r.o.MaxRTT <= 0 || len(r.p.Regions) < 2 {
		return nil
	}
	r.p.MaxRTTMillis = float64(r.o.MaxRTT) / float64(time.Millisecond)
	var unmeasured sentenceGroup // for each region, the regions to which the round trip is unknown
	for a := range r.p.Regions {
		row := make([]float64, len(r.p.Regions))
		for b := range r.p.Regions {
			rtt, known := r.roundTrip(service.Region(r.p.Regions[a]), service.Region(r.p.Regions[b]))
			row[b] = float64(rtt) / float64(time.Millisecond)
			if !known && a < b {
				unmeasured.addSentence(r.p.Regions[a], r.p.Regions[b])
			}
		}
		r.p.RTTMillis = append(r.p.RTTMillis, row)
	}
	unmeasured.each(0, func(names, region string) {
		r.assume("the round trip between %s and %s is unknown: assuming at most %s", region, names, r.o.MaxRTT)
	})
	return nil
}

// roundTrip returns the round trip between two regions: measured, else as local regions emulate it.
func (r *review) roundTrip(a, b service.Region) (rtt time.Duration, known bool) {
	if a == b {
		return 0, true
	}
	if rtt, known = r.o.RTT[NewRegionPair(a, b)]; known {
		return rtt, true
	}
	if a.Cloud() == service.CloudLocal && b.Cloud() == service.CloudLocal {
		return r.spec.LocalHosts.RTTBetween(a.Place(), b.Place()), true
	}
	return 0, false
}
