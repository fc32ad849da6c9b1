package barrier

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"skyserve/internal/testkit"
	"skyserve/lbd/bfio"
)

// short is Table 1 with fewer steps, for tests of a few seconds.
func short() Scenario {
	scenario := Table1(1)
	scenario.Steps, scenario.Warmup = 2000, 1200
	return scenario
}

func TestTable1OrderMatchesPaper(t *testing.T) {
	testkit.Slow(t)
	at := map[string]StepMetrics{}
	for _, r := range Rows() {
		r.Run(short(), func(p Policy) Policy { return p })
		name := r.Policy
		if r.Policy == "bf-io" {
			name += map[int]string{0: "0", 20: "20", 80: "80"}[r.H]
		}
		if r.WaitBound > 0 {
			name += " bound"
			if r.Figures.MaxWait > r.WaitBound+20 {
				t.Errorf("%s: a request waited %d steps", name, r.Figures.MaxWait)
			}
		}
		at[name] = r.Figures
	}
	// a is worse than b by at least the factor in imbalance, and where the factor is
	// that of a baseline, worse in all else: between windows the mean load differs
	// too, by which long prompts happen to start within the steps measured.
	for _, c := range []struct {
		a, b   string
		factor float64
	}{
		{"fcfs", "bf-io0", 5},
		{"jsq", "bf-io0", 5},
		{"fcfs", "bf-io0 bound", 3},
		{"bf-io0", "bf-io20", 1.3},
		{"bf-io0", "bf-io80", 1.3},
		{"bf-io0 bound", "bf-io20 bound", 1.3},
	} {
		a, b := at[c.a], at[c.b]
		if a.Imbalance < c.factor*b.Imbalance {
			t.Errorf("imbalance: %s %.0f, %s %.0f: want a factor of %v", c.a, a.Imbalance, c.b, b.Imbalance, c.factor)
		}
		if a.BarrierIdle <= b.BarrierIdle {
			t.Errorf("barrier idle: %s %v, %s %v", c.a, a.BarrierIdle, c.b, b.BarrierIdle)
		}
		if c.factor < 2 {
			continue
		}
		if a.Throughput >= b.Throughput || a.TPOT <= b.TPOT || a.Linear <= b.Linear || a.Sublinear <= b.Sublinear {
			t.Errorf("%s %+v is not worse throughout than %s %+v", c.a, a, c.b, b)
		}
	}
}

func TestScenarioIsReproducible(t *testing.T) {
	scenario := short()
	scenario.Steps, scenario.Warmup = 200, 50
	for name, policy := range map[string]func() Policy{"fcfs": FCFS, "jsq": JSQ, "bf-io": func() Policy { return new(bfio.Solver).Solve }} {
		a, b := NewSim(scenario, bfio.Defaults(5)).Run(policy()), NewSim(scenario, bfio.Defaults(5)).Run(policy())
		if a != b {
			t.Errorf("%s: %+v, then %+v", name, a, b)
		}
		scenario.Seed++
		if c := NewSim(scenario, bfio.Defaults(5)).Run(policy()); c == a {
			t.Errorf("%s: another seed yields the same figures", name)
		}
	}
}

// One worker with one request at a time, computed by hand.
func TestFiguresOfASmallRun(t *testing.T) {
	scenario := Scenario{
		Workers: 2, Slots: 1, VisibleRequests: 2, Steps: 4, Overhead: 1, PerToken: 0.1, Seed: 1,
		Lengths: func(*rand.Rand) (int64, int64) { return 10, 2 },
	}
	first := true
	scenario.Lengths = func(*rand.Rand) (int64, int64) {
		prompt := int64(20)
		if first {
			prompt = 10
		}
		first = !first
		return prompt, 2
	}
	got := NewSim(scenario, bfio.Defaults(0)).Run(FCFS())
	// Loads 10|20, 11|21, and again: steps of 3 and 3.1 s, 10 tokens of imbalance each.
	near := func(what string, got, want float64) {
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	near("imbalance", got.Imbalance, 10)
	near("throughput", got.Throughput, 8/12.2)
	near("TPOT", got.TPOT, 3.05)
	near("idle", got.BarrierIdle, 4*0.1*10/2/12.2)
	near("linear", got.Linear, 12.2*400+2*(3*Linear(2.0/3)+3.1*Linear(2.1/3.1)))
	near("sublinear", got.Sublinear, 12.2*400+2*(3*Sublinear(2.0/3)+3.1*Sublinear(2.1/3.1)))
	if got.MaxWait != 1 {
		t.Errorf("waited %d steps", got.MaxWait)
	}
}

func TestPowerModels(t *testing.T) {
	for name, p := range map[string]Power{"linear": Linear, "sublinear": Sublinear} {
		if p(0) != 100 || p(1) != 400 {
			t.Errorf("%s: %v W idle, %v W busy", name, p(0), p(1))
		}
	}
	if Linear(0.5) != 250 || math.Abs(Sublinear(0.5)-284.6716) > 1e-3 {
		t.Errorf("half busy: %v W, %v W", Linear(0.5), Sublinear(0.5))
	}
}

// Predicted completions match the simulation if no new request starts.
func TestPredictedCompletionsAreExact(t *testing.T) {
	const window = 12
	sim, in := steady(t, 4, 64, window, 300, 3)
	want := clone(in).Workers
	idle := func(in bfio.Instance) []int {
		response := make([]int, len(in.Jobs))
		for i := range response {
			response[i] = bfio.Unplaced
		}
		return response
	}
	for h := range window {
		sim.Apply(idle(in))
		in = sim.Decision()
		for g, w := range in.Workers {
			if w.Load != want[g].Future[h] {
				t.Fatalf("worker %d, %d steps on: %d tokens, %d predicted", g, h+1, w.Load, want[g].Future[h])
			}
		}
	}
}

func TestBaselines(t *testing.T) {
	in := bfio.Instance{
		Workers: []bfio.Worker{{Free: 1}, {Free: 0}, {Free: 3}, {Free: 2}},
		Jobs:    make([]bfio.Job, 5),
	}
	if got := FCFS()(in); !slices.Equal(got, []int{0, 2, 2, 2, 3}) {
		t.Errorf("fcfs: %v", got)
	}
	if got := JSQ()(in); !slices.Equal(got, []int{2, 2, 3, 0, 2}) {
		t.Errorf("jsq: %v", got)
	}
	in.Jobs = make([]bfio.Job, 8)
	for name, policy := range map[string]Policy{"fcfs": FCFS(), "jsq": JSQ()} {
		if err := bfio.Check(in, policy(in)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSyntheticLengths(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var prompts, outputs []int64
	for range 20000 {
		p, o := SyntheticLengths(rng)
		prompts, outputs = append(prompts, p), append(outputs, o)
	}
	slices.Sort(prompts)
	slices.Sort(outputs)
	for _, c := range []struct {
		what      string
		of        []int64
		lo, hi    int64
		mid0, mid int64
	}{{"prompts", prompts, 4, 16000, 380, 440}, {"outputs", outputs, 1, 4096, 170, 200}} {
		n := len(c.of)
		if c.of[0] < c.lo || c.of[n-1] > c.hi || c.of[n/2] < c.mid0 || c.of[n/2] > c.mid {
			t.Errorf("%s: %d..%d, median %d", c.what, c.of[0], c.of[n-1], c.of[n/2])
		}
	}
}
