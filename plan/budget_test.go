package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
)

// budgetProblem is two models in two regions on a cheap and a costly GPU.
func budgetProblem() *Problem {
	return &Problem{
		Models: []string{"a", "b"}, Regions: []string{"us", "eu"}, GPUs: []string{"L4", "H100"},
		Current: [][][]int{{{1, 0}, {1, 0}}, {{2, 0}, {0, 0}}}, ReplicaTPS: [][]float64{{1000, 4000}, {1000, 2000}}, PricePerHour: []float64{1, 6},
		Min: [][]*int{{ptr(1), ptr(1)}, {ptr(0), ptr(1)}},
	}
}

func costOf(p *Problem) func([][][]int) float64 {
	return func(x [][][]int) float64 { return ProposalContext{}.billed(p, x) }
}

func TestCutToBudget(t *testing.T) {
	for _, tt := range []struct {
		name   string
		x      [][][]int
		budget float64
		want   [][][]int
		cut    string
	}{
		{"no budget", [][][]int{{{9, 9}, {9, 9}}, {{9, 9}, {9, 9}}}, 0, [][][]int{{{9, 9}, {9, 9}}, {{9, 9}, {9, 9}}}, ""},
		{"it fits", [][][]int{{{2, 0}, {1, 0}}, {{2, 0}, {1, 0}}}, 6, [][][]int{{{2, 0}, {1, 0}}, {{2, 0}, {1, 0}}}, ""},
		{"minimum first", [][][]int{{{3, 0}, {1, 0}}, {{2, 0}, {1, 0}}}, 5, [][][]int{{{1, 0}, {1, 0}}, {{2, 0}, {1, 0}}}, "a in us: 2 of 2 additional L4 exceed the budget"},
		{"cheapest per token", [][][]int{{{1, 1}, {3, 0}}, {{2, 0}, {0, 0}}}, 7, [][][]int{{{1, 0}, {3, 0}}, {{2, 0}, {0, 0}}}, "a in us: 1 of 1 additional H100 exceed the budget"},
		{"a cut model keeps its replicas", [][][]int{{{0, 2}, {1, 0}}, {{2, 0}, {0, 0}}}, 11, [][][]int{{{1, 1}, {1, 0}}, {{2, 0}, {0, 0}}}, "a in us: 1 of 2 additional H100 exceed the budget"},
		{"savings stay", [][][]int{{{1, 2}, {1, 0}}, {{1, 0}, {0, 0}}}, 4, [][][]int{{{1, 0}, {1, 0}}, {{1, 0}, {0, 0}}}, "a in us: 2 of 2 additional H100 exceed the budget"},
		{"the fleet exceeds it", [][][]int{{{2, 0}, {1, 0}}, {{2, 0}, {0, 0}}}, 1, [][][]int{{{1, 0}, {1, 0}}, {{2, 0}, {0, 0}}}, "a in us: 1 of 1 additional L4 exceed the budget"},
	} {
		p := budgetProblem()
		got, cut := p.cutToBudget(tt.x, tt.budget, costOf(p))
		if !slices.EqualFunc(got, tt.want, func(a, b [][]int) bool { return slices.EqualFunc(a, b, slices.Equal) }) || strings.Join(cut, "; ") != tt.cut {
			t.Errorf("%s: %v, %q, want %v, %q", tt.name, got, cut, tt.want, tt.cut)
		}
	}
}

// The counts never cost more than the budget or than the running ones, and a model is only reduced as
// its uncut plan says.
func TestCutToBudgetProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := budgetProblem()
		counts := func(name string) (x [][][]int) {
			for range p.Models {
				var model [][]int
				for range p.Regions {
					model = append(model, []int{rapid.IntRange(0, 4).Draw(t, name), rapid.IntRange(0, 4).Draw(t, name)})
				}
				x = append(x, model)
			}
			return x
		}
		p.Current = counts("now")
		x, budget, cost := counts("planned"), float64(rapid.IntRange(1, 60).Draw(t, "budget")), costOf(p)
		got, cut := p.cutToBudget(x, budget, cost)
		if cost(got) > max(budget, cost(p.Current)) {
			t.Fatalf("%v costs %v, budget %v, now %v", got, cost(got), budget, cost(p.Current))
		}
		if (len(cut) == 0) != (cost(x) <= budget || cost(got) == cost(x)) {
			t.Fatalf("cut %q: %v of %v", cut, got, x)
		}
		for i := range got {
			same := slices.EqualFunc(got[i], x[i], slices.Equal)
			for j := range got[i] {
				for k, n := range got[i][j] {
					if !same && n < p.Current[i][j][k] || n > max(x[i][j][k], p.Current[i][j][k]) {
						t.Fatalf("model %d: %v, now %v, planned %v", i, got[i], p.Current[i], x[i])
					}
				}
			}
		}
	})
}

// A review plans within the budget and says what it cut.
func TestReviewObeysBudget(t *testing.T) {
	spec := &service.Spec{
		Name: "chat", Models: []service.Model{{Name: "m", GPUs: []service.GPU{{Type: "L4", Count: 1, TPS: 1000}}}},
		Regions:   []service.RegionSpec{{Name: "aws/us-east-1", Balancers: 1, Replicas: service.Bounds{Min: 6, Max: 9}, Capacity: []service.CapacityType{service.CapacityOnDemand}}},
		Autoscale: service.Autoscale{Every: time.Hour, Budget: &service.Budget{PerHour: 3.4}},
	}
	got, err := Review(spec, nil, nil, time.Unix(0, 0), ReviewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := got.Proposal
	if len(p.OverBudget) != 1 || p.OverBudget[0] != "m in aws/us-east-1: 2 of 6 additional L4 exceed the budget" || *p.CostPerHour.Planned > 3.4 || got.Counts[0][0][0] != 4 || p.Gap != nil {
		t.Errorf("%+v, %v", p, got.Counts)
	}
	var table strings.Builder
	if err := p.WriteTable(&table); err != nil || !strings.Contains(table.String(), "\nCut by the budget of $3.40/h for all machines:\n  - m in aws/us-east-1: 2 of 6") {
		t.Errorf("%v\n%s", err, table.String())
	}
	page := htmlOf(t, Report{Service: "chat", Proposal: p, LoadCurves: got.LoadCurves})
	for _, want := range []string{"Cut to the budget of $3.40 per hour: $", "<h2>Cut by the budget of $3.40 per hour for all machines</h2>", "m in aws/us-east-1: 2 of 6 additional L4 exceed the budget"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not on the page", want)
		}
	}
	if strings.Contains(page, "No plan found") {
		t.Error("the page says that no plan was found")
	}
}
