package telemetry

import (
	"testing"

	"skyserve/internal/service"
)

// A difference between the running replicas and the planned GPUs is reported.
func TestUnmetLine(t *testing.T) {
	const region = service.Region("aws/us-east-1")
	on := func(gpu string, capacity service.CapacityType) ReplicaSnapshot {
		return ReplicaSnapshot{Model: "m", GPU: gpu, Capacity: capacity}
	}
	donated := on("H100", "spot")
	donated.Donated = true
	for _, tt := range []struct {
		name     string
		replicas []ReplicaSnapshot
		want     []TargetReplicas
		line     string
	}{
		{"as planned", []ReplicaSnapshot{on("L4", "spot"), on("H100", "on_demand")}, []TargetReplicas{{"L4", 1, "spot", 1}, {"H100", 1, "on_demand", 1}}, ""},
		{"another GPU", []ReplicaSnapshot{on("L4", "on_demand"), on("L4", "on_demand")}, []TargetReplicas{{"H100", 8, "on_demand", 2}}, "now fewer than planned: us-east-1 runs 0 of 2 on on_demand 8xH100"},
		{"another capacity type", []ReplicaSnapshot{on("L4", "on_demand"), on("L4", "spot")}, []TargetReplicas{{"L4", 1, "spot", 2}}, "now fewer than planned: us-east-1 runs 1 of 2 on spot L4"},
		{"one that is donated does not count", []ReplicaSnapshot{donated}, []TargetReplicas{{"H100", 1, "spot", 1}}, "now fewer than planned: us-east-1 runs 0 of 1 on spot H100"},
		{"what is not known of capacity is not held against it", []ReplicaSnapshot{on("L4", ""), on("L4", "")}, []TargetReplicas{{"L4", 1, "spot", 1}, {"L4", 1, "on_demand", 1}}, ""},
		{"and too few in all are", []ReplicaSnapshot{on("L4", "")}, []TargetReplicas{{"L4", 1, "spot", 1}, {"L4", 1, "on_demand", 1}}, "now fewer than planned: us-east-1 runs 1 of 2 on L4"},
		{"a model without GPUs", []ReplicaSnapshot{on("", "on_demand")}, []TargetReplicas{{"", 0, "on_demand", 2}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &Snapshot{Regions: []RegionSnapshot{{Name: region, Replicas: tt.replicas}}, Targets: []PlannedCapacity{{Model: "m", Region: region, Replicas: tt.want}}}
			if got := s.UnmetLine(); got != tt.line {
				t.Errorf("got %q, want %q", got, tt.line)
			}
		})
	}
}

// A model without a replica that starts at its first request is as planned.
func TestUnmetOmitsColdModels(t *testing.T) {
	target := []TargetReplicas{{GPU: "L4", GPUs: 1, Count: 1}}
	s := &Snapshot{
		Regions: []RegionSnapshot{{Name: "local/us", Models: []ModelSnapshot{{Model: "a", Cold: true}, {Model: "b"}}}},
		Targets: []PlannedCapacity{{Model: "a", Region: "local/us", Replicas: target}, {Model: "b", Region: "local/us", Replicas: target}},
	}
	if got := s.Unmet(); len(got) != 1 || got[0].Model != "b" {
		t.Errorf("got %+v, want only b", got)
	}
}

// How many replicas run in a region is unknown until its balancer reports them.
func TestUnmetOmitsRegionsWithoutReport(t *testing.T) {
	s := &Snapshot{
		Regions: []RegionSnapshot{{Name: "local/us", Balancers: []BalancerSnapshot{{ID: "lb-us-0", Reason: ReasonNoReport}}}},
		Targets: []PlannedCapacity{{Model: "m", Region: "local/us", Replicas: []TargetReplicas{{GPU: "L4", GPUs: 1, Count: 2}}}},
	}
	if got := s.UnmetLine(); got != "" {
		t.Errorf("got %q before its report", got)
	}
	if s.Regions[0].Balancers[0].Reason = ""; len(s.Unmet()) != 1 {
		t.Errorf("got %+v after its report", s.Unmet())
	}
}

// A replica that another region's balancer has adopted counts in its own region.
func TestUnmetCountsAdoptedReplicas(t *testing.T) {
	const us, eu = service.Region("aws/us-east-1"), service.Region("aws/eu-west-1")
	on := func(region service.Region) ReplicaSnapshot {
		return ReplicaSnapshot{Model: "m", GPU: "L4", Region: region}
	}
	want := []TargetReplicas{{GPU: "L4", GPUs: 1, Count: 1}}
	s := &Snapshot{
		Regions: []RegionSnapshot{{Name: us, Replicas: []ReplicaSnapshot{on(us), on(eu)}}, {Name: eu}},
		Targets: []PlannedCapacity{{Model: "m", Region: us, Replicas: want}, {Model: "m", Region: eu, Replicas: want}},
	}
	if got := s.UnmetLine(); got != "" {
		t.Errorf("got %q, want none: both run", got)
	}
	s.Targets[0].Replicas[0].Count = 2
	if got, want := s.UnmetLine(), "now fewer than planned: us-east-1 runs 1 of 2 on L4, eu-west-1 runs 1 of 2 on L4"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
