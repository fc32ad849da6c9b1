package whatif

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"

	"skyserve/lbd/sim"
)

//go:embed page.html.tmpl
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// WriteHTML writes reports as one page for a browser that needs nothing but
// itself: for each report the table, the boxes of TTFT and E2E and the bars of
// throughput.
func WriteHTML(out io.Writer, reports []*Report) error {
	views := make([]view, 0, len(reports))
	for _, r := range reports {
		views = append(views, viewOf(r))
	}
	if err := page.Execute(out, views); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}

// view is a report as the page shows it.
type view struct {
	Name, Title, Basis string
	Header             []string
	Rows               []viewRow
	Charts             []*chart
	Note               string
	ClaimHeader        []string
	Claims             [][]string
}

type viewRow struct {
	Best  bool
	Cells []string
}

func viewOf(r *Report) view {
	v := view{Name: r.Scenario, Title: r.Title, Basis: r.basis(), Header: tableHeader[1:], Note: r.Note, ClaimHeader: claimHeader}
	for i := range r.Summary {
		s := &r.Summary[i]
		v.Rows = append(v.Rows, viewRow{s.Best, s.cells(r.paper)[1:]})
	}
	for i := range r.Claims {
		v.Claims = append(v.Claims, r.Claims[i].cells())
	}
	v.Charts = []*chart{
		boxes(r, "Time to first token", func(f *sim.Figures) *sim.Percentiles { return f.TTFT }),
		boxes(r, "Time to the last token", func(f *sim.Figures) *sim.Percentiles { return f.E2E }),
		bars(r),
	}
	return v
}

// The measures of a chart, in SVG units.
const (
	chartWidth = 820
	plotLeft   = 260 // labels stand to the left of it
	plotRight  = 720 // values to the right
	gap        = 12  // between a plot and what stands beside it
	rowHeight  = 26
	plotTop    = 8
)

// chart is one drawing: a row a policy, values along x.
type chart struct {
	Title, Unit, Legend   string
	Width, Height         int
	Left, Top, Bottom     int // of the plot
	LabelX, ValueX, AxisY int // where labels end, values begin, the axis is written
	Ticks                 []tick
	Rows                  []chartRow
	axis                  axis
}

// tick is a mark on the axis.
type tick struct {
	X     float64
	Label string
}

// chartRow is a policy's row; Box and Bar are nil where nothing was measured.
type chartRow struct {
	Y, TextY float64
	Label    string
	Best     bool
	Value    string
	Tip      string
	Box      *box
	Bar      *bar
}

// box holds the x of five percentiles.
type box struct {
	P10, P25, P50, P75, P90 float64
	strip
}

// Wide is the width of the box proper.
func (b *box) Wide() float64 { return tenth(b.P75 - b.P25) }

// bar holds its width and the x of its spread, Lo and Hi equal where it has none.
type bar struct {
	Width, Lo, Hi float64
	strip
}

// Spread says whether the bar has one.
func (b *bar) Spread() bool { return b.Hi > b.Lo }

// strip is the y of what is drawn in a row.
type strip struct{ Top, Middle, Bottom, Height float64 }

func stripAt(y float64) strip {
	const inset = 5
	return strip{y + inset, y + rowHeight/2, y + rowHeight - inset, rowHeight - 2*inset}
}

// tenth rounds to what a drawing needs.
func tenth(x float64) float64 { return math.Round(10*x) / 10 }

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
	return tenth(plotLeft + v*(plotRight-plotLeft))
}

// logarithmic is the ratio of the largest to the smallest value from which on an
// axis is logarithmic: below it, a linear one still shows the smallest.
// widest is the most that such an axis spans.
const (
	logarithmic = 30
	widest      = 1e6
)

// boxes draws the percentiles of a time, in seconds.
func boxes(r *Report, title string, get func(*sim.Figures) *sim.Percentiles) *chart {
	low, high := math.Inf(1), 0.0
	for i := range r.Summary {
		if p := get(&r.Summary[i].Mean); p != nil {
			low, high = min(low, p.P10/1000), max(high, p.P90/1000)
		}
	}
	c := newChart(title, "s", "whiskers P10 and P90, box P25 to P75, line P50: means over the seeds", len(r.Summary))
	c.scale(low, high)
	for i := range r.Summary {
		s := &r.Summary[i]
		row := c.row(i, s)
		if p := get(&s.Mean); p != nil {
			x := func(v float64) float64 { return c.axis.x(v / 1000) }
			row.Box = &box{x(p.P10), x(p.P25), x(p.P50), x(p.P75), x(p.P90), stripAt(row.Y)}
			row.Value = seconds(p.P50 / 1000)
			row.Tip = fmt.Sprintf("%s: P10 %s, P25 %s, P50 %s, P75 %s, P90 %s", row.Label,
				seconds(p.P10/1000), seconds(p.P25/1000), seconds(p.P50/1000), seconds(p.P75/1000), seconds(p.P90/1000))
		}
		c.Rows = append(c.Rows, row)
	}
	return c
}

// bars draws the output tokens a second with their spread.
func bars(r *Report) *chart {
	high := 0.0
	for i := range r.Summary {
		high = max(high, r.Summary[i].Mean.OutputTokensPerSecond+deviationOf(&r.Summary[i]))
	}
	legend := "one seed"
	if len(r.Rows) > len(r.Summary) {
		legend = "mean over the seeds, whiskers its standard deviation"
	}
	c := newChart("Output tokens a second", "tok/s", legend, len(r.Summary))
	c.axis = axis{high: max(high, 1)}
	c.ticks()
	for i := range r.Summary {
		s := &r.Summary[i]
		row, v, d := c.row(i, s), s.Mean.OutputTokensPerSecond, deviationOf(s)
		row.Bar = &bar{tenth(c.axis.x(v) - plotLeft), c.axis.x(max(0, v-d)), c.axis.x(v + d), stripAt(row.Y)}
		row.Value = fmt.Sprintf("%.0f", v)
		row.Tip = fmt.Sprintf("%s: %.0f ± %.0f", row.Label, v, d)
		c.Rows = append(c.Rows, row)
	}
	return c
}

func deviationOf(s *Summary) float64 {
	if s.Spread == nil {
		return 0
	}
	return s.Spread.OutputTokensPerSecond
}

func newChart(title, unit, legend string, rows int) *chart {
	bottom := plotTop + rows*rowHeight
	return &chart{
		Title: title, Unit: unit, Legend: legend, Width: chartWidth, Height: bottom + rowHeight,
		Left: plotLeft, Top: plotTop, Bottom: bottom, LabelX: plotLeft - gap, ValueX: plotRight + gap, AxisY: bottom + 16,
	}
}

func (c *chart) row(i int, s *Summary) chartRow {
	y := float64(plotTop + i*rowHeight)
	label := s.Policy + ", " + s.Push
	return chartRow{Y: y, TextY: y + rowHeight/2 + 4, Label: label, Best: s.Best, Value: "-", Tip: label}
}

// scale chooses the axis for values from low to high.
func (c *chart) scale(low, high float64) {
	high = max(high, 1e-3)
	c.axis = axis{high: high}
	if low > 0 && high/low > logarithmic {
		c.axis.low, c.axis.log = max(low, high/widest), true
	}
	c.ticks()
}

// ticks marks round values: on a logarithmic axis 1, 2 and 5 of each decade.
func (c *chart) ticks() {
	a := &c.axis
	if a.log {
		for decade := math.Pow(10, math.Floor(math.Log10(a.low))); decade <= a.high; decade *= 10 {
			for _, m := range []float64{1, 2, 5} {
				if v := m * decade; v >= a.low && v <= a.high {
					c.Ticks = append(c.Ticks, tick{a.x(v), tickLabel(v)})
				}
			}
		}
		return
	}
	step := roundStep(a.high / 5)
	for i := 0; float64(i)*step <= a.high; i++ {
		v := float64(i) * step
		c.Ticks = append(c.Ticks, tick{a.x(v), tickLabel(v)})
	}
}

// roundStep is the least of 1, 2, 5, 10, ... that is no smaller than a step.
func roundStep(step float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(step)))
	for _, m := range []float64{1, 2, 5} {
		if m*decade >= step {
			return m * decade
		}
	}
	return 10 * decade
}

func tickLabel(v float64) string { return fmt.Sprintf("%.4g", v) }

func seconds(v float64) string { return fmt.Sprintf("%.3g s", v) }
