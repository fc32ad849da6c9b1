package barrier

import (
	"math"
	"testing"

	"skyserve/internal/testkit"
	"skyserve/lbd/bfio"
)

func replayed(c Case, r PolicyRow) StepMetrics {
	r.Run(c.Scenario, func(p Policy) Policy { return p })
	return r.Figures
}

// BF-IO keeps the fleet balanced below capacity too: slots are free everywhere, and the policies differ
// in which they fill.
func TestOpenFleetsStayBalancedUnderBFIO(t *testing.T) {
	const capacity = 311 // requests per second, near what Capacity finds
	for _, c := range OpenCases(1, capacity)[:4] {
		c.Scenario.Duration, c.Scenario.WarmupSeconds = 10, 6
		fcfs, jsq, bfio := replayed(c, c.Rows[0]), replayed(c, c.Rows[1]), replayed(c, c.Rows[2])
		for name, base := range map[string]StepMetrics{"fcfs": fcfs, "jsq": jsq} {
			if base.Imbalance < 2.5*bfio.Imbalance || base.BarrierIdle < 2*bfio.BarrierIdle || base.TPOT <= bfio.TPOT {
				t.Errorf("utilisation %v: %s %+v, bf-io %+v", c.Utilisation, name, base, bfio)
			}
		}
		if bfio.MaxWait > 0 && c.Utilisation < 1 {
			t.Errorf("utilisation %v: a request waited %d steps with slots free", c.Utilisation, bfio.MaxWait)
		}
	}
}

func TestCapacityEqualsFCFSOverload(t *testing.T) {
	scenario := Table1(2)
	scenario.Steps = 10000
	f := NewSim(scenario, bfio.Defaults(0)).Run(FCFS())
	if other, got := float64(f.Completed)/f.Seconds, Capacity(); math.Abs(other/got-1) > 0.05 {
		t.Errorf("%.1f requests per second, with other requests %.1f", got, other)
	}
}

// With deep queues, binding on arrival loses most of BF-IO's gain; with free slots, next to nothing
// (section 7.3).
func TestBindingOnArrivalCostsBalance(t *testing.T) {
	cases := DispatchCases(1, 311)
	figures := func(at int) StepMetrics {
		c := cases[at]
		c.Scenario.Duration, c.Scenario.WarmupSeconds = 20, 15
		return replayed(c, c.Rows[3])
	}
	light, bound := figures(0), figures(1)
	if light.Imbalance != bound.Imbalance {
		t.Errorf("utilisation %v: %v with a pool, %v bound", cases[0].Utilisation, light.Imbalance, bound.Imbalance)
	}
	deep, bound := figures(4), figures(5)
	if bound.Imbalance < 3*deep.Imbalance || bound.Throughput >= deep.Throughput {
		t.Errorf("utilisation %v: %+v with a pool, %+v bound", cases[4].Utilisation, deep, bound)
	}
}

// Theorem 3: BF-IO gains for any common growth, and more the less the loads grow.
func TestBFIOGainsAtEveryDrift(t *testing.T) {
	last := math.Inf(1)
	for _, c := range DriftCases(1) {
		c.Scenario.Steps, c.Scenario.Warmup = 1000, 600
		gain := replayed(c, c.Rows[0]).Imbalance / replayed(c, c.Rows[1]).Imbalance
		if gain < 2.5 || gain > last {
			t.Errorf("drift %v: imbalance %.1f times below fcfs, at less drift %.1f", c.Scenario.Drift(), gain, last)
		}
		last = gain
	}
}

// Theorem 2: the gain grows with the slots; the cases have the stated sizes.
func TestGainGrowsWithSlots(t *testing.T) {
	testkit.Slow(t)
	cases := ScaleCases(1)
	last := 0.0
	for _, at := range []int{6, 7, 1, 8, 9} {
		c := cases[at]
		if want := c.Scenario.Workers * c.Scenario.Slots * 256 / 1152; c.Scenario.VisibleRequests < want || c.Scenario.VisibleRequests > want+1 {
			t.Errorf("%d by %d: a pool of %d", c.Scenario.Workers, c.Scenario.Slots, c.Scenario.VisibleRequests)
		}
		c.Scenario.Steps, c.Scenario.Warmup = 600, 400
		gain := replayed(c, c.Rows[0]).Imbalance / replayed(c, c.Rows[1]).Imbalance
		if gain < last {
			t.Errorf("%d slots: imbalance %.1f times below fcfs, with fewer slots %.1f", c.Scenario.Slots, gain, last)
		}
		last = gain
	}
	if largest := cases[5].Scenario; largest.Workers != 256 || largest.Slots != 72 {
		t.Errorf("the largest fleet is %d by %d", largest.Workers, largest.Slots)
	}
}

// Every case starts with the baseline, and only cases with the paper's fleet have the paper's values.
func TestCasesStartWithFCFS(t *testing.T) {
	all := map[string][]Case{
		"table1": Table1Cases(1), "open": OpenCases(1, 300), "dispatch": DispatchCases(1, 300), "drift": DriftCases(1), "scale": ScaleCases(1),
	}
	printed := map[string]int{"table1": 4, "drift": 2, "scale": 2}
	for name, cases := range all {
		n := 0
		for _, c := range cases {
			if c.Rows[0].Policy != "fcfs" {
				t.Errorf("%s: the first row is %s", name, c.Rows[0].Policy)
			}
			for _, r := range c.Rows {
				if r.Paper != nil {
					n++
				}
			}
		}
		if n != printed[name] {
			t.Errorf("%s: %d rows have figures of the paper, want %d", name, n, printed[name])
		}
	}
}
