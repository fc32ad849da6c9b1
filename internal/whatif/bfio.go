package whatif

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"skyserve/lbd/bfio"
	"skyserve/lbd/sim"
)

// BFIOName is the scenario that replays Table 1 of the BF-IO paper.
const BFIOName = "bfio-table1"

// BFIOReport compares ways to assign a waiting pool to ranks that wait for the
// slowest of them.
type BFIOReport struct {
	Scenario   string    `json:"scenario"`
	Title      string    `json:"title"`
	Rows       []BFIORow `json:"rows"`
	WallMillis float64   `json:"wall_ms"`
}

// BFIORow is one policy at one seed.
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
	// Decision is the time that one decision took, in microseconds.
	Decision sim.Percentiles `json:"decision_us"`
	Paper    *BFIOPaper      `json:"paper"`
}

// BFIOPaper is what the paper prints for a row.
type BFIOPaper struct {
	Imbalance  float64 `json:"imbalance"`
	Throughput float64 `json:"throughput_tokens_per_second"`
	TPOT       float64 `json:"tpot_ms"`
	Energy     float64 `json:"energy_kj"`
}

// RunBFIO replays Table 1 for seeds 1 to n, one row after the other: a decision
// is timed, and two at once would disturb each other. It ends early with ctx.
func RunBFIO(ctx context.Context, seeds int, clock func() time.Duration) (*BFIOReport, error) {
	report := &BFIOReport{Scenario: BFIOName, Title: "BF-IO Table 1: 16 workers of 72 slots that wait for the slowest, overloaded"}
	for _, row := range bfio.Rows() {
		for seed := uint64(1); seed <= uint64(seeds); seed++ {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			var took []float64
			row.Replay(bfio.Table1(seed), func(decide bfio.Policy) bfio.Policy {
				return func(in bfio.Instance) []int {
					began := clock()
					assigned := decide(in)
					took = append(took, float64(clock()-began)/float64(time.Microsecond))
					return assigned
				}
			})
			report.Rows = append(report.Rows, bfioRow(&row, seed, took))
		}
	}
	return report, nil
}

func bfioRow(r *bfio.Row, seed uint64, took []float64) BFIORow {
	f := &r.Figures
	row := BFIORow{
		Policy: r.Policy, H: r.H, WaitBound: r.WaitBound, Seed: seed, Imbalance: f.Imbalance, Idle: f.BarrierIdle,
		Throughput: f.Throughput, TPOT: 1e3 * f.TPOT, Energy: f.Linear / 1e3, Sublinear: f.Sublinear / 1e3, MaxWait: f.MaxWait,
		Decision: percentilesOf(took),
	}
	if p := r.Paper; p != nil {
		row.Paper = &BFIOPaper{Imbalance: p.Imbalance, Throughput: p.Throughput, TPOT: 1e3 * p.TPOT, Energy: p.Linear / 1e3}
	}
	return row
}

// percentilesOf is the percentile set of values, by the nearest rank.
func percentilesOf(values []float64) sim.Percentiles {
	if len(values) == 0 {
		return sim.Percentiles{}
	}
	sorted := slices.Sorted(slices.Values(values))
	at := func(p int) float64 { return sorted[min(len(sorted)-1, len(sorted)*p/100)] }
	return sim.Percentiles{
		Mean: mean(values), P10: at(10), P25: at(25), P50: at(50), P75: at(75), P90: at(90), P95: at(95), P99: at(99),
		Max: sorted[len(sorted)-1],
	}
}

// WriteTable prints the mean over the seeds in the units of the paper's table,
// with the paper's figure in brackets.
func (r *BFIOReport) WriteTable(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s: %s\n", r.Scenario, r.Title); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "POLICY\tH\tWAIT BOUND\tIMBALANCE 1e4 TOK\tTHROUGHPUT 1e4 TOK/S\tTPOT 1e-2 S\tENERGY KJ\tBARRIER IDLE\tMAX WAIT\tDECISION P50")
	for from := 0; from < len(r.Rows); {
		to := from + 1
		for to < len(r.Rows) && r.Rows[to].Seed > r.Rows[to-1].Seed {
			to++
		}
		writeBFIORow(t, r.Rows[from:to])
		from = to
	}
	return t.Flush()
}

// writeBFIORow prints one policy's rows, one a seed, as one.
func writeBFIORow(w io.Writer, rows []BFIORow) {
	over := func(get func(*BFIORow) float64) float64 {
		values := make([]float64, 0, len(rows))
		for i := range rows {
			values = append(values, get(&rows[i]))
		}
		return mean(values)
	}
	first := &rows[0]
	beside := func(digits int, got float64, paper func(*BFIOPaper) float64) string {
		if first.Paper == nil {
			return fmt.Sprintf("%.*f", digits, got)
		}
		return fmt.Sprintf("%.*f (%.*f)", digits, got, digits, paper(first.Paper))
	}
	bound := "-"
	if first.WaitBound > 0 {
		bound = fmt.Sprint(first.WaitBound)
	}
	fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%.1f%%\t%.0f\t%.0f us\n", first.Policy, first.H, bound,
		beside(2, over(func(r *BFIORow) float64 { return r.Imbalance / 1e4 }), func(p *BFIOPaper) float64 { return p.Imbalance / 1e4 }),
		beside(2, over(func(r *BFIORow) float64 { return r.Throughput / 1e4 }), func(p *BFIOPaper) float64 { return p.Throughput / 1e4 }),
		beside(2, over(func(r *BFIORow) float64 { return r.TPOT / 10 }), func(p *BFIOPaper) float64 { return p.TPOT / 10 }),
		beside(0, over(func(r *BFIORow) float64 { return r.Energy }), func(p *BFIOPaper) float64 { return p.Energy }),
		100*over(func(r *BFIORow) float64 { return r.Idle }),
		over(func(r *BFIORow) float64 { return float64(r.MaxWait) }),
		over(func(r *BFIORow) float64 { return r.Decision.P50 }))
}
