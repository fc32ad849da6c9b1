package cloud_test

import (
	"slices"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
)

// New spot replicas avoid a zone with recent interruptions, and spread over the others. The zone is
// still the last choice of each, and on-demand machines are not affected.
func TestSpotReplicasAvoidInterruptedZone(t *testing.T) {
	const region = service.Region("aws/us-east-1")
	spec := parse(t, threeRegions)
	spec.Regions[0].OnDemandBase = 0
	spec.Regions[0].Replicas = service.Bounds{Min: 4, Max: 4}
	spec.Models = spec.Models[:1]
	spec.Regions[0].Capacity = []service.CapacityType{service.CapacitySpot, service.CapacityOnDemand}
	in := input(spec)
	var zones []string
	for _, o := range in.Offerings[region] {
		if !slices.Contains(zones, o.Zone) {
			zones = append(zones, o.Zone)
		}
	}
	if len(zones) < 2 {
		t.Fatalf("got zones %v, want several", zones)
	}
	bad := zones[0]
	firsts := func() map[string]int {
		count := map[string]int{}
		for _, w := range replicasOf(plan(t, in), region) {
			count[w.Offerings[0].Zone]++
			if !slices.ContainsFunc(w.Offerings, func(o provision.Offering) bool {
				return o.Zone == bad && o.Capacity == service.CapacitySpot
			}) {
				t.Errorf("%s cannot be launched in %s", w.ID, bad)
			}
		}
		return count
	}
	before := firsts()
	in.SpotPenalty = func(o provision.Offering) float64 {
		if o.Capacity == service.CapacitySpot && o.Zone == bad {
			return 5
		}
		return 0
	}
	after := firsts()
	if before[bad] == 0 || after[bad] != 0 {
		t.Errorf("first choices before %v, after an interruption in %s %v", before, bad, after)
	}
	for _, zone := range zones[1:] {
		if after[zone] == 0 {
			t.Errorf("no replica starts in %s: %v", zone, after)
		}
	}
}
