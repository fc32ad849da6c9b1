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

// WriteTable writes the report for people: whether the record repeats, the first
// difference if it does not, and what the recorded run measured.
func (r *ReplayReport) WriteTable(out io.Writer) error {
	fmt.Fprintf(out, "%s: %s\npolicy %s, push %s, %.1f s recorded\n", r.Scenario, r.Title, r.Constants.Config.Policy, r.Constants.Config.Push, r.Replay.Seconds)
	if d := r.Replay.Difference; d != nil {
		d.write(out)
	} else {
		fmt.Fprintf(out, "%d steps repeated: every action is the same\n", r.Replay.Steps)
	}
	if n := r.Replay.Reconfigured; n > 0 {
		fmt.Fprintf(out, "the configuration changed %d times on the way; shown is the first\n", n)
	}
	w := printable.NewTable(out)
	w.Rowf("RUN\tSEED\tPOLICY\tPUSH\tTOK/S\tTTFT P50\tTTFT P90\tTPOT P50\tE2E P90\tHIT\tFORWARDED\tMAX WAIT\tMAX/MIN\tDONE\tREJECTED")
	for i := range r.Rows {
		r.Rows[i].write(w)
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

func (r *ReplayRow) write(t *printable.Table) {
	p50 := func(p *sim.Percentiles) float64 { return p.P50 }
	p90 := func(p *sim.Percentiles) float64 { return p.P90 }
	seed := "-"
	if r.Seed != nil {
		seed = fmt.Sprint(*r.Seed)
	}
	t.Rowf("%s\t%s\t%s\t%s\t%.0f\t%s\t%s\t%s\t%s\t%s\t%.0f\t%.2f s\t%s\t%.0f\t%.0f", r.Of, seed, r.Policy, r.Push, r.OutputTokensPerSecond,
		percentileIn(r.TTFT, p50, 1000, "%.2f s"), percentileIn(r.TTFT, p90, 1000, "%.2f s"), percentileIn(r.TPOT, p50, 1, "%.0f ms"),
		percentileIn(r.E2E, p90, 1000, "%.1f s"), known(r.PrefixHitRate, 100, "%.1f%%"), r.Forwarded, r.MaxWaitMillis/1000,
		known(r.OutstandingMaxOverMin, 1, "%.2f"), r.Completed, r.Rejected)
}

// percentileIn writes one figure of a set in units of so many milliseconds, a
// dash where there is none.
func percentileIn(p *sim.Percentiles, get func(*sim.Percentiles) float64, unit float64, format string) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprintf(format, get(p)/unit)
}

// String says in one line where a record differs.
func (d *Difference) String() string {
	var e core.Event
	_ = json.Unmarshal(d.Event, &e) // an event that was just written
	recorded, repeated := inWords(d.Recorded), inWords(d.Repeated)
	if recorded == repeated {
		repeated = "the same, from other figures"
	}
	event := "event " + string(e.Kind)
	if e.Kind == "" {
		event = "new configuration"
	}
	return fmt.Sprintf("line %d, %s at %.3f s: recorded %s, repeated %s", d.Line, event, d.T.Seconds(), recorded, repeated)
}

// write shows a difference in full.
func (d *Difference) write(out io.Writer) {
	fmt.Fprintf(out, "the first difference: %s\nevent     %s\nrecorded  %s\nrepeated  %s\nbefore it:\n", d, d.Event, d.Recorded, d.Repeated)
}

// inWords is a list of actions in words.
func inWords(actions json.RawMessage) string {
	var list []core.Action
	if json.Unmarshal(actions, &list) != nil {
		return "what is no list of actions"
	}
	if len(list) == 0 {
		return "nothing"
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
