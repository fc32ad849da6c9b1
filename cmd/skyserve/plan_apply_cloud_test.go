package main

import (
	"maps"
	"testing"

	"skyserve/internal/service"
	"skyserve/plan"
	"skyserve/provision/cloud"
)

// A plan's counts are of rented regions, over all GPUs that it plans with.
func TestCountsOfAPlan(t *testing.T) {
	spec := &service.Spec{Regions: []service.RegionSpec{{Name: "aws/us-east-1"}, {Name: "static/paris"}}}
	p := plan.Proposal{Changes: []plan.Change{
		{Model: "m", Region: "aws/us-east-1", GPU: "L4", Now: 1, Then: 3},
		{Model: "m", Region: "aws/us-east-1", GPU: "H100", Now: 2, Then: 1},
		{Model: "n", Region: "aws/us-east-1", GPU: "L4", Now: 1, Then: 0},
		{Model: "m", Region: "static/paris", GPU: "L4", Now: 1, Then: 2},
	}}
	want := map[cloud.Group]int{{Model: "m", Region: "aws/us-east-1"}: 4, {Model: "n", Region: "aws/us-east-1"}: 0}
	if got := countsOf(p, spec); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
