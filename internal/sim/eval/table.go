package eval

import (
	"fmt"
	"io"

	"skyserve/internal/printable"
	"skyserve/internal/sim"
)

// tableHeader names the columns of Summary.cells.
var tableHeader = []string{
	" ", "POLICY", "PUSH", "LAYOUT", "TOK/S", "TTFT P50", "TTFT P90", "TPOT P50", "E2E P90", "HIT", "FORWARDED", "MAX WAIT", "MAX/MIN", "DONE",
	"REJECTED", "REFERENCE",
}

// WriteTable prints the report: one row per policy and push mode with the mean over the seeds, its
// spread, and the reference. The row with the most output tokens per second has a star. If the plan
// requests the paper's values, the reference shows its deviation, and the paper's claims follow.
func (r *SimReport) WriteTable(out io.Writer) error {
	if _, err := fmt.Fprintf(out, "%s: %s\n%s\n", r.Scenario, r.Title, r.basis()); err != nil {
		return err
	}
	w := printable.NewTable(out)
	w.Row(tableHeader...)
	for i := range r.Summary {
		w.Row(r.Summary[i].cells(r.paper)...)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return r.writeClaims(out)
}

// basis describes the parameters of the runs in one line.
func (r *SimReport) basis() string {
	c := &r.Constants
	profiles := c.Profile
	for i := range c.Others {
		profiles += " and " + c.Others[i].Profile
	}
	if c.Engine == sim.LightEngine {
		profiles += " (light engine: lengths only, no cache)"
	}
	return fmt.Sprintf("%s, %s, %g s simulated, %g %% of it warm-up", profiles, r.seeds(), c.Duration, 100*c.Warmup)
}

// seeds describes the seeds of the rows.
func (r *SimReport) seeds() string { return seedRange(r.Rows[0].Seed, len(r.Rows)/len(r.Summary)) }

// seedRange describes n consecutive seeds.
func seedRange(first uint64, n int) string {
	if n > 1 {
		return fmt.Sprintf("seeds %d to %d", first, first+uint64(n)-1)
	}
	return fmt.Sprintf("seed %d", first)
}

// cells formats a summary as a table row.
func (s *Summary) cells(paper bool) []string {
	m, sp := &s.Mean, s.Spread
	if sp == nil {
		sp = &sim.RunFigures{}
	}
	star := " "
	if s.Best {
		star = "*"
	}
	p90 := func(p *sim.Percentiles) float64 { return p.P90 }
	p50 := func(p *sim.Percentiles) float64 { return p.P50 }
	return []string{
		star, s.Policy, s.Push, string(s.Layout),
		spread(s, m.OutputTokensPerSecond, sp.OutputTokensPerSecond, 1, "%.0f"),
		timeOf(s, m.TTFT, sp.TTFT, p50, 1000, "%.2f", " s"), timeOf(s, m.TTFT, sp.TTFT, p90, 1000, "%.2f", " s"),
		timeOf(s, m.TPOT, sp.TPOT, p50, 1, "%.0f", " ms"), timeOf(s, m.E2E, sp.E2E, p90, 1000, "%.1f", " s"),
		known(m.PrefixHitRate, 100, "%.1f%%"), fmt.Sprintf("%.0f", m.Forwarded), fmt.Sprintf("%.2f s", m.MaxWaitMillis/1000),
		known(m.OutstandingMaxOverMin, 1, "%.2f"), fmt.Sprintf("%.0f", m.Completed), fmt.Sprintf("%.0f", m.Rejected), s.reference(paper),
	}
}

// reference formats the reference, with the deviation from it if deltas is set.
func (s *Summary) reference(deltas bool) string {
	ref := s.Reference
	if ref == nil {
		return "-"
	}
	text := fmt.Sprintf("%.0f (%.2f s)", ref.OutputTokensPerSecond, ref.TTFTP90Millis/1000)
	if deltas {
		text += ": " + percent(s.Mean.OutputTokensPerSecond/ref.OutputTokensPerSecond-1)
		if t := s.Mean.TTFT; t != nil {
			text += " (" + percent(t.P90/ref.TTFTP90Millis-1) + ")"
		}
	}
	return text
}

// spread formats a mean with its spread, if there is one.
func spread(s *Summary, mean, deviation, unit float64, format string) string {
	text := fmt.Sprintf(format, mean/unit)
	if s.Spread != nil {
		text += " ±" + fmt.Sprintf(format, deviation/unit)
	}
	return text
}

// timeOf formats one value of a percentile set with its unit, or a dash if it is unknown.
func timeOf(s *Summary, mean, deviation *sim.Percentiles, get func(*sim.Percentiles) float64, millis float64, format, unit string) string {
	if mean == nil {
		return "-"
	}
	if deviation == nil {
		deviation = &sim.Percentiles{}
	}
	return spread(s, get(mean), get(deviation), millis, format) + unit
}

func known(v *float64, factor float64, format string) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, factor**v)
}
