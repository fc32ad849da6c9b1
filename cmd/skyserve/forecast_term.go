package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/guptarohit/asciigraph"
	"golang.org/x/term"

	"skyserve/forecast"
	"skyserve/internal/printable"
)

// Measures of a plot on a terminal.
const (
	plotHeight   = 12
	plotWidth    = 80 // where the terminal does not say, and at least
	mostPlots    = 6
	leastWidth   = 40
	shownHistory = 6 // horizons that are drawn before the forecast
)

// course is what is drawn of a series: the end of its history, and one forecast.
type course struct {
	history        []float64
	mean, lo, hi   []float64
	forecaster     string
	begin, end, at time.Time // at is where the forecast begins
}

// courseOf takes the best forecast: auto's where there is one, else the first.
func courseOf(d drawn) course {
	best := max(0, slices.Index(d.names, forecast.Auto().Name()))
	fc := d.forecasts[best]
	from := max(0, len(d.Values)-shownHistory*len(fc.Mean))
	perSecond := func(values []float64) []float64 {
		out := make([]float64, len(values))
		for i, v := range values {
			out[i] = d.PerSecond(v)
		}
		return out
	}
	return course{
		history: perSecond(d.Values[from:]), mean: perSecond(fc.Mean), lo: perSecond(fc.Lo90), hi: perSecond(fc.Hi90), forecaster: d.names[best],
		begin: d.At(from), at: d.End(), end: d.At(len(d.Values) + len(fc.Mean)),
	}
}

// terminalPlots draws the series one below the other.
func (o *forecastOptions) terminalPlots(w io.Writer, results []drawn) error {
	width := terminalWidth(w)
	colour := isTerminal(w) && !o.noColor && os.Getenv("NO_COLOR") == ""
	plain := unguarded(w)
	for _, d := range results[:min(len(results), mostPlots)] {
		title := printable.Line(d.Key.String() + ", " + d.Unit.PerSecond())
		fmt.Fprintf(plain, "\n%s", terminalPlot(courseOf(d), title, width, colour, o.ascii))
	}
	if more := len(results) - mostPlots; more > 0 {
		fmt.Fprintf(w, "\n%d more series are not drawn: choose with --series, --model, --tier or --region\n", more)
	}
	return nil
}

// terminalWidth is the columns of a terminal.
func terminalWidth(w io.Writer) int {
	if f := fileOf(w); f != nil {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return max(columns, leastWidth)
		}
	}
	return plotWidth
}

// strokes are how the lines of a plot look without colour: the interval, the
// forecast and the history, the last drawn over the others.
var (
	strokes      = []string{"·", "•", ""} // the history in lines
	asciiStrokes = []string{".", "o", "#"}
)

// terminalPlot draws a course, at most width columns wide.
func terminalPlot(c course, title string, width int, colour, ascii bool) string {
	const margin = 16 // the scale at the left, and half a label at the right
	columns := width - margin
	all := len(c.history) + len(c.mean)
	lines := [][]float64{
		squeeze(c.lo, len(c.history), all, columns), squeeze(c.hi, len(c.history), all, columns),
		squeeze(c.mean, len(c.history), all, columns), squeeze(c.history, 0, all, columns),
	}
	marks := strokes
	if ascii {
		marks = asciiStrokes
	}
	chars := []asciigraph.CharSet{asciigraph.CreateCharSet(marks[0]), asciigraph.CreateCharSet(marks[0]), asciigraph.CreateCharSet(marks[1]), asciigraph.DefaultCharSet}
	if ascii {
		chars[3] = asciigraph.CreateCharSet(marks[2])
	}
	options := []asciigraph.Option{
		asciigraph.Height(plotHeight), asciigraph.LowerBound(0), asciigraph.SeriesChars(chars...),
		asciigraph.YAxisValueFormatter(short),
		asciigraph.XAxisRange(float64(c.begin.Unix()), float64(c.end.Unix())), asciigraph.XAxisTickCount(3),
		asciigraph.XAxisValueFormatter(func(v float64) string { return time.Unix(int64(v), 0).UTC().Format("Jan 2 15:04") }),
	}
	if colour {
		options = append(options, asciigraph.SeriesColors(asciigraph.Gray, asciigraph.Gray, asciigraph.Green, asciigraph.Default))
	}
	legend := fmt.Sprintf("%s history  %s forecast by %s  %s its interval of 90 %%", cmp.Or(marks[2], "─"), marks[1], c.forecaster, marks[0])
	text := title + "\n" + asciigraph.PlotMany(lines, options...) + "\n" + legend + "\n"
	if ascii {
		text = toASCII.Replace(text)
	}
	return text
}

// short writes a figure in seven columns: 950.0, 19.48k, 1.20M.
func short(v float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= u.size {
			return fmt.Sprintf("%6.2f%s", v/u.size, u.name)
		}
	}
	return fmt.Sprintf("%7.2f", v)
}

// toASCII replaces what a plot's axes are drawn with.
var toASCII = strings.NewReplacer("┤", "|", "┼", "+", "└", "+", "┬", "+", "─", "-", "╴", "-", "╶", "-", "│", "|")

// squeeze lays values that begin at a step of all onto columns: the mean of
// those that fall into one, NaN where there is none.
func squeeze(values []float64, from, all, columns int) []float64 {
	sums, counts := make([]float64, columns), make([]int, columns)
	for i, v := range values {
		if math.IsNaN(v) {
			continue
		}
		// A value covers its columns where there are more of them than steps.
		first, last := (from+i)*columns/all, (from+i+1)*columns/all
		for c := first; c < max(last, first+1); c++ {
			sums[c] += v
			counts[c]++
		}
	}
	for c := range sums {
		sums[c] /= float64(counts[c]) // 0/0 is NaN
	}
	return sums
}
