package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"skyserve/internal/testkit"
)

// shape is the size of a problem that can be solved by trying every count up to
// maximum.
type shape struct{ models, regions, gpus, maximum int }

var shapes = []shape{
	{1, 1, 1, 4},
	{1, 2, 1, 4},
	{1, 1, 2, 4},
	{2, 1, 1, 4},
	{1, 3, 1, 4},
	{2, 2, 1, 4},
	{2, 1, 2, 4},
	{1, 2, 2, 4},
	{2, 3, 1, 4},
	{2, 2, 2, 3},
	{1, 3, 2, 2},
	{2, 3, 2, 1},
}

// plainOf draws a problem without limits, with round or uneven values. No model needs more than
// maximum replicas on any GPU: a higher count can always be reduced without higher cost or a broken
// row, so enumerating 0 to maximum finds the optimum.
func plainOf(r *rand.Rand, s shape) *Problem {
	p := &Problem{
		Models: names("m", s.models), Regions: names("r", s.regions), GPUs: names("g", s.gpus),
		LocalShare: []float64{0.25, 0.5, 1}[r.IntN(3)], PricePerHour: make([]float64, s.gpus),
	}
	uneven := float64(r.IntN(2)) / 100
	for k := range p.PricePerHour {
		p.PricePerHour[k] = float64(r.IntN(30)) / 10 * (1 + uneven*r.Float64())
	}
	for range p.Models {
		theta, sigma := make([]float64, s.gpus), make([]float64, s.gpus)
		for k := range theta {
			theta[k], sigma[k] = float64(1000+250*r.IntN(9))*(1+uneven*r.Float64()), float64(r.IntN(10))/10
		}
		if s.gpus > 1 && r.IntN(8) == 0 {
			theta[r.IntN(s.gpus)] = 0
		}
		p.ReplicaTPS, p.StartCostUSD = append(p.ReplicaTPS, theta), append(p.StartCostUSD, sigma)
		var n [][]int
		var rho [][]float64
		for range p.Regions {
			counts, loads := make([]int, s.gpus), make([]float64, 2)
			for k := range counts {
				counts[k] = max(0, r.IntN(s.maximum+2)-1)
			}
			for w := range loads {
				loads[w] = float64(50*r.IntN(20*s.maximum/s.regions+1)*min(1, r.IntN(6))) * (1 - uneven*r.Float64())
			}
			n, rho = append(n, counts), append(rho, loads)
		}
		p.Current, p.LoadTPS = append(p.Current, n), append(p.LoadTPS, rho)
	}
	return p
}

// someOf draws limits of lo to hi, some of them absent.
func someOf(r *rand.Rand, outer, inner, lo, hi int) [][]*int {
	out := make([][]*int, outer)
	for a := range out {
		out[a] = make([]*int, inner)
		for b := range out[a] {
			if r.IntN(4) > 0 {
				out[a][b] = ptr(lo + r.IntN(hi-lo+1))
			}
		}
	}
	return out
}

// rowKinds are the kinds of rows and prices that a problem may state.
var rowKinds = []struct {
	name string
	add  func(p *Problem, r *rand.Rand, maximum int)
}{
	{"plain", func(*Problem, *rand.Rand, int) {}},
	{"min", func(p *Problem, r *rand.Rand, maximum int) {
		p.Min = someOf(r, len(p.Models), len(p.Regions), 0, maximum)
	}},
	{"max", func(p *Problem, r *rand.Rand, maximum int) {
		p.Max = someOf(r, len(p.Models), len(p.Regions), 0, maximum)
	}},
	{"min_total", func(p *Problem, r *rand.Rand, maximum int) { p.MinTotal = someOf(r, 1, len(p.Models), 0, maximum)[0] }},
	{"max_total", func(p *Problem, r *rand.Rand, maximum int) { p.MaxTotal = someOf(r, 1, len(p.Models), 0, 2*maximum)[0] }},
	{"capacity", func(p *Problem, r *rand.Rand, maximum int) {
		p.Capacity = someOf(r, len(p.Regions), len(p.GPUs), 0, 2*maximum)
	}},
	{"region_alpha", func(p *Problem, r *rand.Rand, _ int) {
		for range p.Regions {
			row := make([]float64, len(p.GPUs))
			for k := range row {
				row[k] = float64(r.IntN(30)) / 10
			}
			p.RegionPricePerHour = append(p.RegionPricePerHour, row)
		}
	}},
	{"reserved", func(p *Problem, r *rand.Rand, maximum int) {
		if p.Capacity == nil {
			p.Capacity = make([][]*int, len(p.Regions))
		}
		p.CapacityType = make([]string, len(p.GPUs))
		p.CapacityType[len(p.GPUs)-1] = "on_demand"
		p.CapacityType[0] = "reserved"
		for j := range p.Capacity {
			if p.Capacity[j] == nil {
				p.Capacity[j] = make([]*int, len(p.GPUs))
			}
			p.Capacity[j][0] = ptr(r.IntN(maximum + 2))
		}
	}},
	{"switch", func(p *Problem, r *rand.Rand, _ int) {
		for range p.Models {
			row := make([]*float64, len(p.GPUs))
			for k := range row {
				if r.IntN(4) > 0 {
					cost := float64(r.IntN(10)) / 20
					row[k] = &cost
				}
			}
			p.SwitchCostUSD = append(p.SwitchCostUSD, row)
		}
	}},
	{"rtt", func(p *Problem, r *rand.Rand, _ int) {
		p.MaxRTTMillis = 50
		for j := range p.Regions {
			row := make([]float64, len(p.Regions))
			for o := range row {
				if o != j {
					row[o] = float64(10 * r.IntN(10)) // as measured: the two directions may differ
				}
			}
			p.RTTMillis = append(p.RTTMillis, row)
		}
	}},
	{"egress", func(p *Problem, r *rand.Rand, _ int) {
		for range p.Regions {
			p.Egress = append(p.Egress, float64(r.IntN(4))/4)
		}
	}},
	{"survive", func(p *Problem, _ *rand.Rand, _ int) { p.Survive = true }},
	{"survive_regions", func(p *Problem, r *rand.Rand, _ int) {
		p.Survive, p.SurviveRegions = true, []string{p.Regions[r.IntN(len(p.Regions))]}
	}},
}

// The result for a problem with rows of any two kinds equals brute force: the optimum, its bound,
// and feasibility.
func TestPairsOfRowsEqualBruteForce(t *testing.T) {
	testkit.Slow(t)
	const problems = 40 // of each pair
	for a := range rowKinds {
		for b := a + 1; b < len(rowKinds); b++ {
			one, other := rowKinds[a], rowKinds[b]
			t.Run(one.name+" "+other.name, func(t *testing.T) {
				for seed := range uint64(problems) {
					r := rand.New(rand.NewPCG(seed, uint64(a*len(rowKinds)+b)))
					s := shapes[int(seed)%len(shapes)]
					p := plainOf(r, s)
					one.add(p, r, s.maximum)
					other.add(p, r, s.maximum)
					if wrong := wrongOf(p, s.maximum, SolveOptions{}, solve(t, p, SolveOptions{})); wrong != "" {
						t.Errorf("seed %d: %s\n%s", seed, wrong, asJSON(t, p))
					}
				}
			})
		}
	}
}

// anyOf draws a problem with rows of some kinds, and how far to try counts.
func anyOf(r *rand.Rand) (p *Problem, maximum int) {
	s := shapes[r.IntN(len(shapes))]
	p = plainOf(r, s)
	for _, k := range rowKinds {
		if r.IntN(3) == 0 {
			k.add(p, r, s.maximum)
		}
	}
	return p, s.maximum
}

// With any kinds of rows, any effort and any gap, every reported optimum, infeasibility and bound
// is correct.
func TestResultsAreValidUnderAnyEffortAndGap(t *testing.T) {
	testkit.Slow(t)
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 21))
		p, maximum := anyOf(r)
		o := SolveOptions{Gap: []float64{0, 0.01, 0.2}[r.IntN(3)], Effort: []int64{0, 100, 3000, 100_000}[r.IntN(4)]}
		if wrong := wrongOf(p, maximum, o, solve(t, p, o)); wrong != "" {
			t.Errorf("seed %d: %+v: %s\n%s", seed, o, wrong, asJSON(t, p))
		}
	}
}

// wrongOf describes an error in the result for p, "" for none. Without a bound on effort the result
// must be proven.
func wrongOf(p *Problem, maximum int, o SolveOptions, got Solution) string {
	s := statement{p}
	want := s.cheapest(maximum)
	near := 1e-6 * (1 + math.Abs(want))
	switch {
	case got.Status == StatusInfeasible && !math.IsInf(want, 1):
		return fmt.Sprintf("infeasible (%q), trying everything finds %g", got.Infeasible, want)
	case got.Status == StatusInfeasible:
		return ""
	case o.Effort == 0 && got.Status != StatusOptimal:
		return fmt.Sprintf("%s %g..%g, trying everything finds %g", got.Status, got.Bound, got.Objective, want)
	case got.Bound > want+near:
		return fmt.Sprintf("%s: bound %g, trying everything finds %g", got.Status, got.Bound, want)
	case got.Counts == nil:
		return ""
	case !s.keeps(got.Counts):
		return fmt.Sprintf("%s: %v breaks a row", got.Status, got.Counts)
	case math.Abs(s.cost(got.Counts)-got.Objective) > near:
		return fmt.Sprintf("%v costs %g, stated as %g", got.Counts, s.cost(got.Counts), got.Objective)
	case got.Status == StatusOptimal && got.Objective*(1-o.Gap) > want+near:
		return fmt.Sprintf("%g called optimal within %g: %v, trying everything finds %g", got.Objective, o.Gap, got.Counts, want)
	}
	return ""
}

// Verify accepts exactly the feasible counts, and Cost returns their cost.
func TestVerifyAndCostEqualTheProgram(t *testing.T) {
	kept, broken := 0, 0
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 22))
		p, maximum := anyOf(r)
		x := cloneCounts(p.Current)
		for i := range x {
			for j := range x[i] {
				for k := range x[i][j] {
					x[i][j][k] = r.IntN(maximum + 1)
				}
			}
		}
		s := statement{p}
		if err := p.Verify(x); (err == nil) != s.keeps(x) {
			t.Errorf("seed %d: %v: Verify returns %v, the rows are kept: %t\n%s", seed, x, err, s.keeps(x), asJSON(t, p))
		} else if err == nil {
			kept++
		} else {
			broken++
		}
		if got, want := p.Cost(x), s.cost(x); math.Abs(got-want) > 1e-9*(1+want) {
			t.Errorf("seed %d: %v costs %g, want %g\n%s", seed, x, got, want, asJSON(t, p))
		}
	}
	if kept < 400 || broken < 400 {
		t.Errorf("%d kept every row, %d broke one: too few of one kind to judge by", kept, broken)
	}
}

// A replica on a GPU that a model does not run on does not count, however cheap it is.
func TestNoReplicasWhereAModelDoesNotRun(t *testing.T) {
	p := one()
	p.GPUs, p.Current, p.ReplicaTPS, p.PricePerHour, p.StartCostUSD = []string{"L4", "T4"}, [][][]int{{{0, 3}}}, [][]float64{{1000, 0}}, []float64{0.8, 0.1}, [][]float64{{0.1, 0}}
	p.LoadTPS, p.Min, p.MinTotal = [][][]float64{{{500}}}, [][]*int{{ptr(2)}}, []*int{ptr(3)}
	got := solve(t, p, SolveOptions{})
	if fmt.Sprint(got.Counts) != "[[[3 0]]]" || got.Status != StatusOptimal {
		t.Fatalf("%s %v, want 3 replicas on L4", got.Status, got.Counts)
	}
	if err := p.Verify([][][]int{{{2, 1}}}); err == nil || err.Error() != "m in us on T4: 1 replicas, but the model does not run there (its throughput there is 0)" {
		t.Fatalf("got %v", err)
	}
	p.ReplicaTPS[0][0] = 0
	p.LoadTPS[0][0][0], p.Min = 0, nil
	if got := solve(t, p, SolveOptions{}); got.Status != StatusInfeasible || got.Infeasible[0] != "no counts satisfy the constraints of m" {
		t.Fatalf("%s %q", got.Status, got.Infeasible)
	}
}

// asJSON is the problem as a file that `skyserve plan --problem` reads.
func asJSON(t *testing.T, p *Problem) string {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
