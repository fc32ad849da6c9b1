package eval

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"skyserve/internal/sim"
	"skyserve/plan/chart"
)

// policyChart is one drawing: a row a policy, values along x. All x are percentages of
// the plot's width, so that a drawing is as wide as its place and its letters
// stay as they are.
type policyChart struct {
	Title  string
	Legend []string
	Wide   bool // takes the page's whole width
	Long   bool // has names that need more room than most
	Ticks  []tick
	Oracle float64 // x of the line at the oracle's value, 0 where there is none
	Rows   []chartRow
	axis   axis
}

// tick is a mark on the axis.
type tick struct {
	X     float64
	Label string
}

// chartRow is a policy's row; Box and Bar are nil where nothing was measured.
type chartRow struct {
	*entry
	Value, Tip string
	Box        *box
	Bar        *bar
	Marks      []mark
}

// longName is how many letters fit beside a drawing as it mostly is.
const longName = 26

// box holds the x of five percentiles.
type box struct{ P10, P25, P50, P75, P90 float64 }

// Wide is the width of the box proper.
func (b *box) Wide() float64 { return chart.Tenth(b.P75 - b.P25) }

// Whisker is the length of the whiskers with the box.
func (b *box) Whisker() float64 { return chart.Tenth(b.P90 - b.P10) }

// bar holds its width and the x of its spread, Lo and Hi equal where it has none.
type bar struct{ Width, Lo, Hi float64 }

// Spread says whether the bar has one.
func (b *bar) Spread() bool { return b.Hi > b.Lo }

// mark is what a value is compared with: the Reference's, or a span that the
// paper claims, where From and To are equal if it gives one number.
type mark struct {
	Reference bool
	From, To  float64
	Tip       string
}

// Wide is the width of a span.
func (m *mark) Wide() float64 { return chart.Tenth(m.To - m.From) }

// axis maps values to x.
type axis struct {
	low, high float64
	log       bool
}

func (a *axis) x(v float64) float64 {
	if a.log {
		v = math.Log(max(v, a.low)/a.low) / math.Log(a.high/a.low)
	} else {
		v = (v - a.low) / (a.high - a.low)
	}
	return chart.Tenth(100 * v)
}

// logarithmic is the ratio of the largest to the smallest value from which on an
// axis is logarithmic: below it, a linear one still shows the smallest. widest is
// the most that such an axis spans, and fewDecades how many decades leave room
// for marks between the powers of ten.
const (
	logarithmic = 30
	widest      = 1e6
	fewDecades  = 2.5
)

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
			low, high = min(low, s.from/1000), max(high, s.to/1000)
		}
	}
	c := &policyChart{Title: title, Legend: []string{"whiskers P10 and P90, box P25 to P75, line P50: " + l.over()}}
	c.scale(low, high)
	for i := range l.entries {
		row := c.row(&l.entries[i], said[i], 1000)
		if p := get(&l.entries[i].Mean); p != nil {
			x := func(v float64) float64 { return c.axis.x(v / 1000) }
			row.Box = &box{x(p.P10), x(p.P25), x(p.P50), x(p.P75), x(p.P90)}
			row.Value = seconds(p.P50 / 1000)
			row.Tip = fmt.Sprintf("%s: P10 %s, P25 %s, P50 %s, P75 %s, P90 %s", row.name(),
				seconds(p.P10/1000), seconds(p.P25/1000), seconds(p.P50/1000), seconds(p.P75/1000), seconds(p.P90/1000))
		}
		c.add(row)
	}
	c.explainMarks(" of the P90")
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
			high = max(high, s.to)
		}
	}
	c := &policyChart{Title: "Output tokens a second", Wide: true, Legend: []string{l.over()}}
	if len(l.report.Rows) > len(l.report.Summary) {
		c.Legend[0] += ", whiskers the standard deviation"
	}
	c.axis = axis{high: high}
	c.ticks()
	for i := range l.entries {
		e := &l.entries[i]
		row, v, d := c.row(e, said[i], 1), e.speed(), e.deviation()
		row.Bar = &bar{c.axis.x(v), c.axis.x(max(0, v-d)), c.axis.x(v + d)}
		row.Value = fmt.Sprintf("%.0f", v)
		row.Tip = fmt.Sprintf("%s: %.0f ± %.0f tok/s", row.name(), v, d)
		if e.Oracle {
			c.Oracle = c.axis.x(v)
			c.Legend = append(c.Legend, "dashed line: the oracle")
		}
		c.add(row)
	}
	c.explainMarks("")
	return c
}

// over says what the figures of the drawings are.
func (l *lineup) over() string {
	if len(l.report.Rows) > len(l.report.Summary) {
		return "means over the seeds"
	}
	return "one seed"
}

// saying is what stands to compare a figure with, in the figure's unit.
type saying struct {
	reference bool
	from, to  float64
	text      string
}

// said lists, by entry, the references and the paper's claims of a figure. A claim
// of a ratio says where the paper would have the one policy, given where the
// other one was measured.
func (l *lineup) said(figure sim.Figure) [][]saying {
	out := make([][]saying, len(l.entries))
	for i := range l.entries {
		if ref := l.entries[i].Reference; ref != nil {
			if v, known := ref.of(figure); known {
				out[i] = append(out[i], saying{true, v, v, fmt.Sprintf("reference: %s", plain(v))})
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
			out[i] = append(out[i], saying{false, c.Least, c.Most, "paper: " + c.cells()[1]})
		} else if than := l.report.find(c.Than); than != nil {
			if base := figure.Of(&than.Mean); base != nil {
				text := fmt.Sprintf("paper: %s times that of %s", c.cells()[1], sideName(*c.Than))
				out[i] = append(out[i], saying{false, *base * c.Least, *base * c.Most, text})
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

// row begins the row of an entry with its marks, whose figures have a unit.
func (c *policyChart) row(e *entry, said []saying, unit float64) chartRow {
	row := chartRow{entry: e, Value: "-", Tip: e.name()}
	for _, s := range said {
		row.Marks = append(row.Marks, mark{s.reference, c.axis.x(s.from / unit), c.axis.x(s.to / unit), s.text})
	}
	return row
}

// add adds a row whose tip tells its marks too.
func (c *policyChart) add(row chartRow) {
	for i := range row.Marks {
		row.Tip += "; " + row.Marks[i].Tip
	}
	c.Long = c.Long || utf8.RuneCountInString(row.name()) > longName
	c.Rows = append(c.Rows, row)
}

// explainMarks adds to the legend what the marks are that some row has.
func (c *policyChart) explainMarks(what string) {
	references, claims := false, false
	for i := range c.Rows {
		for _, m := range c.Rows[i].Marks {
			references, claims = references || m.Reference, claims || !m.Reference
		}
	}
	if references {
		c.Legend = append(c.Legend, "◆ reference"+what+": a faithful model of the paper")
	}
	if claims {
		c.Legend = append(c.Legend, "▾ paper's claim"+what+", where a ratio is applied to what the other policy has here")
	}
}

// scale chooses the axis for values from low to high.
func (c *policyChart) scale(low, high float64) {
	high = max(high, 1e-3)
	c.axis = axis{high: high}
	if low > 0 && high/low > logarithmic {
		c.axis.low, c.axis.log = max(low, high/widest), true
	}
	c.ticks()
}

// ticks marks round values: on a logarithmic axis powers of ten, and 2 and 5 times
// these where there is room.
func (c *policyChart) ticks() {
	a := &c.axis
	if a.log {
		steps := []float64{1, 2, 5}
		if math.Log10(a.high/a.low) > fewDecades {
			steps = steps[:1]
		}
		for decade := math.Pow(10, math.Floor(math.Log10(a.low))); decade <= a.high; decade *= 10 {
			for _, m := range steps {
				if v := m * decade; v >= a.low && v <= a.high {
					c.Ticks = append(c.Ticks, tick{a.x(v), plain(v)})
				}
			}
		}
		return
	}
	for _, v := range chart.Marks(a.high, 5) {
		c.Ticks = append(c.Ticks, tick{a.x(v), plain(v)})
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
