package controller

import (
	"fmt"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/telemetry/demand/demandtest"
	"skyserve/plan"
)

func standing(us, eu int) []plan.ReplicaCount {
	return []plan.ReplicaCount{
		{Model: demandtest.Model, Region: "local/us", GPU: "L4", Replicas: us},
		{Model: demandtest.Model, Region: "local/eu", GPU: "L4", Replicas: eu},
	}
}

func TestCountReplicas(t *testing.T) {
	replica := func(model string, s service.ReplicaState, donated bool) telemetry.ReplicaSnapshot {
		return telemetry.ReplicaSnapshot{Model: model, GPU: "L4", State: s, Donated: donated}
	}
	adopted := replica("m", service.StateReady, false) // it returns to its own balancer, and both list it
	adopted.ID, adopted.Region = "eu-1", "eu"
	got := CountReplicas(&telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{
		{Name: "us", Replicas: []telemetry.ReplicaSnapshot{
			adopted,
			replica("m", service.StateReady, false), replica("m", service.StateStarting, false), replica("m", service.StateDraining, false),
			replica("m", service.StateReady, true), replica("m", service.StateDonated, false), replica("n", service.StateFailed, false),
			{Model: "m", GPU: "L4", State: service.StateReady, Origin: "file engines.txt"},
			{Model: "m", State: service.StateReady, Origin: "dns dns+http://engines:8000"},
			{Model: "d", State: service.StateReady, Origin: "file engines.txt: dns dns+http://engines:8000"},
			{Model: "m", State: service.StateReady, Origin: "api"},
		}},
		{Name: "eu", Replicas: []telemetry.ReplicaSnapshot{replica("m", service.StateNotReady, false), adopted}},
	}})
	want := []plan.ReplicaCount{{Model: "m", Region: "eu", GPU: "L4", Replicas: 2}, {Model: "m", Region: "us", GPU: "L4", Replicas: 2, Donated: 2}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%v, want %v", got, want)
	}
}

// The round trip of a pair is the shortest measurement.
func TestRoundTrips(t *testing.T) {
	ms := func(v float64) *float64 { return &v }
	snapshot := func(own service.Region, rtt map[service.Region]float64) *telemetry.Snapshot {
		s := &telemetry.Snapshot{}
		for _, name := range []service.Region{"aws/a", "aws/b", "gcp/c"} {
			b := telemetry.BalancerSnapshot{ID: string(name)}
			if v, ok := rtt[name]; ok {
				b.RTTMillis = ms(v)
			} else if name != own {
				continue
			}
			s.Regions = append(s.Regions, telemetry.RegionSnapshot{Name: name, Balancers: []telemetry.BalancerSnapshot{b}})
		}
		return s
	}
	got := roundTrips([]*telemetry.Snapshot{
		snapshot("aws/a", map[service.Region]float64{"aws/b": 80, "gcp/c": 120.5}), snapshot("aws/b", map[service.Region]float64{"aws/a": 75}),
	})
	want := map[plan.RegionPair]time.Duration{plan.NewRegionPair("aws/a", "aws/b"): 75 * time.Millisecond, plan.NewRegionPair("aws/a", "gcp/c"): 120500 * time.Microsecond}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	// A balancer that has never reported has no round-trip time either.
	s := snapshot("aws/a", map[service.Region]float64{"aws/b": 80})
	silent := telemetry.BalancerSnapshot{ID: "gcp/c", State: service.StateUnreachable}
	s.Regions = append(s.Regions, telemetry.RegionSnapshot{Name: "gcp/c", Balancers: []telemetry.BalancerSnapshot{silent}})
	got = roundTrips([]*telemetry.Snapshot{s})
	want = map[plan.RegionPair]time.Duration{plan.NewRegionPair("aws/a", "aws/b"): 80 * time.Millisecond}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("with a silent balancer: %v, want %v", got, want)
	}
}
