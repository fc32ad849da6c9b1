package main

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Sizes and colours of images. The colours are distinguishable with colour blindness (Okabe and
// Ito, then Tol's muted ones); lines also have different dashes.
const (
	imageWidth       = 10 * vg.Inch
	imageHeight      = 3 * vg.Inch // of one series
	maxSeriesOnImage = 40          // series; more would be an image taller than three metres
	barsWidth        = 480         // points that the bars of all series share
	widestBar        = 24
	thinLine         = 0.8
	// legendWidth is the width of the legend at the right of every plot, legendDrop its distance
	// from the top, and legendSize the size of its letters.
	legendWidth   = 1.6 * vg.Inch
	legendDrop    = 0.2 * vg.Inch
	legendGap     = 0.15 * vg.Inch
	legendSize    = 9
	legendPadding = 2
	maxTicks      = 8
	// tallBar is the multiple of the median of all bars at which a bar is cut off and labelled
	// with its value: one bad forecaster would flatten all other bars.
	tallBar    = 3
	cutPadding = 3
)

var (
	historyColour = color.RGBA{0x33, 0x33, 0x33, 0xff}
	bandColour    = color.RGBA{0xcf, 0xe3, 0xf3, 0xff}
	lineColours   = []color.RGBA{
		{0x00, 0x72, 0xb2, 0xff},
		{0xd5, 0x5e, 0x00, 0xff},
		{0x00, 0x9e, 0x73, 0xff},
		{0xcc, 0x79, 0xa7, 0xff},
		{0xe6, 0x9f, 0x00, 0xff},
		{0x56, 0xb4, 0xe9, 0xff},
		{0x00, 0x00, 0x00, 0xff},
		{0x88, 0x22, 0x55, 0xff},
		{0x99, 0x99, 0x33, 0xff},
		{0x33, 0x22, 0x88, 0xff},
		{0xdd, 0xcc, 0x77, 0xff},
		{0x99, 0x99, 0x99, 0xff},
	}
	// dashedFrom is the number of lines that colours alone distinguish.
	dashedFrom = 6
	dashes     = [][]vg.Length{nil, {4, 2}, {1, 2}, {6, 2, 1, 2}}
)

func lineStyle(i int) draw.LineStyle {
	return draw.LineStyle{Color: lineColours[i%len(lineColours)], Width: thinLine, Dashes: dashes[i/dashedFrom%len(dashes)]}
}

// picture is a plot with a legend beside it: inside, the legend would overlap the axis.
type picture struct {
	*plot.Plot
	legend plot.Legend
}

func newPicture(title, ordinate string) picture {
	p := picture{plot.New(), plot.NewLegend()}
	p.Title.Text, p.Y.Label.Text, p.Y.Min = title, ordinate, 0
	p.legend.Top, p.legend.Left, p.legend.Padding = true, true, legendPadding
	p.legend.TextStyle.Font.Size = legendSize
	return p
}

// plotForecasts draws every series with its forecasts, one below the other.
func plotForecasts(w io.Writer, format string, results []forecastedSeries) error {
	var rows []picture
	for _, d := range results {
		p, err := forecastPlot(d)
		if err != nil {
			return fmt.Errorf("drawing %s: %w", d.SeriesKey, err)
		}
		rows = append(rows, p)
	}
	return writeImage(w, format, rows)
}

// forecastPlot draws the end of a history, the interval of the best forecast and the means of all
// forecasts.
func forecastPlot(d forecastedSeries) (picture, error) {
	c := newPlotData(d)
	p := newPicture(d.SeriesKey.String(), d.Unit.PerSecond())
	p.X.Tick.Marker = plot.TickerFunc(timeTicks)
	begin := float64(c.at.Unix())
	band, err := plotter.NewPolygon(outline(c, begin, d.Step.Seconds()))
	if err != nil {
		return p, err
	}
	band.Color, band.LineStyle.Width = bandColour, 0
	p.Add(band)
	p.legend.Add("90 % of "+c.forecaster, band)
	for i, fc := range d.forecasts {
		xys := make(plotter.XYs, len(fc.Mean))
		for h, v := range fc.Mean {
			xys[h] = plotter.XY{X: begin + float64(h)*d.Step.Seconds(), Y: d.PerSecond(v)}
		}
		if err := p.addLine(xys, lineStyle(i), d.names[i]); err != nil {
			return p, err
		}
	}
	err = p.addHistory(c, d.Step.Seconds())
	return p, err
}

// tickSteps are the seconds between two ticks of a time axis.
var tickSteps = []float64{60, 300, 600, 1800, 3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400, 28 * 86400}

// timeTicks puts ticks at round times.
func timeTicks(from, to float64) []plot.Tick {
	step := tickSteps[len(tickSteps)-1]
	for _, s := range tickSteps {
		if (to-from)/s <= maxTicks {
			step = s
			break
		}
	}
	var out []plot.Tick
	for at := math.Ceil(from/step) * step; at <= to; at += step {
		out = append(out, plot.Tick{Value: at, Label: time.Unix(int64(at), 0).UTC().Format("Jan 2\n15:04")})
	}
	return out
}

// outline returns the interval's outline: along its lower bound and back along its upper one.
func outline(c plotData, begin, step float64) plotter.XYs {
	var out plotter.XYs
	for h, v := range c.lo {
		out = append(out, plotter.XY{X: begin + float64(h)*step, Y: v})
	}
	for h := len(c.hi) - 1; h >= 0; h-- {
		out = append(out, plotter.XY{X: begin + float64(h)*step, Y: c.hi[h]})
	}
	return out
}

func (p *picture) addLine(xys plotter.XYs, style draw.LineStyle, name string) error {
	line, err := plotter.NewLine(xys)
	if err != nil {
		return err
	}
	line.LineStyle = style
	p.Add(line)
	if name != "" {
		p.legend.Add(name, line)
	}
	return nil
}

// addHistory draws the known stretches of the history.
func (p *picture) addHistory(c plotData, step float64) error {
	style := draw.LineStyle{Color: historyColour, Width: thinLine}
	name := "history"
	var stretch plotter.XYs
	for i, v := range append(c.history, math.NaN()) {
		if !math.IsNaN(v) {
			stretch = append(stretch, plotter.XY{X: float64(c.begin.Unix()) + float64(i)*step, Y: v})
			continue
		}
		if len(stretch) > 0 {
			if err := p.addLine(stretch, style, name); err != nil {
				return err
			}
			name = ""
		}
		stretch = nil
	}
	return nil
}

// plotBacktest draws the WAPE of every forecaster on every series.
func plotBacktest(w io.Writer, format string, results []backtestSeries) error {
	p := newPicture("forecast error, horizon "+results[0].Horizon, "WAPE, %")
	var names []string
	for _, s := range results {
		names = append(names, s.name())
	}
	tall := barLimit(results)
	var cut plotter.XYLabels
	var offsets []vg.Length
	forecasters := len(results[0].Rows)
	width := min(widestBar, barsWidth/float64(len(results)*(forecasters+1)))
	for f := range forecasters {
		values := make(plotter.Values, len(results))
		offset := vg.Length(width * (float64(f) - float64(forecasters-1)/2))
		for i, s := range results {
			if v := s.Rows[f].WAPE; v != nil {
				values[i] = min(100**v, tall)
				if 100**v > tall {
					cut.XYs = append(cut.XYs, plotter.XY{X: float64(i), Y: tall})
					cut.Labels, offsets = append(cut.Labels, fmt.Sprintf("%.0f", 100**v)), append(offsets, offset)
				}
			}
		}
		bars, err := plotter.NewBarChart(values, vg.Length(width))
		if err != nil {
			return fmt.Errorf("drawing a backtest: %w", err)
		}
		bars.Color, bars.LineStyle.Width = lineColours[f%len(lineColours)], 0
		bars.Offset = offset
		p.Add(bars)
		p.legend.Add(results[0].Rows[f].Forecaster, bars)
	}
	if err := labelCutBars(p.Plot, cut, offsets); err != nil {
		return fmt.Errorf("drawing a backtest: %w", err)
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.5, float64(len(results))-0.5
	return writeImage(w, format, []picture{p})
}

// barLimit returns the height at which bars are cut off, in percent; +Inf if none is cut off.
func barLimit(results []backtestSeries) float64 {
	var all []float64
	for _, s := range results {
		for _, r := range s.Rows {
			if r.WAPE != nil {
				all = append(all, 100**r.WAPE)
			}
		}
	}
	if len(all) == 0 {
		return math.Inf(1)
	}
	slices.Sort(all)
	if limit := tallBar * all[len(all)/2]; all[len(all)-1] > limit {
		return limit
	}
	return math.Inf(1)
}

// labelCutBars labels the bars that are cut off with their values, vertically because bars are narrow.
func labelCutBars(p *plot.Plot, cut plotter.XYLabels, offsets []vg.Length) error {
	if len(cut.Labels) == 0 {
		return nil
	}
	labels, err := plotter.NewLabels(cut)
	if err != nil {
		return err
	}
	for i := range labels.TextStyle {
		st := &labels.TextStyle[i]
		st.Color, st.Rotation = color.White, math.Pi/2
		st.XAlign, st.YAlign = text.XRight, text.YCenter
		p.Add(&plotter.Labels{XYs: labels.XYs[i : i+1], Labels: labels.Labels[i : i+1], TextStyle: labels.TextStyle[i : i+1], Offset: vg.Point{X: offsets[i], Y: -cutPadding}})
	}
	return nil
}

// writeImage writes plots one below the other.
func writeImage(w io.Writer, format string, rows []picture) error {
	if len(rows) > maxSeriesOnImage {
		return usage(fmt.Errorf("-o %s: at most %d series, got %d", format, maxSeriesOnImage, len(rows)), "select series with --series, --model, --tier or --region")
	}
	canvas, err := draw.NewFormattedCanvas(imageWidth, vg.Length(len(rows))*imageHeight, format)
	if err != nil {
		return fmt.Errorf("drawing %s: %w", format, err)
	}
	tiles := draw.Tiles{Rows: len(rows), Cols: 1, PadY: 3 * vg.Millimeter}
	grid := make([][]*plot.Plot, len(rows))
	for i, p := range rows {
		grid[i] = []*plot.Plot{p.Plot}
	}
	whole := draw.New(canvas)
	for i, cells := range plot.Align(grid, tiles, draw.Crop(whole, 0, -legendWidth, 0, 0)) {
		rows[i].Draw(cells[0])
		row := tiles.At(whole, 0, i)
		rows[i].legend.Draw(draw.Crop(row, imageWidth-legendWidth+legendGap, 0, 0, -legendDrop))
	}
	_, err = canvas.WriteTo(w)
	return err
}
