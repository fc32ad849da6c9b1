package controller

import (
	"fmt"
	"testing"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/telemetry/demand"
	"skyserve/plan"
)

const reviewYAML = `name: chat
models:
  - name: meta-llama/Llama-3.1-8B-Instruct
    aliases: [chat-small]
    engine: {kind: sim, speed: 10}
    gpus: [{type: L4, count: 1, tps: 1500}]
regions:
  - name: local/us
    replicas: {min: 1, max: 8}
  - name: local/eu
    replicas: {min: 1, max: 8}
autoscale: {donate: true}
`

// reviewAt is the time that the histories below end at.
var reviewAt = time.Unix(30_000_000*60, 0).UTC()

func parseSpec(t *testing.T, text string) *service.Spec {
	t.Helper()
	spec, err := service.ParseDeployed("service.yaml", []byte(text)) // as a review reads it
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// past is a constant load of prompt tokens a second in local/us and local/eu
// over the minutes before reviewAt.
func past(t *testing.T, minutes int, us, eu, hit float64) *forecast.History {
	t.Helper()
	var points []telemetry.Point
	end := reviewAt.Unix() / 60
	for m := end - int64(minutes); m < end; m++ {
		for region, tps := range map[service.Region]float64{"local/us": us, "local/eu": eu} {
			points = append(points, telemetry.Point{
				Minute: m, Balancer: "lb-" + region.Place(), Region: region, Model: "meta-llama/Llama-3.1-8B-Instruct",
				Tier: service.TierFast, PromptTokens: int64(60 * tps), CachedTokens: int64(60 * tps * hit),
			})
		}
	}
	h, err := demand.Traffic(points)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func standing(us, eu int) []plan.Count {
	return []plan.Count{
		{Model: "meta-llama/Llama-3.1-8B-Instruct", Region: "local/us", GPU: "L4", Replicas: us},
		{Model: "meta-llama/Llama-3.1-8B-Instruct", Region: "local/eu", GPU: "L4", Replicas: eu},
	}
}

func TestCountReplicas(t *testing.T) {
	replica := func(model string, s service.ReplicaState, donated bool) telemetry.ReplicaSnapshot {
		return telemetry.ReplicaSnapshot{Model: model, GPU: "L4", State: s, Donated: donated}
	}
	got := CountReplicas(&telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{
		{Name: "us", Replicas: []telemetry.ReplicaSnapshot{
			replica("m", service.StateReady, false), replica("m", service.StateStarting, false), replica("m", service.StateDraining, false),
			replica("m", service.StateReady, true), replica("m", service.StateDonated, false), replica("n", service.StateFailed, false),
		}},
		{Name: "eu", Replicas: []telemetry.ReplicaSnapshot{replica("m", service.StateNotReady, false)}},
	}})
	want := []plan.Count{{Model: "m", Region: "eu", GPU: "L4", Replicas: 1}, {Model: "m", Region: "us", GPU: "L4", Replicas: 2, Donated: 2}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%v, want %v", got, want)
	}
}

// Round trips are read from what the balancers measured, the shortest of a pair.
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
	want := map[plan.Pair]time.Duration{plan.PairOf("aws/a", "aws/b"): 75 * time.Millisecond, plan.PairOf("aws/a", "gcp/c"): 120500 * time.Microsecond}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
}
