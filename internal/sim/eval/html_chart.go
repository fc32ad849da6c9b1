package eval

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"skyserve/internal/sim"
	"skyserve/plan/chart"
)

// policyChart is one chart: a row per policy, values along x.
type policyChart struct {
	Title  string
	Legend []string
	Wide   bool // spans the page's full width
	chart.BarChart
}

// boxes draws the percentiles of a time in seconds, with the references and claims for its figure, if
// it has one.
func (l *lineup) boxes(title string, figure sim.Figure, get func(*sim.RunFigures) *sim.Percentiles) *policyChart {
	annotations := l.annotations(figure)
	low, high := math.Inf(1), 0.0
	for i := range l.entries {
		if p := get(&l.entries[i].Mean); p != nil {
			low, high = min(low, p.P10/1000), max(high, p.P90/1000)
		}
		for _, s := range annotations[i] {
			low, high = min(low, s.From/1000), max(high, s.To/1000)
		}
	}
	c := &policyChart{Title: title, Legend: []string{"whiskers P10 and P90, box P25 to P75, line P50: " + l.describeAveraging()}}
	c.X = chart.FitScale(low, high)
	for i := range l.entries {
		row := l.entries[i].row(annotations[i], 1000)
		if p := get(&l.entries[i].Mean); p != nil {
			row.Box = &chart.Box{From: p.P25 / 1000, To: p.P75 / 1000, Low: p.P10 / 1000, High: p.P90 / 1000, Middle: p.P50 / 1000}
			row.Value = seconds(p.P50 / 1000)
			row.Tip = fmt.Sprintf("%s: P10 %s, P25 %s, P50 %s, P75 %s, P90 %s", l.entries[i].name(),
				seconds(p.P10/1000), seconds(p.P25/1000), seconds(p.P50/1000), seconds(p.P75/1000), seconds(p.P90/1000))
		}
		c.BarChart.Rows = append(c.BarChart.Rows, row)
	}
	c.addLegend(" of the P90")
	return c
}

// bars draws the output tokens per second with their deviation, references and claims.
func (l *lineup) bars() *policyChart {
	annotations := l.annotations("output_tokens_per_second")
	high := 1.0
	for i := range l.entries {
		high = max(high, l.entries[i].throughput()+l.entries[i].deviation())
		for _, s := range annotations[i] {
			high = max(high, s.To)
		}
	}
	c := &policyChart{Title: "Output tokens per second", Wide: true, Legend: []string{l.describeAveraging()}}
	if len(l.report.Rows) > len(l.report.Summary) {
		c.Legend[0] += ", whiskers the standard deviation"
	}
	c.X = chart.Scale{High: high}
	for i := range l.entries {
		e := &l.entries[i]
		row, v, d := e.row(annotations[i], 1), e.throughput(), e.deviation()
		row.Box = &chart.Box{To: v, Low: max(0, v-d), High: v + d}
		row.Value = fmt.Sprintf("%.0f", v)
		row.Tip = fmt.Sprintf("%s: %.0f ± %.0f tok/s", e.name(), v, d)
		if e.Oracle {
			c.Limit = v
			c.Legend = append(c.Legend, "dashed line: the oracle")
		}
		c.BarChart.Rows = append(c.BarChart.Rows, row)
	}
	c.addLegend("")
	return c
}

// describeAveraging describes what the values of the charts average over.
func (l *lineup) describeAveraging() string {
	if len(l.report.Rows) > len(l.report.Summary) {
		return "means over the seeds"
	}
	return "one seed"
}

// annotations lists, by entry, the references and the paper's claims for a figure, in its unit. A claim about
// a ratio is applied to the measured value of the other policy.
func (l *lineup) annotations(figure sim.Figure) [][]chart.Comparison {
	out := make([][]chart.Comparison, len(l.entries))
	for i := range l.entries {
		if ref := l.entries[i].Reference; ref != nil {
			if v, known := ref.of(figure); known {
				out[i] = append(out[i], chart.Comparison{Reference: true, From: v, To: v, Tip: "reference: " + plain(v)})
			}
		}
	}
	for k := range l.report.Claims {
		c := &l.report.Claims[k]
		i := l.position(l.report.findSummary(&c.Side))
		if c.Figure != figure || i < 0 {
			continue
		}
		if c.Than == nil {
			out[i] = append(out[i], chart.Comparison{From: c.Min, To: c.Max, Tip: "paper: " + c.cells()[1]})
		} else if than := l.report.findSummary(c.Than); than != nil {
			if base := figure.ValueIn(&than.Mean); base != nil {
				text := fmt.Sprintf("paper: %s times that of %s", c.cells()[1], sideName(*c.Than))
				out[i] = append(out[i], chart.Comparison{From: *base * c.Min, To: *base * c.Max, Tip: text})
			}
		}
	}
	return out
}

// of returns the reference value of a figure.
func (r *Reference) of(figure sim.Figure) (float64, bool) {
	switch figure {
	case "output_tokens_per_second":
		return r.OutputTokensPerSecond, true
	case "ttft_p90_ms":
		return r.TTFTP90Millis, true
	}
	return 0, false
}

// position returns the index of a summary's entry; -1 if there is none.
func (l *lineup) position(s *Summary) int {
	for i := range l.entries {
		if l.entries[i].Summary == s {
			return i
		}
	}
	return -1
}

// row returns the row of an entry with its comparison values, divided by unit.
func (e *entry) row(annotations []chart.Comparison, unit float64) chart.BarRow {
	row := chart.BarRow{Class: e.Style(), Name: e.Policy, Note: e.Push, Star: e.Leader, Value: "-", Tip: e.name()}
	for _, s := range annotations {
		s.From, s.To = s.From/unit, s.To/unit
		row.Comparisons = append(row.Comparisons, s)
	}
	return row
}

// addLegend adds marks to the axis, and the comparison values to the legend.
func (c *policyChart) addLegend(what string) {
	c.Ticks = c.X.Ticks(5, plain)
	references, claims := false, false
	for _, row := range c.BarChart.Rows {
		for _, o := range row.Comparisons {
			references, claims = references || o.Reference, claims || !o.Reference
		}
	}
	if references {
		c.Legend = append(c.Legend, "◆ reference"+what+": a simulation that follows the paper closely")
	}
	if claims {
		c.Legend = append(c.Legend, "▾ paper's claim"+what+"; a ratio is applied to the other policy's measured value")
	}
}

// plain formats a number with four digits, without an exponent.
func plain(v float64) string {
	if math.Abs(v) >= 1e4 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	text := strconv.FormatFloat(v, 'g', 4, 64)
	if strings.Contains(text, "e") {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return text
}

// seconds formats a time with three digits, no finer than milliseconds.
func seconds(v float64) string {
	digits := 3
	for bound := 1.0; digits > 0 && v >= bound; bound *= 10 {
		digits--
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " s"
}
