package plan

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// twoRegions is one model in two regions whose peaks come in different windows.
func twoRegions() *Problem {
	return &Problem{
		Models: []string{"m"}, Regions: []string{"us", "eu"}, GPUs: []string{"L4"}, Current: [][][]int{{{2}, {2}}}, ReplicaTPS: [][]float64{{1000}},
		PricePerHour: []float64{0.8}, StartCostUSD: [][]float64{{0.1}}, LoadTPS: [][][]float64{{{4000, 1000}, {500, 2000}}}, LocalShare: 0.7,
	}
}

// A region with a fixed number of machines says where the number comes from.
func TestReasonOfFixedNumber(t *testing.T) {
	for want, binding := range map[string][]bindingRow{
		"local demand, the minimum, maximum and offering's limit, all 2 (in a static region by default the number of endpoints)": {{name: "local demand"}, {rowMin, 2}, {rowMax, 2}, {rowCapacity, 2}},
		"the minimum of 1, the maximum of 2, the offering's limit of 2":                                                          {{rowMin, 1}, {rowMax, 2}, {rowCapacity, 2}},
		"the minimum of 2": {{rowMin, 2}},
	} {
		if got := bindingText(binding); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A reason contains the time of the peak, the current capacity, the change of cost, and the
// forwarding between regions.
func TestReasons(t *testing.T) {
	p := twoRegions()
	got := proposal(t, p, ProposalContext{At: time.Date(2027, 1, 15, 14, 0, 0, 0, time.UTC), Horizon: time.Hour})
	for at, want := range []string{
		"peak of 4000 uncached prompt tokens/s at 14:00; 2 x L4 serve up to 2000: add 1 for a capacity of 3000, $0.80/h more; 1000 of the peak is served by eu; determined by local demand, demand over all regions",
		"peak of 2000 uncached prompt tokens/s at 14:30; 2 x L4 serve up to 2000: keep 2; serves up to 1000 of us's load; determined by local demand, demand over all regions",
	} {
		if got.Changes[at].Reason != want {
			t.Errorf("got  %q\nwant %q", got.Changes[at].Reason, want)
		}
	}
	if c := got.Changes[0]; c.ForwardedTPS != 1000 || c.ReceivedTPS != 0 || c.CostChangePerHour != 0.8 || !c.PeakAt.Equal(time.Date(2027, 1, 15, 14, 0, 0, 0, time.UTC)) {
		t.Errorf("%+v", c)
	}
	if c := got.Changes[1]; c.ForwardedTPS != 0 || c.ReceivedTPS != 1000 || c.CostChangePerHour != 0 {
		t.Errorf("%+v", c)
	}
}

// Reserved capacity is billed whole, used or not, and using it costs nothing more.
func TestReservedIsBilledInWhole(t *testing.T) {
	p := twoRegions()
	p.GPUs, p.ReplicaTPS, p.PricePerHour, p.StartCostUSD = []string{"L4", "L4 (reserved)"}, [][]float64{{1000, 1000}}, []float64{0.8, 0.4}, [][]float64{{0.1, 0.1}}
	p.Current, p.Capacity, p.CapacityType = [][][]int{{{0, 0}, {0, 0}}}, [][]*int{{nil, ptr(3)}, {nil, ptr(5)}}, []string{"on_demand", "reserved"}
	got := proposal(t, p, ProposalContext{GPUNames: []string{"L4", "L4"}})
	if *got.CostPerHour.Current != 8*0.4 || *got.CostPerHour.Planned != 8*0.4 {
		t.Fatalf("now %g, then %g", *got.CostPerHour.Current, *got.CostPerHour.Planned)
	}
	for _, c := range got.Changes {
		if c.GPU != "L4" || *c.CapacityType != "reserved" || c.CostChangePerHour != 0 || !strings.Contains(c.Reason, "already paid") {
			t.Fatalf("%+v", c)
		}
	}
}

// Offerings with the same name and capacity type are one change.
func TestOfferingsWithOneNameAreOneChange(t *testing.T) {
	p := twoRegions()
	p.GPUs, p.ReplicaTPS, p.PricePerHour, p.StartCostUSD = []string{"L4 (base)", "L4"}, [][]float64{{1000, 1000}}, []float64{0.3, 0.8}, [][]float64{{0, 0}}
	p.Current, p.Capacity = [][][]int{{{1, 1}, {0, 2}}}, [][]*int{{ptr(1), nil}, {ptr(1), nil}}
	got := proposal(t, p, ProposalContext{GPUNames: []string{"L4", "L4"}, Billed: [][]float64{{0.8, 0.8}, {0.8, 0.8}}})
	if len(got.Changes) != 2 || got.Changes[0].Current != 2 || got.Changes[0].Planned != 3 || got.Changes[0].CapacityTPS != 3000 {
		t.Fatalf("%+v", got.Changes)
	}
	if !strings.Contains(got.Changes[0].Reason, "2 x L4 serve up to 2000") {
		t.Fatal(got.Changes[0].Reason)
	}
}

// The reason of a model that takes over another's machine mentions it.
func TestReasonNamesSwitchedMachines(t *testing.T) {
	p := twoRegions()
	p.Models, p.ReplicaTPS, p.StartCostUSD = []string{"a", "b"}, [][]float64{{1000}, {1000}}, [][]float64{{0.2}, {0.2}}
	p.Current = [][][]int{{{1}, {0}}, {{2}, {0}}}
	p.LoadTPS = [][][]float64{{{2000}, {0}}, {{100}, {0}}}
	swap := 0.1
	p.SwitchCostUSD = [][]*float64{{&swap}, {&swap}}
	got := proposal(t, p, ProposalContext{})
	if c := got.Changes[0]; c.Delta != 1 || c.SwitchedVMs != 1 || !strings.Contains(c.Reason, "1 of them on machines that other models free") {
		t.Fatalf("%+v", got.Changes)
	}
}

// The load that one region sends is received by another, and no region receives more than
// its free capacity.
func TestFlowsBalance(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for n := range 300 {
		p := twoRegions()
		p.Regions, p.Current, p.LoadTPS = []string{"a", "b", "c"}, [][][]int{{{0}, {0}, {0}}}, [][][]float64{{{0}, {0}, {0}}}
		x := [][][]int{{{rng.IntN(5)}, {rng.IntN(5)}, {rng.IntN(5)}}}
		load, capacity, short := 0.0, 0.0, 0.0
		for j := range p.Regions {
			p.LoadTPS[0][j][0] = float64(rng.IntN(5000))
			load, capacity = load+p.LoadTPS[0][j][0], capacity+p.regionThroughput(x, 0, j)
			short += max(0, p.LoadTPS[0][j][0]-p.regionThroughput(x, 0, j))
		}
		var sent, taken float64
		for j, f := range p.flows(x, 0) {
			sent, taken = sent+f.forwarded, taken+f.received
			if f.received > max(0, p.regionThroughput(x, 0, j)-p.LoadTPS[0][j][0]) {
				t.Fatalf("%d: region %d takes %g", n, j, f.received)
			}
		}
		if want := short - max(0, load-capacity); sent != short || taken < want-1e-6 || taken > want+1e-6 {
			t.Fatalf("%d: %g sent of %g, %g taken, want %g", n, sent, short, taken, want)
		}
	}
}

func TestFormatRate(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 12: "12", 0.125: "0.125", 123.4: "123", 9999: "9999", 12340: "12.3k", 41000: "41k", 1.5e6: "1.50M", 1e9: "1G", 2.5e10: "25G"} {
		if got := formatRate(v); got != want {
			t.Errorf("%g: %s, want %s", v, got, want)
		}
	}
}

// Surviving the loss of one named region needs at most as much as surviving any, and that is
// sufficient.
func TestSurviveNamedRegions(t *testing.T) {
	p := twoRegions()
	p.Regions, p.Current, p.LoadTPS = []string{"a", "b", "c"}, [][][]int{{{0}, {0}, {0}}}, [][][]float64{{{3000}, {2000}, {1000}}}
	cost := func(survive bool, names ...string) float64 {
		q := *p
		q.Survive, q.SurviveRegions = survive, names
		r := solve(t, &q, SolveOptions{})
		for _, lost := range names {
			remaining := 0.0
			for j, name := range q.Regions {
				if name != lost {
					remaining += q.regionThroughput(r.Counts, 0, j)
				}
			}
			if remaining < 6000 {
				t.Errorf("without %s %g tokens/s of 6000 are served", lost, remaining)
			}
		}
		return r.Objective
	}
	none, one, anyOne := cost(false), cost(true, "c"), cost(true)
	if !(none < one && one < anyOne) {
		t.Errorf("none %g, c %g, any %g", none, one, anyOne)
	}
	if all := cost(true, "a", "b", "c"); all != anyOne {
		t.Errorf("all by name %g, any %g", all, anyOne)
	}
	gone := twoRegions()
	gone.Survive = true
	for _, c := range proposal(t, gone, ProposalContext{}).Changes {
		other := map[string]string{"us": "eu", "eu": "us"}[c.Region]
		if !strings.Contains(c.Reason, "loss of "+other) {
			t.Errorf("%s: %s", c.Region, c.Reason)
		}
	}
	tight := twoRegions()
	tight.Current, tight.LoadTPS, tight.Survive, tight.SurviveRegions = [][][]int{{{0}, {0}}}, [][][]float64{{{4000.0000000000005}, {0}}}, true, []string{"us"}
	if r := solve(t, tight, SolveOptions{}); r.Status != StatusOptimal || r.Counts[0][1][0] != 4 {
		t.Errorf("a load that rounding put above four replicas: %+v", r)
	}
	p.Survive, p.SurviveRegions = true, []string{"mars"}
	if _, err := Solve(p, SolveOptions{}); fmt.Sprint(err) != `survive_regions[0]: must be one of the regions, got "mars"` {
		t.Error(err)
	}
}
