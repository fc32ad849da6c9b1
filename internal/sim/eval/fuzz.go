package eval

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"

	"skyserve/internal/printable"
	"skyserve/internal/sim"
	"skyserve/lbd/policy"
)

// PolicyFuzz configures a search for scenarios in which a policy is behind others.
type PolicyFuzz struct {
	// Policy is judged against Others, each with its canonical push mode and layout; no Others = all
	// other policies.
	Policy string
	Others []string
	// Draws is the number of scenarios (sim.Mixture), with the seeds SeedBase+1 and up.
	Draws    int
	SeedBase uint64
	// Seeds is the number of runs of each policy on a draw, with the seeds of the draw and up; ratios are
	// those of the means. 0 = 1. The best of several policies is partly the luckiest one: one run of a few
	// dozen requests makes any policy look some percent behind.
	Seeds int
	// Workers is the number of concurrent draws; 0 = the number of processors.
	Workers int
	// Progress, if set, receives the number of finished draws. Calls never overlap.
	Progress func(done int)
}

// Check returns an error if the search cannot run; it runs nothing.
func (f *PolicyFuzz) Check() error {
	for _, name := range f.policies() {
		if _, err := policy.New(name); err != nil {
			return err
		}
	}
	if slices.Contains(f.Others, f.Policy) {
		return fmt.Errorf("policy %s: cannot be compared with itself", f.Policy)
	}
	if f.Draws < 1 {
		return fmt.Errorf("--scenarios: must be at least 1, got %d", f.Draws)
	}
	if f.Seeds < 0 {
		return fmt.Errorf("seeds: must be at least 1, got %d", f.Seeds)
	}
	return nil
}

// policies returns the judged policy and the others.
func (f *PolicyFuzz) policies() []string {
	all := []string{f.Policy}
	if len(f.Others) > 0 {
		return append(all, f.Others...)
	}
	for _, name := range policy.Names() {
		if name != f.Policy {
			all = append(all, name)
		}
	}
	return all
}

// FuzzDraw is the result of one drawn scenario.
type FuzzDraw struct {
	Seed  uint64 `json:"seed"`
	Title string `json:"title"`
	// Best is the other policy with the highest throughput.
	Best string `json:"best"`
	// Throughput is the judged policy's throughput relative to Best's, TTFT its P90 TTFT relative to
	// Best's; nil if a policy has completed nothing.
	Throughput *float64 `json:"throughput_ratio"`
	TTFT       *float64 `json:"ttft_p90_ratio"`
	// ThroughputSkyLB and TTFTSkyLB are the same relative to skylb; nil unless it was compared.
	ThroughputSkyLB *float64 `json:"throughput_ratio_skylb"`
	TTFTSkyLB       *float64 `json:"ttft_p90_ratio_skylb"`
	// Rows are the runs, the judged policy's first; Summary are their means by policy.
	Rows    []RunRow  `json:"rows"`
	Summary []Summary `json:"summary"`
	// Replay is the command that repeats the draw.
	Replay string `json:"replay"`
}

// FuzzReport is the result of a search. The same search yields the same report.
type FuzzReport struct {
	Policy string     `json:"policy"`
	Draws  []FuzzDraw `json:"scenarios"`
	// Throughput and the others summarise the ratios of the draws.
	Throughput      FuzzRatios `json:"throughput_ratio"`
	TTFT            FuzzRatios `json:"ttft_p90_ratio"`
	ThroughputSkyLB FuzzRatios `json:"throughput_ratio_skylb"`
	TTFTSkyLB       FuzzRatios `json:"ttft_p90_ratio_skylb"`
	// Behind is the share of draws with a throughput below BehindBest of the best other's, BehindSkyLB
	// below BehindSkyLBLimit of skylb's.
	Behind      float64 `json:"behind_best"`
	BehindSkyLB float64 `json:"behind_skylb"`
}

// The throughput ratios below which a policy counts as behind.
const (
	BehindBest       = 0.97
	BehindSkyLBLimit = 0.99
)

// FuzzRatios summarises a ratio over the draws that have it; zero if none has.
type FuzzRatios struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Worst  float64 `json:"worst"`
}

// RunFuzz draws the scenarios and runs the policies on each. It returns the error of the first failed
// draw, or the end of ctx; the other draws are then cancelled.
func RunFuzz(ctx context.Context, f PolicyFuzz) (*FuzzReport, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	draws, failures := make([]FuzzDraw, f.Draws), make([]error, f.Draws)
	todo := make(chan int, f.Draws)
	for i := range draws {
		todo <- i
	}
	close(todo)
	workers := f.Workers
	if workers < 1 {
		workers = runtime.GOMAXPROCS(0)
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	done := 0
	for range min(workers, f.Draws) {
		running.Go(func() {
			for i := range todo {
				if draws[i], failures[i] = f.draw(ctx, f.SeedBase+uint64(i)+1); failures[i] != nil {
					stop()
				}
				mu.Lock()
				if done++; f.Progress != nil {
					f.Progress(done)
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	if err := firstFailure(failures); err != nil {
		return nil, err
	}
	return newFuzzReport(f.Policy, draws), nil
}

// draw runs the policies on one drawn scenario.
func (f *PolicyFuzz) draw(ctx context.Context, seed uint64) (FuzzDraw, error) {
	s := sim.Mixture(seed)
	report, err := Run(ctx, Comparison{Scenario: s, Policies: f.policies(), Seeds: max(1, f.Seeds), SeedBase: seed - 1, Workers: 1})
	if err != nil {
		return FuzzDraw{}, fmt.Errorf("drawing with seed %d: %w", seed, err)
	}
	d := FuzzDraw{Seed: seed, Title: s.Title, Rows: report.Rows, Summary: report.Summary, Replay: f.replay(seed)}
	d.compare()
	return d, nil
}

// replay returns the command that repeats a draw.
func (f *PolicyFuzz) replay(seed uint64) string {
	against := ""
	if len(f.Others) > 0 {
		against = " --against " + strings.Join(f.Others, ",")
	}
	seeds := ""
	if f.Seeds > 1 {
		seeds = fmt.Sprintf(" --seeds %d", f.Seeds)
	}
	return fmt.Sprintf("skyserve sim fuzz-policy --policy %s%s%s --scenarios 1 --seed-base %d", f.Policy, against, seeds, seed-1)
}

// compare computes the ratios from the means.
func (d *FuzzDraw) compare() {
	judged, best := &d.Summary[0], &d.Summary[1]
	for i := range d.Summary[1:] {
		other := &d.Summary[i+1]
		if other.Mean.OutputTokensPerSecond > best.Mean.OutputTokensPerSecond {
			best = other
		}
		if other.Policy == "skylb" {
			d.ThroughputSkyLB, d.TTFTSkyLB = ratios(&judged.Mean, &other.Mean)
		}
	}
	d.Best = best.Policy
	d.Throughput, d.TTFT = ratios(&judged.Mean, &best.Mean)
}

// ratios returns the throughput and the P90 TTFT relative to another policy's.
func ratios(a, b *sim.RunFigures) (throughput, ttft *float64) {
	divide := func(x, y float64) *float64 {
		if y == 0 {
			return nil
		}
		q := x / y
		return &q
	}
	throughput = divide(a.OutputTokensPerSecond, b.OutputTokensPerSecond)
	if a.TTFT != nil && b.TTFT != nil {
		ttft = divide(a.TTFT.P90, b.TTFT.P90)
	}
	return throughput, ttft
}

func newFuzzReport(judged string, draws []FuzzDraw) *FuzzReport {
	r := &FuzzReport{Policy: judged, Draws: draws}
	collect := func(get func(*FuzzDraw) *float64) (all []float64) {
		for i := range draws {
			if v := get(&draws[i]); v != nil {
				all = append(all, *v)
			}
		}
		slices.Sort(all)
		return all
	}
	best := collect(func(d *FuzzDraw) *float64 { return d.Throughput })
	skylb := collect(func(d *FuzzDraw) *float64 { return d.ThroughputSkyLB })
	r.Throughput, r.ThroughputSkyLB = summariseRatios(best, false), summariseRatios(skylb, false)
	r.TTFT = summariseRatios(collect(func(d *FuzzDraw) *float64 { return d.TTFT }), true)
	r.TTFTSkyLB = summariseRatios(collect(func(d *FuzzDraw) *float64 { return d.TTFTSkyLB }), true)
	r.Behind, r.BehindSkyLB = shareBelow(best, BehindBest), shareBelow(skylb, BehindSkyLBLimit)
	return r
}

// summariseRatios summarises sorted ratios; high ratios are worse if highIsWorse.
func summariseRatios(sorted []float64, highIsWorse bool) FuzzRatios {
	n := len(sorted)
	if n == 0 {
		return FuzzRatios{}
	}
	worst := sorted[0]
	if highIsWorse {
		worst = sorted[n-1]
	}
	return FuzzRatios{N: n, Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Worst: worst}
}

// shareBelow returns the share of sorted values below a limit.
func shareBelow(sorted []float64, limit float64) float64 {
	below, _ := slices.BinarySearch(sorted, limit)
	return float64(below) / float64(max(1, len(sorted)))
}

// Worst returns the n draws with the lowest throughput ratios, the lowest first.
func (r *FuzzReport) Worst(n int) []FuzzDraw {
	at := func(d FuzzDraw) float64 {
		if d.Throughput == nil {
			return math.Inf(1)
		}
		return *d.Throughput
	}
	sorted := slices.Clone(r.Draws)
	slices.SortStableFunc(sorted, func(a, b FuzzDraw) int { return cmp.Compare(at(a), at(b)) })
	return sorted[:min(n, len(sorted))]
}

// WriteTable prints the summary, and the worst draws with the commands that repeat them. A single draw
// has the results of all policies.
func (r *FuzzReport) WriteTable(w io.Writer, worst int) error {
	if _, err := fmt.Fprintf(w, "%s on %d drawn scenarios, relative to the other policy with the highest throughput and to skylb\n", r.Policy, len(r.Draws)); err != nil {
		return err
	}
	t := printable.NewTable(w)
	t.Row("RATIO", "DRAWS", "MEDIAN", "WORST", "BEHIND")
	row := func(name string, q FuzzRatios, behind string) {
		if q.N > 0 {
			t.Row(name, fmt.Sprint(q.N), fmt.Sprintf("%.3f", q.Median), fmt.Sprintf("%.3f", q.Worst), behind)
		}
	}
	row("throughput / best other", r.Throughput, fmt.Sprintf("%.1f %% below %.2f", 100*r.Behind, BehindBest))
	row("TTFT P90 / best other", r.TTFT, "")
	row("throughput / skylb", r.ThroughputSkyLB, fmt.Sprintf("%.1f %% below %.2f", 100*r.BehindSkyLB, BehindSkyLBLimit))
	row("TTFT P90 / skylb", r.TTFTSkyLB, "")
	if err := t.Flush(); err != nil {
		return err
	}
	if len(r.Draws) == 1 {
		return r.Draws[0].write(w)
	}
	for _, d := range r.Worst(worst) {
		if _, err := fmt.Fprintf(w, "\n%s  %s: %s\n  %s\n", formatRatio(d.Throughput), d.Best, d.Title, d.Replay); err != nil {
			return err
		}
	}
	return nil
}

// write prints the policies of a draw.
func (d *FuzzDraw) write(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "\n%s\n", d.Title); err != nil {
		return err
	}
	t := printable.NewTable(w)
	t.Row("POLICY", "PUSH", "LAYOUT", "TOK/S", "TTFT P50", "TTFT P90", "HIT", "DONE", "REJECTED")
	for i := range d.Summary {
		s := &d.Summary[i]
		r := &s.Mean
		p50, p90, hit := "-", "-", "-"
		if r.TTFT != nil {
			p50, p90 = fmt.Sprintf("%.2f s", r.TTFT.P50/1000), fmt.Sprintf("%.2f s", r.TTFT.P90/1000)
		}
		if r.PrefixHitRate != nil {
			hit = fmt.Sprintf("%.1f%%", 100**r.PrefixHitRate)
		}
		t.Row(s.Policy, s.Push, string(s.Layout), fmt.Sprintf("%.0f", r.OutputTokensPerSecond), p50, p90, hit, fmt.Sprintf("%.0f", r.Completed), fmt.Sprintf("%.0f", r.Rejected))
	}
	return t.Flush()
}

// formatRatio formats a ratio.
func formatRatio(ratio *float64) string {
	if ratio == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f", *ratio)
}
