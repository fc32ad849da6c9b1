package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"skyserve/forecast"
	"skyserve/internal/printable"
	"skyserve/tui"
)

// Sizes of a plot on a terminal.
const (
	plotHeight   = 14 // lines
	plotWidth    = 80 // if the width of the terminal is unknown
	maxPlots     = 6
	minWidth     = 40
	shownHistory = 6 // length of the drawn history, in horizons
)

// plotData is the drawn part of a series: the end of its history, and one forecast.
type plotData struct {
	history        []float64
	mean, lo, hi   []float64
	forecaster     string
	begin, end, at time.Time // at is the start of the forecast
}

// newPlotData selects the best forecast: auto's if there is one, otherwise the first.
func newPlotData(d forecastedSeries) plotData {
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
	return plotData{
		history: perSecond(d.Values[from:]), mean: perSecond(fc.Mean), lo: perSecond(fc.Lo90), hi: perSecond(fc.Hi90), forecaster: d.names[best],
		begin: d.At(from), at: d.End(), end: d.At(len(d.Values) + len(fc.Mean)),
	}
}

// terminalPlots draws the series one below the other, in the style of the dashboard.
func (o *forecastOptions) terminalPlots(w io.Writer, results []forecastedSeries) error {
	theme, err := tui.NewTheme(tui.ThemeAuto, o.ascii)
	if err != nil {
		return err
	}
	if !isTerminal(w) || o.noColor || os.Getenv("NO_COLOR") != "" {
		theme = theme.Plain()
	}
	plain, width := rawWriter(w), terminalWidth(w)
	for _, d := range results[:min(len(results), maxPlots)] {
		title := printable.Line(d.SeriesKey.String() + ", " + d.Unit.PerSecond())
		fmt.Fprintf(plain, "\n%s\n%s", title, terminalPlot(newPlotData(d), width, theme))
	}
	if more := len(results) - maxPlots; more > 0 {
		fmt.Fprintf(w, "\n%d more series are not drawn; select series with --series, --model, --tier or --region\n", more)
	}
	return nil
}

// terminalWidth returns the width of a plot on a terminal in columns.
func terminalWidth(w io.Writer) int { return max(terminalColumns(w, plotWidth), minWidth) }

// terminalPlot draws a series, at most width columns wide, with a legend below.
func terminalPlot(c plotData, width int, theme tui.Theme) string {
	step := c.end.Sub(c.at) / time.Duration(len(c.mean))
	p := tui.Plot{
		Past:           &tui.LoadSeries{Start: c.begin, Step: step, TPS: c.history},
		PastWidthShare: float64(len(c.history)) / float64(len(c.history)+len(c.mean)),
		Mean:           c.mean, Lo: c.lo, Hi: c.hi, From: c.at, Step: step, Zone: time.UTC,
	}
	lines := append(p.Draw(&theme, width, plotHeight), theme.PlotLegend("history", "forecast by "+c.forecaster, "90 % interval"))
	return strings.Join(lines, "\n") + "\n"
}
