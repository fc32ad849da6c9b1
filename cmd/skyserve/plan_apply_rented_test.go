package main

import (
	"maps"
	"reflect"
	"testing"

	"skyserve/internal/service"
	"skyserve/plan"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// A plan's counts are of rented regions, by GPU and capacity type.
func TestCountsOfAPlan(t *testing.T) {
	spec := &service.Spec{
		Regions: []service.RegionSpec{{Name: "aws/us-east-1"}, {Name: "static/paris"}},
		Models: []service.Model{
			{Name: "m", GPUs: []service.GPU{{Type: "L4"}, {Type: "H100", Count: 8}}},
			{Name: "n", GPUs: []service.GPU{{Type: "L4"}}},
			{Name: "sim", Engine: service.Engine{Kind: service.EngineSim}},
		},
	}
	spot, onDemand := "spot", "on_demand"
	p := plan.Proposal{Changes: []plan.Change{
		{Model: "m", Region: "aws/us-east-1", GPU: "L4", Capacity: &spot, Now: 1, Then: 3},
		{Model: "m", Region: "aws/us-east-1", GPU: "8xH100", Capacity: &onDemand, Now: 2, Then: 1},
		{Model: "n", Region: "aws/us-east-1", GPU: "L4", Capacity: &onDemand, Now: 1, Then: 0},
		{Model: "m", Region: "static/paris", GPU: "L4", Now: 1, Then: 2},
		{Model: "sim", Region: "aws/us-east-1", GPU: "L4", Capacity: &onDemand, Then: 2},
	}}
	want := map[cloud.Group]provision.Counts{
		{Model: "m", Region: "aws/us-east-1"}:   {{GPU: "L4", GPUs: 1, Capacity: "spot"}: 3, {GPU: "H100", GPUs: 8, Capacity: "on_demand"}: 1},
		{Model: "n", Region: "aws/us-east-1"}:   {{GPU: "L4", GPUs: 1, Capacity: "on_demand"}: 0},
		{Model: "sim", Region: "aws/us-east-1"}: {{Capacity: "on_demand"}: 2}, // the GPU is what was assumed
	}
	if got := countsOf(p, spec); !maps.EqualFunc(got, want, func(a, b provision.Counts) bool { return reflect.DeepEqual(a, b) }) {
		t.Errorf("got %v, want %v", got, want)
	}
}
