package eval

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"skyserve/internal/printable"
	"skyserve/internal/sim"
	"skyserve/lbd/core"
)

// WriteTable prints the report: whether the replay is identical, the first difference if not, and the
// figures of the runs.
func (r *ReplayReport) WriteTable(out io.Writer) error {
	fmt.Fprintf(out, "%s: %s\npolicy %s, push %s, %.1f s recorded\n", r.Scenario, r.Title, r.Constants.Config.Policy, r.Constants.Config.Push, r.Replay.Seconds)
	if d := r.Replay.Difference; d != nil {
		d.writeDifference(out)
	} else {
		fmt.Fprintf(out, "%s replayed: all actions identical\n", printable.Count(r.Replay.Steps, "step"))
	}
	if n := r.Replay.Reconfigured; n > 0 {
		fmt.Fprintf(out, "the configuration changed %s; the first is shown\n", printable.Count(n, "time"))
	}
	w := printable.NewTable(out)
	w.Rowf("RUN\tSEED\tPOLICY\tPUSH\tTOK/S\tTTFT P50\tTTFT P90\tTPOT P50\tE2E P90\tHIT\tFORWARDED\tMAX WAIT\tMAX/MIN\tDONE\tREJECTED")
	for i := range r.Rows {
		r.Rows[i].writeRow(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if r.Simulated != nil {
		fmt.Fprintf(out, "simulated with %s; assumed:\n", r.Simulated.Profile)
	}
	for _, a := range r.Assumed {
		fmt.Fprintf(out, "- %s\n", a)
	}
	return nil
}

func (r *ReplayRow) writeRow(t *printable.Table) {
	p50 := func(p *sim.Percentiles) float64 { return p.P50 }
	p90 := func(p *sim.Percentiles) float64 { return p.P90 }
	seed := "-"
	if r.Seed != nil {
		seed = fmt.Sprint(*r.Seed)
	}
	t.Rowf("%s\t%s\t%s\t%s\t%.0f\t%s\t%s\t%s\t%s\t%s\t%.0f\t%.2f s\t%s\t%.0f\t%.0f", r.Source, seed, r.Policy, r.Push, r.OutputTokensPerSecond,
		percentileIn(r.TTFT, p50, 1000, "%.2f s"), percentileIn(r.TTFT, p90, 1000, "%.2f s"), percentileIn(r.TPOT, p50, 1, "%.0f ms"),
		percentileIn(r.E2E, p90, 1000, "%.1f s"), known(r.PrefixHitRate, 100, "%.1f%%"), r.Forwarded, r.MaxWaitMillis/1000,
		known(r.OutstandingMaxOverMin, 1, "%.2f"), r.Completed, r.Rejected)
}

// percentileIn formats one value of a set in units of unit milliseconds, or a dash without a set.
func percentileIn(p *sim.Percentiles, get func(*sim.Percentiles) float64, unit float64, format string) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprintf(format, get(p)/unit)
}

// String describes the difference in one line.
func (d *ReplayDifference) String() string {
	var e core.Event
	_ = json.Unmarshal(d.Event, &e) // cannot fail: the event was marshalled above
	recorded, repeated := formatActions(d.Recorded), formatActions(d.Replayed)
	if recorded == repeated {
		repeated = "the same with different values"
	}
	event := "event " + string(e.Kind)
	if e.Kind == "" {
		event = "new configuration"
	}
	return fmt.Sprintf("line %d, %s at %.3f s: recorded %s, replayed %s", d.Line, event, d.T.Seconds(), recorded, repeated)
}

// writeDifference prints the difference in full.
func (d *ReplayDifference) writeDifference(out io.Writer) {
	fmt.Fprintf(out, "first difference: %s\nevent     %s\nrecorded  %s\nreplayed  %s\nbefore it:\n", d, d.Event, d.Recorded, d.Replayed)
}

// formatActions formats a list of actions.
func formatActions(actions json.RawMessage) string {
	var list []core.Action
	if json.Unmarshal(actions, &list) != nil {
		return "an invalid list of actions"
	}
	if len(list) == 0 {
		return "no action"
	}
	words := make([]string, 0, len(list))
	for _, a := range list {
		text := fmt.Sprintf("%s %s", a.Kind, a.ID)
		if a.Target != "" {
			text += " to " + a.Target
		}
		if a.Reason != "" {
			text += " (" + a.Reason + ")"
		}
		words = append(words, text)
	}
	return strings.Join(words, ", ")
}
