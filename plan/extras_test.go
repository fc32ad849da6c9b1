package plan

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"skyserve/internal/testkit"
)

// mixed draws a problem of random kind and typical size.
func mixed(t *rapid.T) *Problem {
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 8))
	p := random(r, size{models: 1 + r.IntN(3), regions: 2 + r.IntN(2), gpus: 1 + r.IntN(2), windows: 3, maximum: 8})
	return rapid.SampledFrom(kinds).Draw(t, "kind").make(p, r)
}

var someEffort = SolveOptions{Effort: 500_000}

// neverCheaper fails when b is proven to cost less than a.
func neverCheaper(t *rapid.T, a, b Solution, what string) {
	t.Helper()
	if a.Status == StatusInfeasible && b.Counts != nil {
		t.Fatalf("%s made the problem feasible", what)
	}
	if b.Counts != nil && b.Objective < a.Bound*(1-1e-6)-1e-6 {
		t.Fatalf("%s costs %g, without it at least %g", what, b.Objective, a.Bound)
	}
}

// Surviving the loss of a region, a limit on round trips, more load and fewer choices are never
// cheaper.
func TestTighterConstraintsAreNeverCheaper(t *testing.T) {
	testkit.Slow(t)
	rapid.Check(t, func(t *rapid.T) {
		p := mixed(t)
		a := solve(t, p, someEffort)
		q := *p
		q.Survive = true
		neverCheaper(t, a, solve(t, &q, someEffort), "survive")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "more"), 1))
		if p.RTTMillis == nil {
			q = *p
			neverCheaper(t, a, solve(t, withRTT(&q, r), someEffort), "a limit on round trips")
		}
		if p.SwitchCostUSD != nil {
			q = *p
			q.SwitchCostUSD = nil
			neverCheaper(t, a, solve(t, &q, someEffort), "no switching")
		}
	})
}

// The order of models and regions does not change what a plan costs.
func TestOrderOfModelsDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := mixed(t)
		a, b := solve(t, p, someEffort), solve(t, turned(p), someEffort)
		neverCheaper(t, a, b, "turning")
		neverCheaper(t, b, a, "turning back")
	})
}

// turned is p with its models and regions in reverse order.
func turned(p *Problem) *Problem {
	q := *p
	q.Models, q.Regions = reversed(p.Models), reversed(p.Regions)
	q.ReplicaTPS, q.StartCostUSD, q.SwitchCostUSD = reversed(p.ReplicaTPS), reversed(p.StartCostUSD), reversed(p.SwitchCostUSD)
	q.Current, q.LoadTPS = nil, nil
	for i := range p.Models {
		q.Current, q.LoadTPS = append(q.Current, reversed(p.Current[len(p.Current)-1-i])), append(q.LoadTPS, reversed(p.LoadTPS[len(p.LoadTPS)-1-i]))
	}
	q.MinTotal, q.MaxTotal, q.Egress = reversed(p.MinTotal), reversed(p.MaxTotal), reversed(p.Egress)
	q.Capacity, q.RegionPricePerHour = reversed(p.Capacity), reversed(p.RegionPricePerHour)
	q.RTTMillis = nil
	for _, row := range reversed(p.RTTMillis) {
		q.RTTMillis = append(q.RTTMillis, reversed(row))
	}
	return &q
}

func reversed[T any](in []T) []T {
	if in == nil {
		return nil
	}
	out := make([]T, len(in))
	for i, v := range in {
		out[len(in)-1-i] = v
	}
	return out
}

// Prices in another currency yield the same plan, whatever the problem states.
func TestCurrencyDoesNotChangeThePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := mixed(t)
		q, _ := normalisePrices(p)
		const factor = 64
		for _, rows := range [][][]float64{{q.PricePerHour}, q.StartCostUSD, q.RegionPricePerHour, {q.Egress}} {
			for _, row := range rows {
				for at := range row {
					row[at] *= factor
				}
			}
		}
		for _, row := range q.SwitchCostUSD {
			for _, v := range row {
				if v != nil {
					*v *= factor
				}
			}
		}
		again, unit := normalisePrices(q)
		a, b := solve(t, again, someEffort), solve(t, q, someEffort)
		if a.Status != b.Status || math.Abs(unit*a.Objective-b.Objective) > 1e-6*(1+b.Objective) {
			t.Fatalf("%s %g became %s %g", a.Status, a.Objective, b.Status, b.Objective)
		}
	})
}

// The conflicting limits are named, and no others.
func TestConflictingLimitsAreNamed(t *testing.T) {
	p := one()
	p.Models, p.Current, p.ReplicaTPS, p.StartCostUSD = []string{"llama", "qwen", "tiny"}, nil, [][]float64{{1000}, {1000}, {1000}}, [][]float64{{0}, {0}, {0}}
	p.Regions = []string{"us", "eu"}
	p.LoadTPS = [][][]float64{{{4000}, {1000}}, {{5000}, {1000}}, {{0}, {100}}}
	for range p.Models {
		p.Current = append(p.Current, [][]int{{0}, {0}})
	}
	p.Capacity = [][]*int{{ptr(6)}, {ptr(50)}}
	for name, c := range map[string]struct {
		edit func(p *Problem)
		want string
	}{
		"capacity": {func(*Problem) {}, "us has a capacity of 6 L4; llama, qwen need at least 7 there"},
		"total": {
			func(p *Problem) { p.Capacity[0][0], p.MaxTotal = nil, []*int{ptr(4), nil, nil} },
			"llama is limited to 4 replicas over all regions; llama needs more than that",
		},
		"survive": {
			func(p *Problem) { p.Capacity[0][0], p.Capacity[1][0], p.Survive = nil, ptr(9), true },
			"eu has a capacity of 9 L4; llama, qwen need at least 11 there, after the loss of any one region",
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := *p
			q.Capacity = cloneLimits(p.Capacity)
			c.edit(&q)
			got := solve(t, &q, SolveOptions{})
			if got.Status != StatusInfeasible || len(got.Infeasible) != 1 || got.Infeasible[0] != c.want {
				t.Fatalf("%s %q, want %q", got.Status, got.Infeasible, c.want)
			}
		})
	}
}

// An available reserved GPU is used before a billed one.
func TestReservedIsUsedFirst(t *testing.T) {
	p := one()
	p.GPUs, p.Current, p.ReplicaTPS, p.PricePerHour, p.StartCostUSD = []string{"L4 reserved", "L4"}, [][][]int{{{0, 0}}}, [][]float64{{1000, 1000}}, []float64{0.5, 0.8}, [][]float64{{0.1, 0.1}}
	p.Capacity, p.CapacityType = [][]*int{{ptr(3), nil}}, []string{"reserved", "on_demand"}
	got := solve(t, p, SolveOptions{})
	if got.Counts[0][0][0] != 3 || got.Counts[0][0][1] != 2 || math.Abs(got.Objective-(2*0.8+5*0.1)) > 1e-9 {
		t.Fatalf("%v for %g", got.Counts, got.Objective)
	}
}

// A VM that one model frees is taken over where that is cheaper.
func TestSwitchSavesTheStartCost(t *testing.T) {
	p := one()
	p.Models, p.Current, p.ReplicaTPS, p.StartCostUSD = []string{"a", "b"}, [][][]int{{{4}}, {{0}}}, [][]float64{{1000}, {1000}}, [][]float64{{1}, {1}}
	p.LoadTPS = [][][]float64{{{1000}}, {{5000}}}
	cost := 0.25
	p.SwitchCostUSD = [][]*float64{{nil}, {&cost}}
	got := solve(t, p, SolveOptions{})
	if want := 6*0.8 + 3*cost + 2*1; math.Abs(got.Objective-want) > 1e-9 || got.Status != StatusOptimal {
		t.Fatalf("%s %v for %g, want %g", got.Status, got.Counts, got.Objective, want)
	}
}

func TestExtrasErrors(t *testing.T) {
	base, err := json.Marshal(one())
	if err != nil {
		t.Fatal(err)
	}
	for extra, want := range map[string]string{
		`"region_alpha":[[1,2]]`:                  "region_alpha[0]: must have 1 entries, got 2",
		`"region_alpha":[[-1]]`:                   "region_alpha[0][0]: must be 0 to 1e15, got -1",
		`"capacity_type":["gold"]`:                `capacity_type[0]: must be reserved, on_demand, spot or flex_start, got "gold"`,
		`"capacity_type":[]`:                      "capacity_type: must have 1 entries, got 0",
		`"capacity_type":["reserved"]`:            "capacity_type[0]: capacity is reserved, so capacity[0][0] must be a count, got null",
		`"switch":[[-1]]`:                         "switch[0][0]: must be 0 to 1e15, got -1",
		`"switch":[]`:                             "switch: must have 1 entries, got 0",
		`"min_total":[-1]`:                        "min_total[0]: must be 0 to 1000000000, got -1",
		`"max_total":[1,2]`:                       "max_total: must have 1 entries, got 2",
		`"egress":[-0.1]`:                         "egress[0]: must be 0 to 1e15, got -0.1",
		`"max_rtt_ms":50`:                         "max_rtt_ms: requires rtt_ms",
		`"max_rtt_ms":-1`:                         "max_rtt_ms: must be 0 to 1e15, got -1",
		`"rtt_ms":[[0,1]],"max_rtt_ms":50`:        "rtt_ms[0]: must have 1 entries, got 2",
		`"rtt_ms":[[0],[1]],"max_rtt_ms":50`:      "rtt_ms: must have 1 entries, got 2",
		`"survive":1`:                             "survive: has the wrong type, got a JSON number",
		`"capacity_type":["reserved"],"alpha":[]`: "alpha: must have 1 entries, got 0",
	} {
		text := strings.TrimSuffix(string(base), "}") + "," + extra + "}"
		if _, err := ReadProblem("p.json", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in it", extra, err, want)
		}
	}
}

// The written file contains every row: a plan's columns, read back, yield the plan.
func TestColumnsConvertToCounts(t *testing.T) {
	p := written()
	cost := 0.02
	p.SwitchCostUSD, p.Egress, p.Survive = [][]*float64{{&cost}}, []float64{0.1, 0}, true
	p.MinTotal, p.MaxTotal = []*int{ptr(2)}, []*int{ptr(20)}
	var lp, mps bytes.Buffer
	if p.WriteLP(&lp) != nil || p.WriteMPS(&mps) != nil {
		t.Fatal("writing failed")
	}
	golden(t, "extras.lp", lp.Bytes())
	golden(t, "extras.mps", mps.Bytes())
	x, err := p.CountsFromColumns(map[string]float64{"s_0_0_0": 2, "t_0_0_0": 1, "a_0_0_0": 3.0000001})
	if err != nil || x[0][0][0] != 6 {
		t.Fatalf("%v %v", x, err)
	}
	if _, err := p.CountsFromColumns(map[string]float64{"a_0_0_0": 0.5}); err == nil || err.Error() != "a_0_0_0: must be a whole number from 0 to 1000000000, got 0.5" {
		t.Fatalf("got %v", err)
	}
	if _, err := p.AssessExternal(x, 0, 0); err == nil || !strings.Contains(err.Error(), "eu") {
		t.Fatalf("got %v", err)
	}
}

// With little effort, load with an egress price still gets counts at the paper's size.
func TestEgressIsSolvedWithLittleEffort(t *testing.T) {
	p := withEgress(random(rand.New(rand.NewPCG(3, 9)), paperSize), rand.New(rand.NewPCG(3, 12)))
	got := solve(t, p, SolveOptions{Effort: 3_000_000})
	if got.Status != StatusFeasible || p.Verify(got.Counts) != nil || got.Bound > got.Objective {
		t.Fatalf("%s, %g..%g", got.Status, got.Bound, got.Objective)
	}
}

// The caller may interrupt a search; the result so far is valid.
func TestInterrupt(t *testing.T) {
	p := withCapacity(random(rand.New(rand.NewPCG(2, 9)), size{models: 8, regions: 6, gpus: 4, windows: 6, maximum: 20}), rand.New(rand.NewPCG(2, 10)), 1.3)
	calls := 0
	got := solve(t, p, SolveOptions{Interrupt: func() bool { calls++; return calls > 5 }})
	if calls != 6 || got.Counts != nil && (got.Bound > got.Objective || p.Verify(got.Counts) != nil) {
		t.Fatalf("interrupt was called %d times, %s %g..%g", calls, got.Status, got.Bound, got.Objective)
	}
}
