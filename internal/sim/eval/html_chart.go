package eval

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"skyserve/internal/sim"
	"skyserve/plan/chart"
)

// policyChart is one drawing: a row a policy, values along x.
type policyChart struct {
	Title  string
	Legend []string
	Wide   bool // takes the page's whole width
	chart.Rows
}

// boxes draws the percentiles of a time, in seconds, and what is said of its
// figure, where it has one.
func (l *lineup) boxes(title string, figure sim.Figure, get func(*sim.Figures) *sim.Percentiles) *policyChart {
	said := l.said(figure)
	low, high := math.Inf(1), 0.0
	for i := range l.entries {
		if p := get(&l.entries[i].Mean); p != nil {
			low, high = min(low, p.P10/1000), max(high, p.P90/1000)
		}
		for _, s := range said[i] {
			low, high = min(low, s.From/1000), max(high, s.To/1000)
		}
	}
	c := &policyChart{Title: title, Legend: []string{"whiskers P10 and P90, box P25 to P75, line P50: " + l.over()}}
	c.X = chart.Fit(low, high)
	for i := range l.entries {
		row := l.entries[i].row(said[i], 1000)
		if p := get(&l.entries[i].Mean); p != nil {
			row.Box = &chart.Box{From: p.P25 / 1000, To: p.P75 / 1000, Low: p.P10 / 1000, High: p.P90 / 1000, Middle: p.P50 / 1000}
			row.Value = seconds(p.P50 / 1000)
			row.Tip = fmt.Sprintf("%s: P10 %s, P25 %s, P50 %s, P75 %s, P90 %s", l.entries[i].name(),
				seconds(p.P10/1000), seconds(p.P25/1000), seconds(p.P50/1000), seconds(p.P75/1000), seconds(p.P90/1000))
		}
		c.Rows.Rows = append(c.Rows.Rows, row)
	}
	c.explain(" of the P90")
	return c
}

// bars draws the output tokens a second with their spread, and what is said of
// them.
func (l *lineup) bars() *policyChart {
	said := l.said("output_tokens_per_second")
	high := 1.0
	for i := range l.entries {
		high = max(high, l.entries[i].speed()+l.entries[i].deviation())
		for _, s := range said[i] {
			high = max(high, s.To)
		}
	}
	c := &policyChart{Title: "Output tokens a second", Wide: true, Legend: []string{l.over()}}
	if len(l.report.Rows) > len(l.report.Summary) {
		c.Legend[0] += ", whiskers the standard deviation"
	}
	c.X = chart.Scale{High: high}
	for i := range l.entries {
		e := &l.entries[i]
		row, v, d := e.row(said[i], 1), e.speed(), e.deviation()
		row.Box = &chart.Box{To: v, Low: max(0, v-d), High: v + d}
		row.Value = fmt.Sprintf("%.0f", v)
		row.Tip = fmt.Sprintf("%s: %.0f ± %.0f tok/s", e.name(), v, d)
		if e.Oracle {
			c.Limit = v
			c.Legend = append(c.Legend, "dashed line: the oracle")
		}
		c.Rows.Rows = append(c.Rows.Rows, row)
	}
	c.explain("")
	return c
}

// over says what the figures of the drawings are.
func (l *lineup) over() string {
	if len(l.report.Rows) > len(l.report.Summary) {
		return "means over the seeds"
	}
	return "one seed"
}

// said lists, by entry, the references and the paper's claims of a figure, in its unit. A claim
// of a ratio says where the paper would have the one policy, given where the
// other one was measured.
func (l *lineup) said(figure sim.Figure) [][]chart.Other {
	out := make([][]chart.Other, len(l.entries))
	for i := range l.entries {
		if ref := l.entries[i].Reference; ref != nil {
			if v, known := ref.of(figure); known {
				out[i] = append(out[i], chart.Other{Reference: true, From: v, To: v, Tip: "reference: " + plain(v)})
			}
		}
	}
	for k := range l.report.Claims {
		c := &l.report.Claims[k]
		i := l.position(l.report.find(&c.Side))
		if c.Figure != figure || i < 0 {
			continue
		}
		if c.Than == nil {
			out[i] = append(out[i], chart.Other{From: c.Least, To: c.Most, Tip: "paper: " + c.cells()[1]})
		} else if than := l.report.find(c.Than); than != nil {
			if base := figure.Of(&than.Mean); base != nil {
				text := fmt.Sprintf("paper: %s times that of %s", c.cells()[1], sideName(*c.Than))
				out[i] = append(out[i], chart.Other{From: *base * c.Least, To: *base * c.Most, Tip: text})
			}
		}
	}
	return out
}

// of reads a figure of the reference.
func (r *Reference) of(figure sim.Figure) (float64, bool) {
	switch figure {
	case "output_tokens_per_second":
		return r.OutputTokensPerSecond, true
	case "ttft_p90_ms":
		return r.TTFTP90Millis, true
	}
	return 0, false
}

// position is where a summary stands; -1 where it does not.
func (l *lineup) position(s *Summary) int {
	for i := range l.entries {
		if l.entries[i].Summary == s {
			return i
		}
	}
	return -1
}

// row begins the row of an entry with what it is compared with, in so many of the
// drawing's units.
func (e *entry) row(said []chart.Other, unit float64) chart.Row {
	row := chart.Row{Class: e.Style(), Name: e.Policy, Note: e.Push, Star: e.Leader, Value: "-", Tip: e.name()}
	for _, s := range said {
		s.From, s.To = s.From/unit, s.To/unit
		row.Others = append(row.Others, s)
	}
	return row
}

// explain adds marks to the axis, and to the legend what rows are compared with.
func (c *policyChart) explain(what string) {
	c.Marks = c.X.Marks(5, plain)
	references, claims := false, false
	for _, row := range c.Rows.Rows {
		for _, o := range row.Others {
			references, claims = references || o.Reference, claims || !o.Reference
		}
	}
	if references {
		c.Legend = append(c.Legend, "◆ reference"+what+": a faithful model of the paper")
	}
	if claims {
		c.Legend = append(c.Legend, "▾ paper's claim"+what+", where a ratio is applied to what the other policy has here")
	}
}

// plain writes a number to four digits, without an exponent.
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

// seconds writes a time to three digits, but no finer than milliseconds.
func seconds(v float64) string {
	digits := 3
	for bound := 1.0; digits > 0 && v >= bound; bound *= 10 {
		digits--
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " s"
}
