package plan

import (
	"math"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/telemetry/demand/demandtest"
)

// A plan uses a capacity type only where the cloud sells it: Google sells one to four H100 as spot only.
func TestReviewPlansWhatIsSold(t *testing.T) {
	const text = `name: chat
models:
  - name: m
    gpus: [{type: H100, tps: 1000}]
regions:
  - name: gcp/us-central1
    replicas: {min: 1, max: 20}
`
	for name, c := range map[string]struct{ region, want, err string }{
		"spot, then on demand":  {"    capacity: [spot, on_demand]\n    on_demand_base: 1\n", "optimal: spot:0+4", ""},
		"flex-start":            {"    capacity: [flex_start, on_demand]\n", "optimal: flex_start:0+4", ""},
		"flex-start alone":      {"    capacity: [flex_start]\n", "optimal: flex_start:0+4", ""},
		"reserved":              {"    capacity: [reserved, on_demand]\n    reserved: [{type: a3-highgpu-1g, count: 5, price: 3}]\n", "optimal: reserved:0+4", ""},
		"flex-start last":       {"    capacity: [on_demand, flex_start]\n", "", "gcp/us-central1 sells H100 as spot and flex-start only"},
		"on demand is not sold": {"", "", "gcp/us-central1 sells H100 as spot and flex-start only; list spot or flex_start before on_demand in"},
	} {
		t.Run(name, func(t *testing.T) {
			history := loaded(t, 300, "m", map[service.Region]float64{"gcp/us-central1": 4000})
			if c.err != "" {
				if _, err := Review(demandtest.Parse(t, text+c.region), nil, history, reviewAt, ReviewOptions{}); err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got error %v, want %q", err, c.err)
				}
				return
			}
			p := reviewed(t, text+c.region, nil, history, ReviewOptions{})
			if got := capacities(p); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Replicas of on_demand_base are planned on demand, whichever capacity type precedes it.
func TestReviewPlansOnDemandBase(t *testing.T) {
	const text = `name: chat
models:
  - name: m
    gpus: [{type: L4, tps: 1000}]
regions:
  - name: gcp/us-central1
    replicas: {min: 1, max: 20}
    on_demand_base: 2
    capacity: CAPACITY
`
	price := func(c service.CapacityType, usd float64) MachinePrice {
		return MachinePrice{Region: "gcp/us-central1", GPU: "L4", GPUs: 1, CapacityType: c, USDPerHour: usd, Source: "test"}
	}
	prices := []MachinePrice{price(service.CapacityOnDemand, 0.8), price(service.CapacityFlexStart, 0.4), price(service.CapacitySpot, 0.3)}
	for capacity, want := range map[string]string{
		"[spot, on_demand]":             "optimal: on_demand:0+2 spot:0+1",
		"[flex_start, on_demand]":       "optimal: on_demand:0+2 flex_start:0+1",
		"[flex_start, spot, on_demand]": "optimal: on_demand:0+2 flex_start:0+1",
		"[spot, flex_start, on_demand]": "optimal: on_demand:0+2 spot:0+1",
		"[on_demand, flex_start]":       "optimal: on_demand:0+3",
	} {
		history := loaded(t, 300, "m", map[service.Region]float64{"gcp/us-central1": 3000})
		p := reviewed(t, strings.Replace(text, "CAPACITY", capacity, 1), nil, history, ReviewOptions{Prices: prices})
		if got := capacities(p); got != want {
			t.Errorf("%s: got %q, want %q", capacity, got, want)
		}
	}
}

// A plan uses the capacity type that launches try first, also if a later one is cheaper. The later one is a fallback, and
// its replicas count as those of the first.
func TestReviewPlansTheFirstCapacityType(t *testing.T) {
	const text = `name: chat
models:
  - name: m
    gpus: [{type: L4, tps: 1000}]
regions:
  - name: gcp/us-central1
    replicas: {min: 1, max: 20}
    capacity: CAPACITY
`
	price := func(c service.CapacityType, usd float64) MachinePrice {
		return MachinePrice{Region: "gcp/us-central1", GPU: "L4", GPUs: 1, CapacityType: c, USDPerHour: usd, Source: "test"}
	}
	prices := []MachinePrice{price(service.CapacityOnDemand, 0.8), price(service.CapacityFlexStart, 0.4), price(service.CapacitySpot, 0.3)}
	counts := []ReplicaCount{{Model: "m", Region: "gcp/us-central1", GPU: "L4", CapacityType: service.CapacitySpot, Replicas: 1}}
	for _, c := range []struct {
		capacity, want string
		costPerHour    float64
		says           string
	}{
		{"[flex_start, spot, on_demand]", "optimal: flex_start:1+2", 3 * 0.4, "gcp/us-central1: spot is listed after flex_start: it is a fallback for missing capacity and not planned for"},
		{"[flex_start, spot]", "optimal: flex_start:1+2", 3 * 0.4, "gcp/us-central1: spot is listed after flex_start: it is a fallback"},
		{"[spot, flex_start, on_demand]", "optimal: spot:1+2", 3 * 0.3, "gcp/us-central1: flex_start is listed after spot: it is a fallback"},
		{"[on_demand, spot]", "optimal: on_demand:1+2", 3 * 0.8, "gcp/us-central1: spot is listed after on_demand: it is a fallback for missing capacity and not planned for"},
	} {
		t.Run(c.capacity, func(t *testing.T) {
			history := loaded(t, 300, "m", map[service.Region]float64{"gcp/us-central1": 3000})
			p := reviewed(t, strings.Replace(text, "CAPACITY", c.capacity, 1), counts, history, ReviewOptions{Prices: prices})
			if got := capacities(p); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if got := *p.CostPerHour.Planned; math.Abs(got-c.costPerHour) > 1e-9 {
				t.Errorf("planned $%g per hour, want $%g", got, c.costPerHour)
			}
			if all := strings.Join(p.Assumed, "\n"); !strings.Contains(all, c.says) {
				t.Errorf("%q is not in\n%s", c.says, all)
			}
		})
	}
}

// A replica whose GPU is unknown counts as the first GPU of its model, which launches try first.
func TestReviewCountsUnknownGPUsByModel(t *testing.T) {
	const yaml = `name: chat
models:
  - name: a
    gpus: [{type: L4, tps: 1000}]
  - name: b
    gpus: [{type: H100, tps: 9000}, {type: L4, tps: 1000}]
regions:
  - name: aws/us-east-1
    replicas: {min: 1, max: 20}
`
	counts := []ReplicaCount{{Model: "b", Region: "aws/us-east-1", Replicas: 2}}
	p := reviewed(t, yaml, counts, nil, ReviewOptions{})
	for _, c := range p.Changes {
		if c.Model == "b" && c.Current > 0 && (c.GPU != "H100" || c.Current != 2) {
			t.Errorf("%d replicas of b count as %s, want 2 as H100", c.Current, c.GPU)
		}
	}
	const says = "replicas of b in aws/us-east-1 run on an unknown GPU: counted as H100"
	if !slices.Contains(p.Assumed, says) {
		t.Errorf("%q is not in %q", says, p.Assumed)
	}
}
