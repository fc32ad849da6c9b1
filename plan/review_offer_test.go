package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	measured "skyserve/internal/telemetry/demand"
	"skyserve/internal/telemetry/demand/demandtest"
)

// loaded is a steady load of prompt tokens per second by region over the minutes
// before reviewAt.
func loaded(t *testing.T, minutes int, model string, tps map[service.Region]float64) *forecast.History {
	t.Helper()
	var points []telemetry.Point
	end := reviewAt.Unix() / 60
	for m := end - int64(minutes); m < end; m++ {
		for region, v := range tps {
			points = append(points, telemetry.Point{Minute: m, Balancer: string(region), Region: region, Model: model, Tier: service.TierFast, PromptTokens: int64(60 * v)})
		}
	}
	h, err := measured.Traffic(points)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

const offersYAML = `name: chat
models:
  - name: m
    gpus: [{type: L4, tps: 1000}]
regions:
  - name: aws/us-east-1
    replicas: {min: 1, max: 20}
%s`

// capacities lists a proposal's rows as capacity:now+delta.
func capacities(p Proposal) string {
	var out []string
	for _, c := range p.Changes {
		out = append(out, fmt.Sprintf("%s:%d%+d", *c.CapacityType, c.Current, c.Delta))
	}
	return string(p.Status) + ": " + strings.Join(out, " ")
}

// Reservations are used first and billed whole, then capacity types in their order, with the
// on-demand base.
func TestReviewPlansCapacityTypes(t *testing.T) {
	for name, c := range map[string]struct {
		region string
		stands int
		load   float64
		want   string
		bill   float64
		says   string
		paid   service.CapacityType // of the running replicas
	}{
		"spot that had none": {region: "    capacity: [spot, on_demand]\n", stands: 1, load: 2000, want: "optimal: spot:0+2 on_demand:1-1", bill: 2 * 0.4 * 0.8048, paid: service.CapacityOnDemand},
		"spot that is so":    {region: "    capacity: [spot, on_demand]\n    on_demand_base: 1\n", stands: 1, load: 2000, want: "optimal: spot:1+0 on_demand:0+1", bill: 1.4 * 0.8048, paid: service.CapacitySpot},
		"on demand":          {"", 2, 4000, "optimal: on_demand:2+2", 4 * 0.8048, "", ""},
		"reserved first":     {"    reserved: [{type: g6.xlarge, count: 3, price: 0.42}]\n", 2, 5000, "optimal: reserved:2+1 on_demand:0+2", 3*0.42 + 2*0.8048, "reservations of $1.26 per hour are billed in any case", ""},
		"reserved idle":      {"    reserved: [{type: g6.xlarge, count: 3, price: 0.42}]\n", 3, 100, "optimal: reserved:3-2", 3 * 0.42, "", ""},
		"big machine":        {"    reserved: [{type: g6.12xlarge, count: 1, price: 2}]\n", 0, 3000, "optimal: reserved:0+3", 2, "", ""},
		"spot":               {"    capacity: [spot, on_demand]\n", 1, 3000, "optimal: spot:1+2", 3 * 0.4 * 0.8048, "L4 in aws on spot: 40 % of the on-demand price", ""},
		"spot with base":     {"    capacity: [spot, on_demand]\n    on_demand_base: 2\n", 1, 3000, "optimal: spot:0+1 on_demand:1+1", 2*0.8048 + 0.4*0.8048, "replicas of on_demand_base are planned at the spot price", ""},
		"spot behind":        {"    capacity: [on_demand, spot]\n", 1, 3000, "optimal: on_demand:1+2", 3 * 0.8048, "spot is listed after on_demand", ""},
		"only reserved":      {"    capacity: [reserved]\n    reserved: [{type: g6.xlarge, count: 3, price: 0.42}]\n", 0, 9000, "infeasible: ", 3 * 0.42, "", ""},
		"unknown type":       {"    reserved: [{type: z9.huge, count: 3, price: 0.42}]\n", 1, 1000, "optimal: on_demand:1+0", 0.8048, "the GPUs of z9.huge are unknown: the reservation is ignored", ""},
		"wrong GPU":          {"    reserved: [{type: p5.4xlarge, count: 1, price: 3}]\n", 1, 1000, "optimal: on_demand:1+0", 0.8048, "no model runs on p5.4xlarge (1 x H100)", ""},
		"no price":           {"    reserved: [{type: g6.xlarge, count: 1}]\n", 1, 1000, "optimal: reserved:1+0", 0, "the reservation of 1 x g6.xlarge has no price", ""},
	} {
		t.Run(name, func(t *testing.T) {
			counts := []ReplicaCount{{Model: "m", Region: "aws/us-east-1", GPU: "L4", CapacityType: c.paid, Replicas: c.stands}}
			p := reviewed(t, fmt.Sprintf(offersYAML, c.region), counts, loaded(t, 300, "m", map[service.Region]float64{"aws/us-east-1": c.load}), ReviewOptions{})
			slices.SortStableFunc(p.Changes, func(a, b ReplicaChange) int { return -strings.Compare(*a.CapacityType, *b.CapacityType) })
			if got := capacities(p); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			bill := p.CostPerHour.Planned
			if bill == nil {
				bill = p.CostPerHour.Current
			}
			if math.Abs(*bill-c.bill) > 1e-9 {
				t.Errorf("billed %g, want %g", *bill, c.bill)
			}
			if all := strings.Join(p.Assumed, "\n"); !strings.Contains(all, c.says) {
				t.Errorf("%q is not in\n%s", c.says, all)
			}
		})
	}
}

// Machines of a reservation that is not active, or that end within the horizon, are not planned for; those that
// outlive their reservation are.
func TestReviewReservationEnds(t *testing.T) {
	const lines = "    reserved: [{id: cr-0a, type: g6.xlarge, count: 3, price: 0.42}]\n"
	in := func(d time.Duration) time.Time { return reviewAt.Add(d) }
	for name, c := range map[string]struct {
		fact       ReservationState
		want, says string
	}{
		"no end":       {ReservationState{Active: true}, "optimal: reserved:0+2", ""},
		"ends later":   {ReservationState{Active: true, Ends: in(2 * time.Hour), MachinesEnd: in(61 * time.Minute)}, "optimal: reserved:0+2", ""},
		"ends":         {ReservationState{Active: true, Ends: in(90 * time.Minute), MachinesEnd: in(time.Hour)}, "optimal: on_demand:0+2", "the 3 x g6.xlarge of reservation cr-0a end at "},
		"billed later": {ReservationState{Active: true, Ends: in(time.Hour)}, "optimal: reserved:0+2", "reservation cr-0a ends at "},
		"not active":   {ReservationState{State: "scheduled"}, "optimal: on_demand:0+2", "reservation cr-0a is not active (scheduled): its 3 x g6.xlarge are not planned for"},
	} {
		t.Run(name, func(t *testing.T) {
			c.fact.Region, c.fact.ID = "aws/us-east-1", "cr-0a"
			p := reviewed(t, fmt.Sprintf(offersYAML, lines), nil, loaded(t, 300, "m", map[service.Region]float64{"aws/us-east-1": 2000}), ReviewOptions{Horizon: time.Hour, Reservations: []ReservationState{c.fact}})
			p.Changes = slices.DeleteFunc(p.Changes, func(r ReplicaChange) bool { return r.Delta == 0 })
			if got := capacities(p); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if all := strings.Join(p.Assumed, "\n"); !strings.Contains(all, c.says) || c.says == "" && strings.Contains(all, "cr-0a") {
				t.Errorf("want %q in\n%s", c.says, all)
			}
		})
	}
}

// A price set in the service takes precedence over the list price.
func TestReviewUsesConfiguredPrices(t *testing.T) {
	yaml := strings.Replace(fmt.Sprintf(offersYAML, ""), "tps: 1000", "tps: 1000, price: 0.5", 1)
	p := reviewed(t, yaml, nil, nil, ReviewOptions{})
	if *p.CostPerHour.Planned != 0.5 || !slices.Contains(p.Assumed, "L4: $0.5 per hour, as set for m") {
		t.Fatalf("%g %q", *p.CostPerHour.Planned, p.Assumed)
	}
}

// The loss of a region, limits on round trips and switched machines change the plan; invalid
// options are rejected.
func TestReviewConstraints(t *testing.T) {
	const yaml = `name: chat
models:
  - name: a
    gpus: [{type: L4, tps: 1000}]
  - name: b
    gpus: [{type: L4, tps: 1000}]
regions:
  - {name: local/us, replicas: {min: 0, max: 9}}
  - {name: local/eu, replicas: {min: 0, max: 9}}
local: {rtt: {us-eu: 100ms}}
`
	h := loaded(t, 300, "a", map[service.Region]float64{"local/us": 4000})
	total := func(o ReviewOptions) (us, eu int) {
		o.LocalShare = 0.5
		p := reviewed(t, yaml, nil, h, o)
		if p.Status != StatusOptimal {
			t.Errorf("%+v: %s %v", o.Survive, p.Status, p.Infeasible)
		}
		for _, c := range p.Changes {
			if c.Region == "local/us" {
				us += c.Planned
			} else {
				eu += c.Planned
			}
		}
		return us, eu
	}
	if us, eu := total(ReviewOptions{}); us+eu != 4 {
		t.Errorf("%d and %d replicas", us, eu)
	}
	if us, eu := total(ReviewOptions{Survive: []string{SurviveAny}}); us != 4 || eu != 4 {
		t.Errorf("with any one gone: %d and %d replicas", us, eu)
	}
	if us, eu := total(ReviewOptions{Survive: []string{"local/us"}}); us != 2 || eu != 4 {
		t.Errorf("with us gone: %d and %d replicas", us, eu)
	}
	if us, eu := total(ReviewOptions{MaxRTT: 50 * time.Millisecond}); us != 4 || eu != 0 {
		t.Errorf("within 50ms: %d and %d replicas", us, eu)
	}
	near := ReviewOptions{MaxRTT: 50 * time.Millisecond, RTT: map[RegionPair]time.Duration{NewRegionPair("local/us", "local/eu"): time.Millisecond}}
	if us, eu := total(near); us+eu != 4 {
		t.Errorf("measured within 50ms: %d and %d replicas", us, eu)
	}
	_, err := Review(demandtest.Parse(t, yaml), nil, h, reviewAt, ReviewOptions{Survive: []string{"local/mars"}})
	if err == nil || err.Error() != `planning chat: survive: must be "any" (the loss of any one region) or regions of the service (local/us, local/eu), got "local/mars"` {
		t.Error(err)
	}
	cloud := strings.NewReplacer("local/us", "aws/us-east-1", "local/eu", "aws/eu-west-1", "local: {rtt: {us-eu: 100ms}}\n", "autoscale: {max_rtt: 80ms}\n").Replace(yaml)
	stands := []ReplicaCount{{Model: "b", Region: "aws/us-east-1", GPU: "L4", Replicas: 2}}
	p := reviewed(t, cloud, stands, loaded(t, 300, "a", map[service.Region]float64{"aws/us-east-1": 2000}), ReviewOptions{AllowSwitch: true})
	if c := p.Changes[0]; c.Model != "a" || c.SwitchedVMs != 2 {
		t.Errorf("%+v", p.Changes)
	}
	if all := strings.Join(p.Assumed, "\n"); !strings.Contains(all, "the round trip between aws/us-east-1 and aws/eu-west-1 is unknown: assuming at most 80ms") {
		t.Error(all)
	}
}

// A service without any usable capacity gets an error that names the settings.
func TestReviewWithoutOfferingsFails(t *testing.T) {
	_, err := Review(demandtest.Parse(t, fmt.Sprintf(offersYAML, "    capacity: [reserved]\n")), nil, nil, reviewAt, ReviewOptions{})
	const want = "planning chat: no region has capacity that a model can run on: "
	if err == nil || err.Error() != want+"regions[].capacity allows only reserved, and regions[].reserved has no usable machine; add on_demand or spot to regions[].capacity, or a machine that fits models[].gpus to regions[].reserved" {
		t.Error(err)
	}
	other := strings.NewReplacer("type: L4", "type: A10G", "aws/us-east-1", "gcp/us-central1").Replace(fmt.Sprintf(offersYAML, ""))
	_, err = Review(demandtest.Parse(t, other), nil, nil, reviewAt, ReviewOptions{})
	if err == nil || err.Error() != want+"gcp rents no machines with A10G; add to models[].gpus a GPU that it rents (A100, H100, H200 or L4)" {
		t.Error(err)
	}
}

// A plan uses no number of GPUs that the cloud's machines do not have.
func TestPlanUsesRentedGPUCounts(t *testing.T) {
	for _, tt := range []struct{ cloud, want string }{
		{"aws/us-east-1", "aws rents no machines with 2xL4; add to models[].gpus a GPU that it rents (L4: 1, 4 or 8 in one machine)"},
		{"gcp/us-central1", ""},
	} {
		text := strings.NewReplacer("type: L4", "type: L4, count: 2", "aws/us-east-1", tt.cloud).Replace(fmt.Sprintf(offersYAML, ""))
		_, err := Review(demandtest.Parse(t, text), nil, nil, reviewAt, ReviewOptions{})
		if (err == nil) != (tt.want == "") || err != nil && !strings.HasSuffix(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.cloud, err)
		}
	}
}

// A review can use another solver.
func TestReviewUsesAnotherSolver(t *testing.T) {
	called := 0
	p := reviewed(t, reviewYAML, nil, nil, ReviewOptions{Gap: 0.1, Solve: func(p *Problem, o SolveOptions) (Solution, error) {
		called++
		if o.Gap != 0.1 {
			t.Errorf("gap %g", o.Gap)
		}
		return Solution{Status: StatusUnknown}, nil
	}})
	if called != 1 || p.Status != StatusUnknown {
		t.Errorf("%d calls, %s", called, p.Status)
	}
}

// The load curves of a page have the load and counts of the plan.
func TestReviewReturnsLoadCurves(t *testing.T) {
	r, err := Review(demandtest.Parse(t, reviewYAML), standing(1, 1), demandtest.Constant(t, 300, 6000, 0, 0.5), reviewAt, ReviewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	us := r.LoadCurves[0]
	peak, _ := us.Peak()
	if us.Region != "local/us" || len(us.History) != 300 || us.History[0] != 3000 || peak != r.Proposal.Changes[0].PlannedPeakTPS || us.CurrentCapacity != 1500 || *us.PlannedCapacity != 3000 {
		t.Errorf("%+v, peak %g", us, peak)
	}
	if r, err = Review(demandtest.Parse(t, reviewYAML), nil, nil, reviewAt, ReviewOptions{}); err != nil || len(r.LoadCurves) != 2 || len(r.LoadCurves[0].History) != 0 {
		t.Errorf("%+v %v", r, err)
	}
}

// An unusual input yields a plan that lists its assumptions, or an error that describes the
// problem.
func TestReviewEdgeCases(t *testing.T) {
	for name, c := range map[string]struct {
		yaml   string
		load   float64
		status SolveStatus
		says   string
	}{
		"no load":       {fmt.Sprintf(offersYAML, ""), 0, StatusOptimal, ""},
		"1e9 tokens/s":  {fmt.Sprintf(offersYAML, ""), 1e9, StatusInfeasible, "m in aws/us-east-1: replicas.max is 20; without such limits the cheapest plan has 1000000 replicas there"},
		"no price":      {strings.Replace(fmt.Sprintf(offersYAML, ""), "aws/us-east-1", "local/us", 1), 1000, StatusOptimal, "local regions are not billed"},
		"no offering":   {fmt.Sprintf(offersYAML, "  - name: aws/eu-west-1\n    replicas: {min: 1, max: 9}\n    capacity: [reserved]\n"), 1000, StatusInfeasible, "m in aws/eu-west-1: the minimum of 1 replica is above what the maximum and capacity allow"},
		"unmeasured":    {strings.Replace(fmt.Sprintf(offersYAML, ""), ", tps: 1000", "", 1), 1000, StatusOptimal, "m on L4 has no measured throughput (models[].gpus[].prompt_tokens_per_second): assuming 1500 uncached prompt tokens"},
		"only a file":   {"name: chat\nmodels: [{name: m}]\nregions: [{name: static/paris, endpoints_file: engines.txt}]\n", 1000, StatusOptimal, ""},
		"survives none": {fmt.Sprintf(offersYAML, ""), 1000, StatusInfeasible, "after the loss of any one region"},
	} {
		t.Run(name, func(t *testing.T) {
			o := ReviewOptions{}
			if name == "survives none" {
				o.Survive = []string{SurviveAny}
			}
			region := demandtest.Parse(t, c.yaml).Regions[0].Name
			p := reviewed(t, c.yaml, nil, loaded(t, 300, "m", map[service.Region]float64{region: c.load}), o)
			text := strings.Join(append(p.Infeasible, p.Assumed...), "\n")
			if p.Status != c.status || !strings.Contains(text, c.says) {
				t.Errorf("%s\n%s", p.Status, text)
			}
		})
	}
}
