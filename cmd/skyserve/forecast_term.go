package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"skyserve/forecast"
	"skyserve/internal/printable"
	"skyserve/tui"
)

// Measures of a plot on a terminal.
const (
	plotHeight   = 14 // lines
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

// terminalPlots draws the series one below the other, as the dashboard does.
func (o *forecastOptions) terminalPlots(w io.Writer, results []drawn) error {
	theme, err := tui.NewTheme(tui.ThemeAuto, o.ascii)
	if err != nil {
		return err
	}
	if !isTerminal(w) || o.noColor || os.Getenv("NO_COLOR") != "" {
		theme = theme.Plain()
	}
	plain, width := unguarded(w), terminalWidth(w)
	for _, d := range results[:min(len(results), mostPlots)] {
		title := printable.Line(d.Key.String() + ", " + d.Unit.PerSecond())
		fmt.Fprintf(plain, "\n%s\n%s", title, terminalPlot(courseOf(d), width, theme))
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

// terminalPlot draws a course, at most width columns wide, with a key below.
func terminalPlot(c course, width int, theme tui.Theme) string {
	step := c.end.Sub(c.at) / time.Duration(len(c.mean))
	p := tui.Plot{
		Past:      &tui.LoadSeries{Start: c.begin, Step: step, TPS: c.history},
		PastShare: float64(len(c.history)) / float64(len(c.history)+len(c.mean)),
		Mean:      c.mean, Lo: c.lo, Hi: c.hi, From: c.at, Step: step, Zone: time.UTC,
	}
	lines := append(p.Draw(&theme, width, plotHeight), theme.PlotKey("history", "forecast by "+c.forecaster, "its interval of 90 %"))
	return strings.Join(lines, "\n") + "\n"
}
