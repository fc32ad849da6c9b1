package controller

import (
	"slices"
	"testing"

	"skyserve/internal/service"
	"skyserve/plan"
)

// A plan does not count overprovisioned spot replicas, and counts all others.
func TestPlanIgnoresOverprovision(t *testing.T) {
	spec := &service.Spec{
		Models: []service.Model{{Name: "a"}, {Name: "b"}},
		Regions: []service.RegionSpec{
			{Name: "aws/us-east-1", Spot: &service.SpotSpec{Overprovision: 2}}, {Name: "aws/eu-west-1"},
		},
	}
	of := func(model string, region service.Region, capacity service.CapacityType, n int) plan.ReplicaCount {
		return plan.ReplicaCount{Model: model, Region: region, GPU: "L4", CapacityType: capacity, Replicas: n}
	}
	in := []plan.ReplicaCount{
		of("a", "aws/eu-west-1", service.CapacitySpot, 3), of("a", "aws/us-east-1", service.CapacityOnDemand, 1),
		of("a", "aws/us-east-1", service.CapacitySpot, 3), of("b", "aws/us-east-1", service.CapacitySpot, 1),
	}
	want := slices.Clone(in[:3])
	want[2].Replicas = 1
	if got := withoutOverprovision(spec, slices.Clone(in)); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := withoutOverprovision(nil, slices.Clone(in)); !slices.Equal(got, in) {
		t.Errorf("without a service: %+v", got)
	}
}
