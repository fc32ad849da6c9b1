package eval

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"skyserve/internal/sim"
	"skyserve/internal/sim/barrier"
	"skyserve/lbd/bfio"
)

// BFIOScenario is a scenario of the BF-IO paper: a decode fleet in which every step waits for the
// slowest worker.
type BFIOScenario struct {
	Name, Title string
	Workers     string // worker count, as printed
	Load        string // arrival load, as printed

	cases   func(seed uint64, capacity float64) []barrier.Case
	open    bool // the cases depend on the measured capacity
	ratio   bool // rows report the imbalance ratio to FCFS on the same case
	label   func(row *BFIORow, c *barrier.Case)
	columns []bfioColumn
}

// BFIOScenarios returns the scenarios of the BF-IO paper.
func BFIOScenarios() []BFIOScenario {
	return []BFIOScenario{
		{
			Name: "bfio-table1", Title: "BF-IO Table 1: 16 workers of 72 slots with a step barrier, overloaded",
			Workers: "16 workers", Load: "overload",
			cases:   func(seed uint64, _ float64) []barrier.Case { return barrier.Table1Cases(seed) },
			label:   func(*BFIORow, *barrier.Case) {},
			columns: table1Columns(),
		},
		{
			Name: "bfio-open", Title: "16 workers of 72 slots with a step barrier, Poisson arrivals at fractions of the FCFS capacity",
			Workers: "16 workers", Load: "0.7 to 1.2 of FCFS", open: true,
			cases:   barrier.OpenCases,
			label:   func(row *BFIORow, c *barrier.Case) { row.Utilisation = c.Utilisation },
			columns: openColumns(false),
		},
		{
			Name: "bfio-dispatch", Title: "BF-IO 7.3: a shared pool of waiting requests versus binding each request on arrival",
			Workers: "16 workers", Load: "0.98 to 1.2 of FCFS", open: true,
			cases:   barrier.DispatchCases,
			label:   labelDispatch,
			columns: openColumns(true),
		},
		{
			Name: "bfio-drift", Title: "BF-IO 5.1: load drift other than one token per step, 16 workers of 72 slots, overloaded",
			Workers: "16 workers", Load: "overload", ratio: true,
			cases: func(seed uint64, _ float64) []barrier.Case { return barrier.DriftCases(seed) },
			label: func(row *BFIORow, c *barrier.Case) {
				drift := c.Scenario.Drift()
				row.Drift = &drift
			},
			columns: driftColumns(),
		},
		{
			Name: "bfio-scale", Title: "BF-IO theorem 2: gain over FCFS with 8 to 256 workers and 8 to 288 slots, overloaded",
			Workers: "8 to 256 workers", Load: "overload", ratio: true,
			cases:   func(seed uint64, _ float64) []barrier.Case { return barrier.ScaleCases(seed) },
			label:   func(row *BFIORow, c *barrier.Case) { row.Workers, row.Slots = c.Scenario.Workers, c.Scenario.Slots },
			columns: scaleColumns(),
		},
	}
}

func labelDispatch(row *BFIORow, c *barrier.Case) {
	row.Utilisation, row.Dispatch = c.Utilisation, "pool"
	if c.Scenario.OnArrival {
		row.Dispatch = "arrival"
	}
}

// IsBFIOName reports whether name is, or looks like, the name of one of BFIOScenarios rather than a file.
func IsBFIOName(name string) bool {
	return strings.HasPrefix(name, "bfio") && !strings.ContainsAny(name, "./")
}

// FindBFIOScenario returns the scenario with that name, or an error that lists the known names.
func FindBFIOScenario(name string) (*BFIOScenario, error) {
	var names []string
	for _, s := range BFIOScenarios() {
		if s.Name == name {
			return &s, nil
		}
		names = append(names, s.Name)
	}
	return nil, fmt.Errorf("unknown scenario %q: must be one of %s", name, strings.Join(names, ", "))
}

// BFIOReport compares policies that assign waiting requests to workers with a step barrier.
type BFIOReport struct {
	Scenario   string    `json:"scenario"`
	Title      string    `json:"title"`
	Rows       []BFIORow `json:"rows"`
	WallMillis float64   `json:"wall_ms"`
	// Capacity is the number of requests per second that FCFS completes in overload. Utilisations are
	// fractions of it. It is 0 and omitted in overload scenarios.
	Capacity float64 `json:"capacity_requests_per_second,omitempty"`

	columns []bfioColumn
}

// BFIORow is the result of one policy with one seed. A row omits values that do not vary in its
// scenario.
type BFIORow struct {
	Policy     string  `json:"policy"` // fcfs, jsq or bf-io
	H          int     `json:"h"`
	WaitBound  int     `json:"wait_bound"` // steps; 0 = none
	Seed       uint64  `json:"seed"`
	Imbalance  float64 `json:"imbalance"` // tokens
	Idle       float64 `json:"barrier_idle"`
	Throughput float64 `json:"throughput_tokens_per_second"`
	TPOT       float64 `json:"tpot_ms"`
	Energy     float64 `json:"energy_kj"` // by the linear power model
	Sublinear  float64 `json:"energy_sublinear_kj"`
	MaxWait    int     `json:"max_wait_steps"`
	// Decision is the time per decision, in microseconds.
	Decision sim.Percentiles `json:"decision_us"`
	Paper    *BFIOPaper      `json:"paper"`

	Workers     int      `json:"workers,omitempty"`
	Slots       int      `json:"slots,omitempty"` // of each worker
	Utilisation float64  `json:"utilisation,omitempty"`
	Dispatch    string   `json:"dispatch,omitempty"` // pool or arrival
	Drift       *float64 `json:"drift,omitempty"`    // tokens per step, mean
	// Wait is the time from a request's arrival to its start, or to the end of the run.
	Wait *sim.Percentiles `json:"wait_ms,omitempty"`
	// Ratio is the imbalance of FCFS divided by the imbalance of the row.
	Ratio *float64 `json:"imbalance_ratio,omitempty"`
}

// BFIOPaper holds the values that the paper reports for a row.
type BFIOPaper struct {
	Imbalance  float64 `json:"imbalance"`
	Throughput float64 `json:"throughput_tokens_per_second"`
	TPOT       float64 `json:"tpot_ms"`
	Energy     float64 `json:"energy_kj"`
}

// RunBFIO runs the named scenario with seeds base+1 to base+seeds, one row after the other: decisions
// are timed, and concurrent runs would disturb the timings. It returns early when ctx ends, and fails
// on an unknown name. progress is called after every row.
func RunBFIO(ctx context.Context, name string, seeds int, base uint64, clock func() time.Duration, progress func(done, all int)) (*BFIOReport, error) {
	s, err := FindBFIOScenario(name)
	if err != nil {
		return nil, err
	}
	report := &BFIOReport{Scenario: s.Name, Title: s.Title, columns: s.columns}
	if s.open {
		report.Capacity = barrier.Capacity()
	}
	var cases [][]barrier.Case // by seed
	for seed := range seeds {
		cases = append(cases, s.cases(base+uint64(seed)+1, report.Capacity))
	}
	all := 0
	for _, c := range cases[0] {
		all += len(c.Rows) * seeds
	}
	for at := range cases[0] {
		if err := s.runCase(ctx, report, cases, at, base, clock, func() { progress(len(report.Rows), all) }); err != nil {
			return nil, err
		}
	}
	return report, nil
}

// runCase adds the rows of one case, each with all seeds, from seedBase+1. The first row is FCFS, the baseline of the
// ratios.
func (s *BFIOScenario) runCase(ctx context.Context, report *BFIOReport, cases [][]barrier.Case, at int, seedBase uint64, clock func() time.Duration, added func()) error {
	fcfs := len(report.Rows)
	for i := range cases[0][at].Rows {
		for seed := range cases {
			if err := ctx.Err(); err != nil {
				return err
			}
			c := &cases[seed][at]
			row := s.runSeed(c, &c.Rows[i], seedBase+uint64(seed)+1, clock)
			if s.ratio {
				base := row.Imbalance
				if i > 0 {
					base = report.Rows[fcfs+seed].Imbalance
				}
				ratio := base / row.Imbalance
				row.Ratio = &ratio
			}
			report.Rows = append(report.Rows, row)
			added()
		}
	}
	return nil
}

// runSeed replays one row and times its decisions.
func (s *BFIOScenario) runSeed(c *barrier.Case, r *barrier.PolicyRow, seed uint64, clock func() time.Duration) BFIORow {
	var took []float64
	r.Run(c.Scenario, func(decide barrier.Policy) barrier.Policy {
		return func(in bfio.Instance) []int {
			began := clock()
			assigned := decide(in)
			took = append(took, float64(clock()-began)/float64(time.Microsecond))
			return assigned
		}
	})
	row := bfioRow(r, seed, took)
	s.label(&row, c)
	if s.open {
		for i := range r.Waits {
			r.Waits[i] *= 1e3
		}
		row.Wait = cmp.Or(sim.PercentilesOf(r.Waits), &sim.Percentiles{})
	}
	r.Waits = nil
	return row
}

func bfioRow(r *barrier.PolicyRow, seed uint64, took []float64) BFIORow {
	f := &r.Figures
	row := BFIORow{
		Policy: r.Policy, H: r.H, WaitBound: r.WaitBound, Seed: seed, Imbalance: f.Imbalance, Idle: f.BarrierIdle,
		Throughput: f.Throughput, TPOT: 1e3 * f.TPOT, Energy: f.Linear / 1e3, Sublinear: f.Sublinear / 1e3, MaxWait: f.MaxWait,
		Decision: *cmp.Or(sim.PercentilesOf(took), &sim.Percentiles{}),
	}
	if p := r.Paper; p != nil {
		row.Paper = &BFIOPaper{Imbalance: p.Imbalance, Throughput: p.Throughput, TPOT: 1e3 * p.TPOT, Energy: p.Linear / 1e3}
	}
	return row
}

// theory returns the growth rate of the gain over FCFS by theorem 2 of the paper: the square root of
// slots times the logarithm of the workers.
func (r *BFIORow) theory() float64 { return math.Sqrt(float64(r.Slots) * math.Log(float64(r.Workers))) }
