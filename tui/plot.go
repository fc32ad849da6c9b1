package tui

import (
	"math"
	"strings"
	"time"
)

// Bounds of a plot.
const (
	leastPlot      = 4 // rows
	mostPlot       = 40
	leastPlotWidth = 40
)

// plot is a load over time: what was, what is expected with an interval, and a line
// across for what can be carried. All in the same unit; NaN where nobody counted.
type plot struct {
	past          *LoadSeries
	mean, lo, hi  []float64
	from          time.Time // of the first step that is expected
	step          time.Duration
	capacity      float64
	capacityKnown bool
	zone          *time.Location
}

// plotColumn is one cell's width of time.
type plotColumn struct {
	at           time.Time
	was          float64 // NaN = not known
	mean, lo, hi float64 // NaN = not expected
}

// draw plots in w x h cells, the last line for the times: two thirds for the past
// where there is one.
func (p *plot) draw(t *Theme, w, h int) []string {
	columns := p.columns(w - axisWidth - 1)
	top := p.top(columns)
	rows := h - 1
	lines := make([]string, 0, h)
	for row := rows - 1; row >= 0; row-- {
		label := ""
		switch row {
		case rows - 1:
			label = rate(&top)
		case 0:
			label = "0"
		}
		lines = append(lines, t.muted.over(pad(label, axisWidth, true))+" "+p.row(t, columns, top, row, rows))
	}
	return append(lines, t.muted.over(t.cut(p.times(columns, w), w)))
}

// pastShare of a plot's width is what was asked.
const pastShare = 0.6

// columns shares n columns out to the past and the time ahead.
func (p *plot) columns(n int) []plotColumn {
	ahead := n
	if p.past != nil && len(p.past.TPS) > 0 {
		ahead = n - int(pastShare*float64(n))
	}
	columns := make([]plotColumn, n)
	span := time.Duration(len(p.mean)) * p.step
	if span <= 0 {
		span = time.Hour
	}
	cell := span / time.Duration(max(ahead, 1))
	begin := p.from.Add(-time.Duration(n-ahead) * cell)
	for i := range columns {
		at := begin.Add(time.Duration(i) * cell)
		columns[i] = plotColumn{at, p.was(at, cell), expected(p.mean, p.index(at)), expected(p.lo, p.index(at)), expected(p.hi, p.index(at))}
	}
	return columns
}

// index is the step that a time falls into; below 0 before the first.
func (p *plot) index(at time.Time) int {
	if p.step <= 0 || at.Before(p.from) {
		return -1
	}
	return int(at.Sub(p.from) / p.step)
}

// expected is a step's value; NaN where there is none.
func expected(values []float64, i int) float64 {
	if i < 0 || i >= len(values) {
		return math.NaN()
	}
	return values[i]
}

// was is the mean of what was counted over a cell's time; of the step that the
// cell lies in where that is longer.
func (p *plot) was(at time.Time, cell time.Duration) float64 {
	if p.past == nil || p.past.Step <= 0 {
		return math.NaN()
	}
	first := int(math.Floor(float64(at.Sub(p.past.Start)) / float64(p.past.Step)))
	last := int(math.Ceil(float64(at.Add(cell).Sub(p.past.Start))/float64(p.past.Step))) - 1
	sum, n := 0.0, 0
	for i := max(first, 0); i <= max(first, last) && i < len(p.past.TPS); i++ {
		if !math.IsNaN(p.past.TPS[i]) {
			sum += p.past.TPS[i]
			n++
		}
	}
	if n == 0 {
		return math.NaN()
	}
	return sum / float64(n)
}

// top is the greatest value that must be seen.
func (p *plot) top(columns []plotColumn) float64 {
	top := 0.0
	for _, c := range columns {
		for _, v := range []float64{c.was, c.mean, c.hi} {
			if !math.IsNaN(v) {
				top = max(top, v)
			}
		}
	}
	if p.capacityKnown && p.capacity < 3*top { // one far above would flatten all else
		top = max(top, p.capacity)
	}
	if top <= 0 {
		return 1
	}
	return top
}

// row draws the row that is so many above the bottom.
func (p *plot) row(t *Theme, columns []plotColumn, top float64, row, rows int) string {
	line := painter{theme: t}
	capacity := p.capacityKnown && p.capacity <= top && level(p.capacity, top, rows) == row
	for _, c := range columns {
		switch {
		case !math.IsNaN(c.was) && c.was > 0 && level(c.was, top, rows) >= row:
			line.put(roleAccent, p.solid(t, c.was, top, row, rows))
		case !math.IsNaN(c.mean) && level(c.mean, top, rows) == row:
			line.put(roleTitle, t.glyphs.point)
		case capacity:
			line.put(roleWarn, t.glyphs.dash)
		case !math.IsNaN(c.hi) && row <= level(c.hi, top, rows) && row >= level(c.lo, top, rows):
			line.put(roleMuted, t.glyphs.shade)
		default:
			line.put(roleText, " ")
		}
	}
	return strings.TrimRight(line.done(), " ")
}

// painter joins cells of the same role, which costs one code and not one a cell.
type painter struct {
	theme      *Theme
	whole, run strings.Builder
	role       role
}

// put adds a cell.
func (p *painter) put(with role, cell string) {
	if with != p.role {
		p.flush()
		p.role = with
	}
	p.run.WriteString(cell)
}

func (p *painter) flush() {
	p.whole.WriteString(p.theme.paint(p.role).over(p.run.String()))
	p.run.Reset()
}

// done is the line.
func (p *painter) done() string {
	p.flush()
	return p.whole.String()
}

// solid is a cell of a bar: in part where the bar ends in it.
func (p *plot) solid(t *Theme, v, top float64, row, rows int) string {
	steps := len(t.glyphs.rising)
	part := int(math.Round(v/top*float64(rows*steps))) - row*steps
	return t.glyphs.rising[min(max(part, 1), steps)-1]
}

// level is the row that a value falls into.
func level(v, top float64, rows int) int {
	return min(max(int(v/top*float64(rows)), 0), rows-1)
}

// times are the hours below the plot: of its begin, of where the past ends, and of
// its end.
func (p *plot) times(columns []plotColumn, w int) string {
	if len(columns) == 0 {
		return ""
	}
	line := []rune(strings.Repeat(" ", w))
	put := func(x int, text string) {
		x = min(max(x, 0), w-len(text))
		for i, r := range text {
			if x+i >= 0 && x+i < len(line) {
				line[x+i] = r
			}
		}
	}
	format := func(at time.Time) string { return at.In(p.zone).Format("15:04") }
	last := len(columns) - 1
	put(axisWidth+1, format(columns[0].at))
	put(axisWidth+1+last-4, format(columns[last].at.Add(columns[last].at.Sub(columns[max(last-1, 0)].at))))
	for i, c := range columns {
		if !c.at.Before(p.from) && i > 6 && i < last-12 {
			put(axisWidth+1+i, format(c.at))
			break
		}
	}
	return strings.TrimRight(string(line), " ")
}
