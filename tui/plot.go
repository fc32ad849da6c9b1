package tui

import (
	"math"
	"slices"
	"strings"
	"time"
)

// Limits of a plot.
const (
	minPlot        = 4 // rows
	maxPlot        = 40
	minPlotWidth   = 40
	pastWidthShare = 0.6 // share of the width for the past, on the dashboard
)

// Plot is a plot of load over time in terminal cells: actual load, forecast with an
// interval, and a line for the capacity. All have the same unit; NaN is unknown. The
// dashboard and `skyserve forecast` use it.
type Plot struct {
	Past           *LoadSeries // actual load; nil if unknown
	PastWidthShare float64     // share of the width for Past, 0 to 1; less if the load is known for a shorter time
	Mean, Lo, Hi   []float64
	Earlier        []float64 // means of earlier forecasts for the steps before From
	From           time.Time // start of the first forecast step
	Step           time.Duration
	Zone           *time.Location // of the time axis
	Marks          []PlotMark     // below the plot; none = no line for them
	capacity       float64
	capacityKnown  bool
}

// PlotMark marks an event on the time axis of a plot.
type PlotMark struct {
	At   time.Time
	Sign string // one cell
}

// plotColumn is one cell's width of time.
type plotColumn struct {
	at           time.Time
	actual       float64 // NaN = unknown
	mean, lo, hi float64 // NaN = no forecast
}

// Draw returns the plot in w x h cells; the last line is the time axis.
func (p *Plot) Draw(t *Theme, w, h int) []string {
	columns := p.columns(w - axisWidth - 1)
	top := p.top(columns)
	rows := h - 1
	if len(p.Marks) > 0 {
		rows--
	}
	lines := make([]string, 0, h)
	for row := rows - 1; row >= 0; row-- {
		lines = append(lines, t.scale(top, row, rows)+p.row(t, columns, top, row, rows))
	}
	if len(p.Marks) > 0 {
		lines = append(lines, t.accent.apply(t.cut(strings.Repeat(" ", axisWidth+1)+p.markLine(columns), w)))
	}
	return append(lines, t.muted.apply(t.cut(p.times(columns, w), w)))
}

// markLine returns the signs of the marks at their times; the last one counts where several share a cell.
func (p *Plot) markLine(columns []plotColumn) string {
	cells := slices.Repeat([]string{" "}, len(columns))
	for _, m := range p.Marks {
		after, _ := slices.BinarySearchFunc(columns, m.At, func(c plotColumn, at time.Time) int {
			if c.at.After(at) {
				return 1
			}
			return -1
		})
		if after > 0 && after < len(columns) {
			cells[after-1] = m.Sign
		}
	}
	return strings.TrimRight(strings.Join(cells, ""), " ")
}

// scale returns the label left of a row: the greatest value at the top, 0 at the bottom.
func (t *Theme) scale(top float64, row, rows int) string {
	label := ""
	switch row {
	case rows - 1:
		label = rate(&top)
	case 0:
		label = "0"
	}
	return t.muted.apply(pad(label, axisWidth, true)) + " "
}

// PlotLegend returns the legend of a plot.
func (t *Theme) PlotLegend(past, mean, interval string) string {
	return t.glyphs.full + " " + past + "  " + t.glyphs.point + " " + mean + "  " + t.glyphs.shade + " " + interval
}

// columns divides n columns between the past and the forecast.
func (p *Plot) columns(n int) []plotColumn {
	past, ahead := p.Past, n
	span := time.Duration(len(p.Mean)) * p.Step
	if span <= 0 {
		span = time.Hour
	}
	if past == nil || len(past.TPS) == 0 {
		past = &LoadSeries{}
	} else {
		ahead = n - int(p.pastShare(span)*float64(n))
	}
	columns := make([]plotColumn, n)
	cell := span / time.Duration(max(ahead, 1))
	begin := p.From.Add(-time.Duration(n-ahead) * cell)
	for i := range columns {
		at := begin.Add(time.Duration(i) * cell)
		expected := func(values []float64) float64 { return meanOver(values, p.Step, at.Sub(p.From), cell) }
		mean := expected(p.Mean)
		if at.Before(p.From) {
			mean = meanOver(p.Earlier, p.Step, at.Sub(p.From.Add(-time.Duration(len(p.Earlier))*p.Step)), cell)
		}
		columns[i] = plotColumn{at, meanOver(past.TPS, past.Step, at.Sub(past.Start), cell), mean, expected(p.Lo), expected(p.Hi)}
	}
	return columns
}

// pastShare returns the share of the width for the past: at most that of the known load, beside a forecast of a span.
func (p *Plot) pastShare(span time.Duration) float64 {
	first := slices.IndexFunc(p.Past.TPS, func(v float64) bool { return !math.IsNaN(v) })
	known := p.From.Sub(p.Past.Start.Add(time.Duration(first) * p.Past.Step))
	if first < 0 || known <= 0 {
		return 0
	}
	return min(p.PastWidthShare, float64(known)/float64(known+span))
}

// meanOver returns the mean of the known values in a cell's time; if a step is longer than
// the cell, the value of its step. from is the start of the cell, relative to the first value.
func meanOver(values []float64, step, from, cell time.Duration) float64 {
	if step <= 0 {
		return math.NaN()
	}
	first := int(math.Floor(float64(from) / float64(step)))
	last := int(math.Ceil(float64(from+cell)/float64(step))) - 1
	sum, n := 0.0, 0.0
	for i := max(first, 0); i <= max(first, last) && i < len(values); i++ {
		if !math.IsNaN(values[i]) {
			sum, n = sum+values[i], n+1
		}
	}
	return sum / n // 0/0 is NaN
}

// top returns the greatest value to plot.
func (p *Plot) top(columns []plotColumn) float64 {
	top := 0.0
	for _, c := range columns {
		for _, v := range []float64{c.actual, c.mean, c.hi} {
			if !math.IsNaN(v) {
				top = max(top, v)
			}
		}
	}
	if p.capacityKnown && p.capacity < 3*top { // a capacity far above would flatten the plot
		top = max(top, p.capacity)
	}
	if top <= 0 {
		return 1
	}
	return top
}

// row draws one row, counted from the bottom.
func (p *Plot) row(t *Theme, columns []plotColumn, top float64, row, rows int) string {
	line := painter{theme: t}
	capacity := p.capacityKnown && p.capacity <= top && level(p.capacity, top, rows) == row
	for _, c := range columns {
		bar := t.bar(c.actual, top, row, rows)
		switch {
		case !math.IsNaN(c.mean) && level(c.mean, top, rows) == row:
			line.addCell(roleTitle, t.glyphs.point)
		case bar != "":
			line.addCell(roleAccent, bar)
		case capacity:
			line.addCell(roleWarn, t.glyphs.dash)
		case !math.IsNaN(c.hi) && row <= level(c.hi, top, rows) && row >= level(c.lo, top, rows):
			line.addCell(roleMuted, t.glyphs.shade)
		default:
			line.addCell(roleText, " ")
		}
	}
	return strings.TrimRight(line.finish(), " ")
}

// painter joins cells of the same role, to write one escape code for all of them.
type painter struct {
	theme     *Theme
	line, run strings.Builder
	role      role
}

// addCell appends a cell.
func (p *painter) addCell(with role, cell string) {
	if with != p.role {
		p.flush()
		p.role = with
	}
	p.run.WriteString(cell)
}

func (p *painter) flush() {
	p.line.WriteString(p.theme.paint(p.role).apply(p.run.String()))
	p.run.Reset()
}

// finish returns the line.
func (p *painter) finish() string {
	p.flush()
	return p.line.String()
}

// bar returns one row's cell of a vertical bar: partly filled where the bar ends, empty
// above. The value 0 is a line at the bottom; an unknown value is empty.
func (t *Theme) bar(v, top float64, row, rows int) string {
	steps := len(t.glyphs.vertical)
	part := -row * steps
	if v > 0 {
		part += max(int(math.Round(v/top*float64(rows*steps))), 1)
	}
	switch {
	case part > 0:
		return t.glyphs.vertical[min(part, steps)-1]
	case v == 0 && row == 0:
		return t.glyphs.zero
	}
	return ""
}

// level returns the row of a value.
func level(v, top float64, rows int) int {
	return min(max(int(v/top*float64(rows)), 0), rows-1)
}

// times returns the time axis: the start, the end of the past and the end, with dates if
// the plot covers more than a day.
func (p *Plot) times(columns []plotColumn, w int) string {
	if len(columns) < 2 {
		return ""
	}
	first, last := columns[0].at, columns[len(columns)-1].at.Add(columns[1].at.Sub(columns[0].at))
	layout := "15:04"
	if last.Sub(first) > 24*time.Hour {
		layout = "Jan 2 15:04"
	}
	left, right := first.In(p.Zone).Format(layout), last.In(p.Zone).Format(layout)
	middle := p.From.In(p.Zone).Format(layout)
	from := slices.IndexFunc(columns, func(c plotColumn) bool { return !c.at.Before(p.From) })
	end := min(from, len(columns)-len(right)-len(middle)-1) // the column where the middle begins
	line := strings.Repeat(" ", axisWidth+1) + left
	if end > len(left) {
		line = pad(line, axisWidth+1+end, false) + middle
	}
	return line + pad(right, w-width(line), true)
}
