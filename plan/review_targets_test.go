package plan

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry/demand/demandtest"
)

// A target contains the GPU and the capacity type of its replicas.
func TestTargetsNameGPUAndCapacityType(t *testing.T) {
	l4 := service.GPU{Type: "L4", Count: 1}
	for name, c := range map[string]struct {
		region string
		load   float64
		want   []ReplicaTarget
	}{
		"reserved first": {"    reserved: [{type: g6.xlarge, count: 3, price: 0.42}]\n", 5000, []ReplicaTarget{{l4, service.CapacityReserved, 3}, {l4, service.CapacityOnDemand, 2}}},
		"spot with base": {"    capacity: [spot, on_demand]\n    on_demand_base: 2\n", 3000, []ReplicaTarget{{l4, service.CapacityOnDemand, 2}, {l4, service.CapacitySpot, 1}}},
	} {
		h := loaded(t, 300, "m", map[service.Region]float64{"aws/us-east-1": c.load})
		r, err := Review(demandtest.Parse(t, fmt.Sprintf(offersYAML, c.region)), nil, h, reviewAt, ReviewOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := r.Targets()
		if len(got) != 1 || !reflect.DeepEqual(got[0].Replicas, c.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
			continue
		}
		sum := 0
		for _, n := range got[0].Replicas {
			sum += n.Count
		}
		if sum != got[0].Count || got[0].ReplicaTPS != 1000 || got[0].PeakTPS < c.load*0.999 || got[0].ForecastStep != 5*time.Minute || len(got[0].ForecastTPS) != 12 {
			t.Errorf("%s: %+v", name, got[0])
		}
	}
}

// Load beyond the bounds is planned for as far as they allow, so that targets exist.
func TestTargetsOfAnInfeasiblePlan(t *testing.T) {
	r, err := Review(demandtest.Parse(t, reviewYAML), standing(1, 1), demandtest.Constant(t, 300, 30000, 2000, 0), reviewAt, ReviewOptions{})
	if err != nil || r.Proposal.Status != StatusInfeasible {
		t.Fatalf("%+v, %v", r, err)
	}
	got := r.Targets()
	if len(got) != 2 || got[0].Count != 8 || got[1].Count != 2 || got[0].PeakTPS < 29999 {
		t.Errorf("got %+v, want all 8 of us, and 2 of eu", got)
	}
}

// The same load at another price yields the same plan.
func TestTargetsDoNotDependOnPrices(t *testing.T) {
	counts := func(price string) (out []int) {
		yaml := fmt.Sprintf(pricesYAML, ", price: "+price, "", "")
		h := loaded(t, 300, "m", map[service.Region]float64{"aws/us-east-1": 6500, "aws/eu-west-1": 3200})
		r, err := Review(demandtest.Parse(t, yaml), nil, h, reviewAt, ReviewOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range r.Targets() {
			out = append(out, target.Count)
		}
		return out
	}
	if cheap, costly := counts("0.5"), counts("98.32"); len(cheap) != 2 || !reflect.DeepEqual(cheap, costly) {
		t.Errorf("%v and %v", cheap, costly)
	}
}
