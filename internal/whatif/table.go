package whatif

import (
	"fmt"
	"io"
	"text/tabwriter"

	"skyserve/lbd/sim"
)

// WriteTable writes the report for people: one row a policy and push rule, the
// mean over the seeds with its spread, and beside it the reference. The row
// with the most output tokens a second has a star.
func (r *Report) WriteTable(out io.Writer) error {
	c := &r.Constants
	if _, err := fmt.Fprintf(out, "%s: %s\n%s, %s, %g s simulated, %g %% of them warm-up\n", r.Scenario, r.Title, c.Profile, r.seeds(), c.Duration, 100*c.Warmup); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, " \tPOLICY\tPUSH\tLAYOUT\tTOK/S\tTTFT P50\tTTFT P90\tTPOT P50\tE2E P90\tHIT\tFORWARDED\tMAX WAIT\tMAX/MIN\tDONE\tREJECTED\tREFERENCE")
	for i := range r.Summary {
		writeRow(w, &r.Summary[i])
	}
	return w.Flush()
}

// seeds says how many seeds there were.
func (r *Report) seeds() string {
	if n := len(r.Rows) / len(r.Summary); n > 1 {
		return fmt.Sprintf("seeds 1 to %d", n)
	}
	return "seed 1"
}

func writeRow(w io.Writer, s *Summary) {
	m, sp := &s.Mean, s.Spread
	if sp == nil {
		sp = &sim.Figures{}
	}
	star := " "
	if s.Best {
		star = "*"
	}
	reference := "-"
	if ref := s.Reference; ref != nil {
		reference = fmt.Sprintf("%.0f (%.2f s)", ref.OutputTokensPerSecond, ref.TTFTP90Millis/1000)
	}
	p90 := func(p *sim.Percentiles) float64 { return p.P90 }
	p50 := func(p *sim.Percentiles) float64 { return p.P50 }
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.0f\t%.2f s\t%s\t%.0f\t%.0f\t%s\n", star, s.Policy, s.Push, s.Layout,
		spread(s, m.OutputTokensPerSecond, sp.OutputTokensPerSecond, 1, "%.0f"),
		timeOf(s, m.TTFT, sp.TTFT, p50, 1000, "%.2f")+" s", timeOf(s, m.TTFT, sp.TTFT, p90, 1000, "%.2f")+" s",
		timeOf(s, m.TPOT, sp.TPOT, p50, 1, "%.0f")+" ms", timeOf(s, m.E2E, sp.E2E, p90, 1000, "%.1f")+" s",
		known(m.PrefixHitRate, 100, "%.1f%%"), m.Forwarded, m.MaxWaitMillis/1000, known(m.OutstandingMaxOverMin, 1, "%.2f"),
		m.Completed, m.Rejected, reference)
}

// spread writes a mean with its spread, where there is one.
func spread(s *Summary, mean, deviation, unit float64, format string) string {
	text := fmt.Sprintf(format, mean/unit)
	if s.Spread != nil {
		text += " ±" + fmt.Sprintf(format, deviation/unit)
	}
	return text
}

// timeOf writes one figure of a percentile set, a dash where it is unknown.
func timeOf(s *Summary, mean, deviation *sim.Percentiles, get func(*sim.Percentiles) float64, unit float64, format string) string {
	if mean == nil {
		return "-"
	}
	if deviation == nil {
		deviation = &sim.Percentiles{}
	}
	return spread(s, get(mean), get(deviation), unit, format)
}

func known(v *float64, factor float64, format string) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, factor**v)
}
