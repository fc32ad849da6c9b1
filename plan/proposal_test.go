package plan

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func proposal(t *testing.T, p *Problem, c ProposalContext) Proposal {
	t.Helper()
	return Propose(p, solve(t, p, SolveOptions{}), c)
}

func TestProposalGrows(t *testing.T) {
	p := one()
	got := proposal(t, p, ProposalContext{
		At: time.Unix(0, 0).UTC(), Horizon: time.Hour, Forecaster: "auto", DefaultCapacityType: "on_demand",
		Donated: [][][]int{{{2}}}, Billed: [][]float64{{0}}, Assumed: []string{"something"},
	})
	c := got.Changes[0]
	if c.Current != 2 || c.Delta != 3 || c.Planned != 5 || c.Reclaim != 2 || c.Donate != 0 || *c.CapacityType != "on_demand" {
		t.Fatalf("%+v", c)
	}
	if c.PlannedPeakTPS != 4200 || c.CapacityTPS != 5000 || *c.Utilisation != 0.84 {
		t.Fatalf("%+v", c)
	}
	want := "peak of 4200 uncached prompt tokens/s at 00:20; 2 x L4 serve up to 2000: add 3 for a capacity of 5000, 2 of them reclaimed; determined by demand over all regions"
	if c.Reason != want {
		t.Fatalf("%q, want %q", c.Reason, want)
	}
	if *got.CostPerHour.Current != 0 || *got.CostPerHour.Planned != 0 || !got.Changed() || *got.Horizon != "1h" {
		t.Fatalf("%+v", got)
	}
}

func TestProposalShrinks(t *testing.T) {
	p := one()
	p.Current[0][0][0], p.Min, p.LoadTPS[0][0] = 4, [][]*int{{ptr(1)}}, []float64{0}
	for donate, verb := range map[bool]string{true: "donate", false: "remove"} {
		c := proposal(t, p, ProposalContext{Donate: map[string]bool{"us": donate}}).Changes[0]
		if c.Delta != -3 || (c.Donate == 3) != donate || !strings.Contains(c.Reason, verb+" 3") || !strings.Contains(c.Reason, "determined by the minimum of 1") {
			t.Fatalf("donate %v: %+v", donate, c)
		}
	}
	p.Current[0][0][0], p.Min = 0, nil
	if got := proposal(t, p, ProposalContext{}); len(got.Changes) != 0 || got.Changed() {
		t.Fatalf("nothing to do: %+v", got.Changes)
	}
}

// Unknown values are null and never 0; lists are never null.
func TestProposalJSON(t *testing.T) {
	p := one()
	p.Max = [][]*int{{ptr(1)}}
	data, err := json.Marshal(proposal(t, p, ProposalContext{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"at":null`, `"horizon":null`, `"forecaster":null`, `"objective":null`, `"gap":null`, `"bound":null`, `"changes":[]`, `"assumed":[]`,
		`"status":"infeasible"`, `"cost_per_hour":{"now":1.6,"then":null}`, `"infeasible":["m in us: 2940 uncached prompt tokens`,
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("%s is not in %s", want, data)
		}
	}
}

func TestBinding(t *testing.T) {
	p := one()
	p.LoadTPS[0][0], p.LocalShare, p.Capacity, p.Max = []float64{3000}, 1, [][]*int{{ptr(3)}}, [][]*int{{ptr(3)}}
	got := strings.Join(proposal(t, p, ProposalContext{}).Changes[0].Binding, "; ")
	if got != "local demand; demand over all regions; max 3; capacity 3" {
		t.Fatal(got)
	}
}

func TestTable(t *testing.T) {
	p := written()
	p.Models, p.Current, p.ReplicaTPS, p.StartCostUSD = []string{"a", "b"}, [][][]int{{{2}, {0}}, {{1}, {1}}}, [][]float64{{1000}, {500}}, [][]float64{{0.1}, {0}}
	p.LoadTPS = [][][]float64{{{4200, 0}, {0, 4200}}, {{10, 10}, {0, 0}}}
	p.Min, p.Max = nil, nil
	var b strings.Builder
	got := proposal(t, p, ProposalContext{At: time.Unix(0, 0).UTC(), Horizon: time.Hour, Forecaster: "auto", Donate: map[string]bool{"us": true, "eu": true}, Assumed: []string{"this and that"}})
	got.SolveMillis = 1.25
	if err := got.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "table.txt", []byte(b.String()))
	b.Reset()
	p.Capacity = [][]*int{{ptr(0)}, {ptr(1)}}
	if err := proposal(t, p, ProposalContext{}).WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "table-infeasible.txt", []byte(b.String()))
}

// A plan's cost below what is billed per hour is explained where both are printed.
func TestTableExplainsCostBelowBilled(t *testing.T) {
	const text = "the cost per hour is higher: Assumed has the reason"
	for cost, says := range map[float64]bool{1.39: true, 1.61: false, 1.7: false} {
		billed, gap := 1.61, 0.0
		p := Proposal{Status: StatusOptimal, TotalCostUSD: &cost, LowerBoundUSD: &cost, Gap: &gap}
		p.CostPerHour.Current, p.CostPerHour.Planned = &billed, &billed
		var b strings.Builder
		if err := p.WriteTable(&b); err != nil || strings.Contains(b.String(), text) != says {
			t.Errorf("cost $%g: %v, %s", cost, err, &b)
		}
	}
}
