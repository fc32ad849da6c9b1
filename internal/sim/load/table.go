package load

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/telemetry"
)

// WriteTable prints the report.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	r.summary(&b)
	if r.OK > 0 || r.TTFT != nil { // else all rates and latencies are zeros and dashes
		r.latencies(&b)
		r.regions(&b)
	}
	r.remarks(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) summary(b *strings.Builder) {
	t := printable.NewTable(b)
	t.Rowf("requests\t%d ok, %d rejected, %d failed, %d cancelled", r.OK, r.Rejected, r.Failed, r.Cancelled)
	if r.OK == 0 && r.TTFT == nil {
		_ = t.Flush() // a strings.Builder returns no errors
		return
	}
	later := ""
	if n := r.OK - int(math.Round(r.RequestsPerSecond*r.DurationSeconds)); n > 0 {
		later = fmt.Sprintf("; not counted in the rates: %s that ended later", printable.Count(n, "ok request"))
	}
	t.Rowf("rates\t%.1f requests/s, %.0f output tokens/s over %.1f s%s", r.RequestsPerSecond, r.OutputTokensPerSecond, r.DurationSeconds, later)
	t.Rowf("tokens\t%d prompt, %d output; prefix hits %s", r.PromptTokens, r.OutputTokens, share(r.PrefixHitRate))
	t.Rowf("forwarded\t%s", forwardedCount(&r.ClientFigures))
	_ = t.Flush() // a strings.Builder returns no errors
}

func (r *Report) latencies(b *strings.Builder) {
	t := printable.NewTable(b)
	t.Rowf("\nms\tmean\tp50\tp90\tp99\tmax")
	for _, row := range []struct {
		name string
		set  *telemetry.Percentiles
	}{{"TTFT", r.TTFT}, {"TPOT", r.TPOT}, {"ITL", r.ITL}, {"E2E", r.E2E}} {
		t.Row(slices.Concat([]string{row.name}, columns(row.set))...)
	}
	_ = t.Flush() // a strings.Builder returns no errors
	b.WriteString("TTFT: to the first token; TPOT: per output token after it; ITL: between two tokens; E2E: to the end of the response\n")
	if r.ITL != nil && r.ITL.P50 < minFigure {
		fmt.Fprintf(b, "ITL p50 is below %g ms: most tokens arrived together with the token before them; TPOT is the mean time of a token\n", minFigure)
	}
}

// columns returns the values of a percentile set for the table.
func columns(p *telemetry.Percentiles) []string {
	if p == nil {
		return []string{"-", "-", "-", "-", "-"}
	}
	var out []string
	for _, x := range []float64{p.Mean, p.P50, p.P90, p.P99, p.Max} {
		out = append(out, figure(x))
	}
	return out
}

// minFigure is the smallest time that the table shows, in milliseconds. Tokens that arrive in one read are microseconds
// apart, which is the time to parse them.
const minFigure = 0.01

// figure formats milliseconds with up to three significant digits.
func figure(ms float64) string {
	switch {
	case ms < minFigure:
		return fmt.Sprintf("<%g", minFigure)
	case ms < 10:
		return fmt.Sprintf("%.2f", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}

func (r *Report) regions(b *strings.Builder) {
	t := printable.NewTable(b)
	t.Rowf("\nregion\tok\trejected\tfailed\tcancelled\treq/s\ttok/s\tTTFT p50\tTTFT p90\tTPOT p50\thits\tforwarded")
	for _, name := range slices.Sorted(maps.Keys(r.ByRegion)) {
		f := r.ByRegion[name]
		ttft, tpot := columns(f.TTFT), columns(f.TPOT)
		t.Rowf("%s\t%d\t%d\t%d\t%d\t%.1f\t%.0f\t%s\t%s\t%s\t%s\t%s", name, f.OK, f.Rejected, f.Failed, f.Cancelled,
			f.RequestsPerSecond, f.OutputTokensPerSecond, ttft[1], ttft[2], tpot[1], share(f.PrefixHitRate), forwardedCount(&f))
	}
	_ = t.Flush() // a strings.Builder returns no errors
}

// forwardedCount returns the number of forwarded requests for the table.
func forwardedCount(f *ClientFigures) string {
	if f.Forwarded == nil {
		return "-"
	}
	return strconv.Itoa(*f.Forwarded)
}

// reasonTexts are the reasons of failed requests, to follow a number of requests.
var reasonTexts = map[string]string{
	reasonConnect: "without a response", reasonTimeout: "timed out", reasonStatus: "with an unexpected HTTP status",
	reasonBroken: "with a broken stream", reasonError: "with an error in the stream",
}

// remarks prints optional lines.
func (r *Report) remarks(b *strings.Builder) {
	lines := []string{}
	if r.Failed > 0 {
		var reasons []string
		for _, reason := range slices.Sorted(maps.Keys(r.Failures)) {
			what := "requests"
			if r.Failures[reason] == 1 {
				what = "request"
			}
			reasons = append(reasons, fmt.Sprintf("%d %s %s", r.Failures[reason], what, cmp.Or(reasonTexts[reason], reason)))
		}
		lines = append(lines, "failures: "+strings.Join(reasons, ", "))
	}
	if r.FirstError != "" {
		lines = append(lines, "first error: "+printable.Line(r.FirstError))
	}
	if r.RowsSkipped != nil && *r.RowsSkipped > 0 {
		lines = append(lines, fmt.Sprintf("omitted: %d rows whose prompt exceeds the limit", *r.RowsSkipped))
	}
	if r.Delayed != nil && *r.Delayed > 0 {
		lines = append(lines, fmt.Sprintf("delayed: %d rows waited for an in-flight slot", *r.Delayed))
	}
	if r.Interrupted {
		lines = append(lines, "interrupted: the load ended early")
	}
	if len(lines) > 0 {
		fmt.Fprintf(b, "\n%s\n", strings.Join(lines, "\n"))
	}
}

// share formats a fraction as a percentage, or a dash if it is unknown.
func share(x *float64) string {
	if x == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100**x)
}

// Line formats the progress in one line.
func (p ProgressReport) Line() string {
	return fmt.Sprintf("%s  in flight %d  ok %d  failed %d  %.0f tok/s",
		p.Elapsed.Truncate(time.Second), p.InFlight, p.OK, p.Failed, p.TokensPerSecond)
}
