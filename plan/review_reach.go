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

// UnknownSurvived returns the first value of ReviewOptions.Survive that is neither SurviveAny nor a region of the service.
func UnknownSurvived(spec *service.Spec, survive []string) (name string, unknown bool) {
	for _, name := range survive {
		if !isAnyRegion(name) && !slices.ContainsFunc(spec.Regions, func(r service.RegionSpec) bool { return string(r.Name) == name }) {
			return name, true
		}
	}
	return "", false
}

// setReach sets the round trips between regions, and the regions whose loss the plan must survive. It
// fails on a region that the service does not have.
func (r *review) setReach() error {
	if name, unknown := UnknownSurvived(r.spec, r.options.Survive); unknown {
		return fmt.Errorf("survive: must be %q (the loss of any one region) or regions of the service (%s), got %q", SurviveAny, strings.Join(r.problem.Regions, ", "), name)
	}
	for _, name := range r.options.Survive {
		if !isAnyRegion(name) {
			r.problem.SurviveRegions = append(r.problem.SurviveRegions, name)
		}
	}
	if r.problem.Survive = len(r.options.Survive) > 0; slices.ContainsFunc(r.options.Survive, isAnyRegion) {
		r.problem.SurviveRegions = nil
	}
	if r.options.MaxRTT <= 0 || len(r.problem.Regions) < 2 {
		return nil
	}
	r.problem.MaxRTTMillis = float64(r.options.MaxRTT) / float64(time.Millisecond)
	var unmeasured nameGroups // for each region, the regions to which the round trip is unknown
	for a := range r.problem.Regions {
		row := make([]float64, len(r.problem.Regions))
		for b := range r.problem.Regions {
			rtt, known := r.roundTrip(service.Region(r.problem.Regions[a]), service.Region(r.problem.Regions[b]))
			row[b] = float64(rtt) / float64(time.Millisecond)
			if !known && a < b {
				unmeasured.addName(r.problem.Regions[a], r.problem.Regions[b])
			}
		}
		r.problem.RTTMillis = append(r.problem.RTTMillis, row)
	}
	unmeasured.each(0, func(names, region string) {
		r.assume("the round trip between %s and %s is unknown: assuming at most %s", region, names, r.options.MaxRTT)
	})
	return nil
}

// roundTrip returns the round trip between two regions: the measured one, or the one that local regions emulate.
func (r *review) roundTrip(a, b service.Region) (rtt time.Duration, known bool) {
	if a == b {
		return 0, true
	}
	if rtt, known = r.options.RTT[NewRegionPair(a, b)]; known {
		return rtt, true
	}
	if a.Cloud() == service.CloudLocal && b.Cloud() == service.CloudLocal {
		return r.spec.LocalHosts.RTTBetween(a.ShortName(), b.ShortName()), true
	}
	return 0, false
}
