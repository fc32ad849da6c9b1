package plan

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// pastOf is one model in one region on one GPU with a throughput of 1000 tokens per second at $6 an
// hour, and a start-up time of two minutes.
func pastOf(load ...float64) *LoadTrace {
	p := one()
	p.Current, p.PricePerHour = [][][]int{{{0}}}, []float64{6}
	return &LoadTrace{Problem: p, Load: [][][]float64{{load}}, Price: [][]float64{{6}}, StartUp: []int{2}}
}

func counts(n int) [][][]int { return [][][]int{{{n}}} }

// Replicas are billed from their launch on, and serve when they are ready.
func TestReplay(t *testing.T) {
	nan := math.NaN()
	for name, c := range map[string]struct {
		load    []float64
		targets []TargetCounts
		want    RuleOutcome
	}{
		"enough":          {[]float64{1000, 2000}, []TargetCounts{{0, counts(2)}}, RuleOutcome{CostUSD: 0.4, MaxReplicas: 2}},
		"short":           {[]float64{1500}, []TargetCounts{{0, counts(1)}}, RuleOutcome{CostUSD: 0.1, MaxReplicas: 1, OverloadMinutes: 1, OverloadTokens: 30_000}},
		"starts late":     {[]float64{2000, 2000, 2000, 2000}, []TargetCounts{{0, counts(1)}, {1, counts(2)}}, RuleOutcome{CostUSD: 0.7, MaxReplicas: 2, OverloadMinutes: 3, OverloadTokens: 180_000, Started: 1}},
		"stops at once":   {[]float64{0, 0, 0}, []TargetCounts{{0, counts(3)}, {1, counts(1)}}, RuleOutcome{CostUSD: 0.5, MaxReplicas: 3, Stopped: 2}},
		"stops the late":  {[]float64{0, 0, 2000, 2000}, []TargetCounts{{0, counts(1)}, {1, counts(3)}, {2, counts(2)}}, RuleOutcome{CostUSD: 0.8, MaxReplicas: 3, OverloadMinutes: 1, OverloadTokens: 60_000, Started: 2, Stopped: 1}},
		"unknown minutes": {[]float64{nan, 500}, []TargetCounts{{0, counts(0)}}, RuleOutcome{OverloadMinutes: 1, OverloadTokens: 30_000}},
	} {
		f, err := pastOf(c.load...).Replay("x", c.targets)
		if err != nil {
			t.Fatal(err)
		}
		c.want.Name = "x"
		c.want.ReplicaHours, c.want.OverloadShare = f.ReplicaHours, f.OverloadShare
		if math.Abs(f.CostUSD-c.want.CostUSD) > 1e-9 || math.Abs(6*f.ReplicaHours-f.CostUSD) > 1e-9 {
			t.Errorf("%s: cost %g, want %g; %g replica-hours", name, f.CostUSD, c.want.CostUSD, f.ReplicaHours)
		}
		if f.CostUSD = c.want.CostUSD; f != c.want {
			t.Errorf("%s: %+v, want %+v", name, f, c.want)
		}
	}
}

func TestReplayRejectsBadTargetCounts(t *testing.T) {
	for want, targets := range map[string][]TargetCounts{
		"replaying x: the first target counts must be for minute 0":           nil,
		"replaying x: target counts must be sorted by minute: 1 follows 2":    {{0, counts(1)}, {2, counts(1)}, {1, counts(1)}},
		"replaying x: the first target counts must be for minute 0\x00second": {{1, counts(1)}},
	} {
		want, _, _ = strings.Cut(want, "\x00")
		if _, err := pastOf(1, 2, 3, 4).Replay("x", targets); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// Over random pasts a replay equals a simple one that lists every replica by the minute of its
// launch.
func TestReplayEqualsSimpleReplay(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for n := range 200 {
		load := make([]float64, 30)
		for m := range load {
			load[m] = float64(rng.IntN(5000))
		}
		p := pastOf(load...)
		targets := []TargetCounts{{0, counts(rng.IntN(5))}}
		for m := 1; m < len(load); m++ {
			if rng.IntN(3) == 0 {
				targets = append(targets, TargetCounts{m, counts(rng.IntN(6))})
			}
		}
		f, err := p.Replay("x", targets)
		if err != nil {
			t.Fatal(err)
		}
		cost, above := twin(load, targets)
		if math.Abs(f.CostUSD-cost) > 1e-9 || f.OverloadTokens != above {
			t.Fatalf("%d: %g and %g, the twin has %g and %g", n, f.CostUSD, f.OverloadTokens, cost, above)
		}
	}
}

// twin keeps the minutes at which replicas are ready; the last one is stopped first.
func twin(load []float64, targets []TargetCounts) (cost, above float64) {
	var fleet []int
	for m, v := range load {
		for _, o := range targets {
			if o.Minute != m {
				continue
			}
			for len(fleet) > o.Counts[0][0][0] {
				fleet = fleet[:len(fleet)-1]
			}
			for len(fleet) < o.Counts[0][0][0] {
				at := m + 2
				if m == 0 {
					at = 0
				}
				fleet = append(fleet, at)
			}
		}
		ready := 0.0
		for _, at := range fleet {
			if at <= m {
				ready++
			}
		}
		cost += 6 * float64(len(fleet)) / 60
		above += 60 * max(0, v-1000*ready)
	}
	return cost, above
}

// A fleet for the peak is never overloaded. The threshold rule stays within the bounds and converges
// to the replicas that a constant load needs.
func TestRules(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	load := make([]float64, 600)
	for m := range load {
		load[m] = 3000 + 2500*math.Sin(float64(m)/60) + 500*rng.Float64()
	}
	p := pastOf(load...)
	p.Problem.Min, p.Problem.Max = [][]*int{{ptr(2)}}, [][]*int{{ptr(9)}}
	constant, err := p.Replay("constant", []TargetCounts{{Counts: p.ConstantCounts()}})
	if err != nil || constant.OverloadMinutes != 0 || constant.MaxReplicas != 6 {
		t.Errorf("%+v %v", constant, err)
	}
	targets := p.ThresholdCounts()
	for _, o := range targets {
		if n := o.Counts[0][0][0]; n < 2 || n > 9 {
			t.Fatalf("minute %d: %d replicas", o.Minute, n)
		}
	}
	threshold, err := p.Replay("threshold", targets)
	if err != nil || threshold.Started == 0 || threshold.Stopped == 0 || threshold.CostUSD >= 1.5*constant.CostUSD {
		t.Errorf("%+v %v", threshold, err)
	}
	for m := range load {
		load[m] = 3400
	}
	if targets := p.ThresholdCounts(); len(targets) != 1 || targets[0].Counts[0][0][0] != 5 {
		t.Errorf("constant load: %v", targets)
	}
}

// When replicas move between regions, the old ones stay until the new ones are ready; target counts in
// between start from the current counts.
func TestReplayMovesReplicasWithoutAGap(t *testing.T) {
	p := pastOf(1000, 1000, 1000, 1000)
	q := p.Problem
	q.Regions, q.Current = []string{"us", "eu"}, [][][]int{{{0}, {0}}}
	p.Load, p.Price, p.StartUp = [][][]float64{{p.Load[0][0], {0, 0, 0, 0}}}, [][]float64{{6}, {6}}, []int{2, 2}
	in := func(us, eu int) [][][]int { return [][][]int{{{us}, {eu}}} }
	f, err := p.Replay("x", []TargetCounts{{0, in(1, 0)}, {1, in(0, 1)}})
	if err != nil || f.OverloadMinutes != 0 || f.MaxReplicas != 2 || math.Abs(f.CostUSD-0.6) > 1e-9 || f.Stopped != 1 {
		t.Errorf("%+v %v", f, err)
	}
	f, err = p.Replay("x", []TargetCounts{{0, in(1, 0)}, {1, in(0, 1)}, {2, in(1, 0)}})
	if err != nil || f.OverloadMinutes != 0 || math.Abs(f.CostUSD-0.5) > 1e-9 || f.Stopped != 1 {
		t.Errorf("%+v %v", f, err)
	}
}

// Reserved capacity is used first and billed whole.
func TestReplayBillsReservedCapacity(t *testing.T) {
	p := pastOf(3500, 3500)
	q := p.Problem
	q.GPUs, q.ReplicaTPS, q.PricePerHour, q.StartCostUSD = []string{"L4", "L4 (reserved)"}, [][]float64{{1000, 1000}}, []float64{6, 3}, [][]float64{{0, 0}}
	q.Current, q.Capacity, q.CapacityType = [][][]int{{{0, 0}}}, [][]*int{{nil, ptr(3)}}, []string{"", "reserved"}
	p.Price = [][]float64{{6, 3}}
	x := p.ConstantCounts()
	if x[0][0][0] != 1 || x[0][0][1] != 3 {
		t.Fatal(x)
	}
	f, err := p.Replay("constant", []TargetCounts{{Counts: x}})
	if err != nil || math.Abs(f.CostUSD-2*(6+3*3)/60.0) > 1e-9 {
		t.Fatalf("%+v %v", f, err)
	}
	f, err = p.Replay("none", []TargetCounts{{Counts: zeroCounts(q)}})
	if err != nil || math.Abs(f.CostUSD-2*9/60.0) > 1e-9 {
		t.Fatalf("%+v %v", f, err)
	}
}
