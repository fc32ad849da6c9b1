package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image/png"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/tui"
)

// Every job runs once. The error is that of the failed job with the lowest index, in whatever order
// jobs end.
func TestInParallel(t *testing.T) {
	var worked [50]atomic.Int32
	err := inParallel(t.Context(), len(worked), func(i int) error {
		worked[i].Add(1)
		if i%20 == 7 {
			return fmt.Errorf("piece %d", i)
		}
		return nil
	}, newProgress(&bytes.Buffer{}, "working", "jobs"))
	if err == nil || err.Error() != "piece 7" {
		t.Errorf("error %v", err)
	}
	for i := range worked {
		if n := worked[i].Load(); n != 1 {
			t.Errorf("job %d ran %d times", i, n)
		}
	}
	if err := inParallel(t.Context(), 0, nil, newProgress(&bytes.Buffer{}, "", "")); err != nil {
		t.Error(err)
	}
}

// An interrupt ends the work while a job still runs. No progress is drawn where there is no terminal.
func TestInParallelStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var errOut bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(15*time.Second, cancel)
		over := make(chan struct{})
		err := inParallel(ctx, 3, func(i int) error {
			if i == 2 {
				return nil
			}
			<-over
			return nil
		}, newProgress(&errOut, "backtesting", "series"))
		close(over)
		if !errors.Is(err, context.Canceled) || errOut.Len() > 0 {
			t.Errorf("%v, %q", err, errOut.String())
		}
	})
}

// An interrupted forecast exits with code 130.
func TestForecastIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errOut bytes.Buffer
	o := forecastOptions{history: "http://127.0.0.1:1", horizon: time.Hour, originStep: time.Hour, list: outputFlags{output: "table"}}
	if code := report(ctx, &errOut, runForecast(ctx, &o, &out, &errOut)); code != exitInterrupted || errOut.String() != "interrupted\n" || out.Len() > 0 {
		t.Errorf("exit code %d, %q, %q", code, &errOut, &out)
	}
}

// A forecast that cannot be drawn keeps the file of --out.
func TestForecastKeepsItsFileOnFailure(t *testing.T) {
	o := forecastOptions{file: filepath.Join(t.TempDir(), "old.svg")}
	write(t, o.file, "old")
	failure := errors.New("too many series")
	err := o.writeOutput(io.Discard, func(w io.Writer) error {
		_, _ = io.WriteString(w, "<svg")
		return failure
	})
	if text, readErr := os.ReadFile(o.file); !errors.Is(err, failure) || readErr != nil || string(text) != "old" {
		t.Errorf("got %v, the file contains %q (%v)", err, text, readErr)
	}
	if err := o.writeOutput(io.Discard, func(w io.Writer) error { _, err := io.WriteString(w, "new"); return err }); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(o.file); err != nil || string(text) != "new" {
		t.Errorf("then %q (%v)", text, err)
	}
}

// The hint about an unknown value says how many values it omits.
func TestForecastCountsOmittedValues(t *testing.T) {
	var all []forecast.KeyedSeries
	for i := range 13 {
		all = append(all, forecast.KeyedSeries{SeriesKey: forecast.SeriesKey{Model: fmt.Sprintf("m%02d", i)}})
	}
	for n, want := range map[int]string{13: "m08, m09 and 3 more", 11: "m08, m09 and 1 more", 10: "m08, m09"} {
		var coded *exitError
		if err := (&forecastOptions{models: []string{"something else"}}).checkValues(all[:n]); !errors.As(err, &coded) || !strings.HasSuffix(coded.hint, want) {
			t.Errorf("%d models: got %#v, want %q", n, err, want)
		}
	}
}

// aSeries returns a series with one forecast; some of its values may be unknown.
func aSeries(values []float64, horizon int) forecastedSeries {
	k := forecast.KeyedSeries{SeriesKey: forecast.SeriesKey{Region: "us", Model: "m", Tier: "IW-F"}}
	k.Series = forecast.Series{Name: k.SeriesKey.String(), Unit: forecast.PromptTokens, Step: time.Minute, Values: values}
	fc := forecast.Forecast{Forecaster: "x"}
	for h := range horizon {
		fc.Mean, fc.Lo90, fc.Hi90 = append(fc.Mean, float64(h)), append(fc.Lo90, 0), append(fc.Hi90, float64(2*h))
	}
	return forecastedSeries{KeyedSeries: k, forecasts: []forecast.Forecast{fc}, names: []string{"x"}}
}

// Any series can be drawn within the terminal's width, in ASCII if requested.
func TestPlotsAcceptAnySeries(t *testing.T) {
	ascii, err := tui.NewTheme(tui.ThemeAuto, true)
	if err != nil {
		t.Fatal(err)
	}
	ascii = ascii.Plain()
	random := rand.New(rand.NewPCG(1, 2)) // not rapid: its start would delay every process of this test binary by 3 ms
	for range 100 {
		values := make([]float64, random.IntN(201))
		for i := range values {
			values[i] = []float64{0, math.NaN(), math.Pow(10, 18*random.Float64())}[random.IntN(3)]
		}
		width := minWidth + random.IntN(201-minWidth)
		text := terminalPlot(newPlotData(aSeries(values, 1+random.IntN(90))), width, ascii)
		for _, line := range strings.Split(text, "\n") {
			if len(line) > width && !strings.HasPrefix(line, "#") {
				t.Fatalf("%d columns of %d: %q", len(line), width, line)
			}
		}
		if strings.ContainsFunc(text, func(r rune) bool { return r > 126 }) || strings.Contains(text, "\x1b") {
			t.Fatalf("not ASCII:\n%s", text)
		}
	}
	for name, d := range map[string]forecastedSeries{
		"usual": aSeries([]float64{1, 2, math.NaN(), 4}, 3), "nothing known": aSeries([]float64{math.NaN()}, 1), "all zero": aSeries([]float64{0, 0}, 1),
	} {
		var first, again, image bytes.Buffer
		if err := plotForecasts(&first, "svg", []forecastedSeries{d, d}); err != nil || !strings.Contains(first.String(), "us m fast") {
			t.Errorf("%s: %v", name, err)
		}
		if err := plotForecasts(&again, "svg", []forecastedSeries{d, d}); err != nil || !bytes.Equal(first.Bytes(), again.Bytes()) {
			t.Errorf("%s: the same series yields another image, %v", name, err)
		}
		if err := plotForecasts(&image, "png", []forecastedSeries{d}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := png.Decode(&image); err != nil {
			t.Errorf("%s: no image: %v", name, err)
		}
	}
	many := make([]forecastedSeries, maxSeriesOnImage+1)
	for i := range many {
		many[i] = aSeries([]float64{1}, 1)
	}
	if err := plotForecasts(&bytes.Buffer{}, "svg", many); err == nil || !strings.Contains(err.Error(), "at most 40 series, got 41") {
		t.Errorf("too many series: %v", err)
	}
}

// The time axis ends at the end of the forecast. The legend is beside it and lists all forecasters.
func TestTimeAxisEndsWithTheForecast(t *testing.T) {
	d := aSeries([]float64{1, 2, 3, 4}, 3)
	for i := range forecast.Forecasters() {
		d.forecasts, d.names = append(d.forecasts, d.forecasts[0]), append(d.names, fmt.Sprint(i))
	}
	p, err := forecastPlot(d)
	if err != nil {
		t.Fatal(err)
	}
	if last := float64(d.At(6).Unix()); p.X.Max != last {
		t.Errorf("the axis ends at %g, the last step of the forecast is at %g", p.X.Max, last)
	}
	if size := p.legend.Rectangle(draw.New(vgimg.New(legendWidth, imageHeight))).Size(); size.Y > imageHeight-legendDrop || size.X > legendWidth-legendGap {
		t.Errorf("the legend needs %v, it has %v by %v", size, legendWidth-legendGap, imageHeight-legendDrop)
	}
}

// Lines are distinguishable without colour, and colour can be disabled.
func TestColourOfPlots(t *testing.T) {
	c := newPlotData(aSeries([]float64{1, 2, 3, 4}, 4))
	theme, err := tui.NewTheme(tui.ThemeAuto, false)
	if err != nil {
		t.Fatal(err)
	}
	plain, coloured := terminalPlot(c, 80, theme.Plain()), terminalPlot(c, 80, theme)
	if strings.Contains(plain, "\x1b") || !strings.Contains(coloured, "\x1b") {
		t.Error("colours do not match the settings")
	}
	for _, mark := range []string{"•", "█"} {
		if !strings.Contains(plain, mark) {
			t.Errorf("no %s:\n%s", mark, plain)
		}
	}
}

func TestTimeTicks(t *testing.T) {
	day := 86400.0
	for _, c := range []struct {
		from, to float64
		want     string
	}{
		{60, 8 * 3600, "Jan 1\n01:00"},
		{0, 60 * day, "Jan 1\n00:00"},
	} {
		ticks := timeTicks(c.from, c.to)
		if len(ticks) == 0 || len(ticks) > maxTicks+1 || ticks[0].Label != c.want {
			t.Errorf("%g to %g: %v", c.from, c.to, ticks)
		}
	}
}

// Each assumption is printed once, with the forecasts that it is about.
func TestForecastNotes(t *testing.T) {
	in := func(region service.Region, assumed ...string) forecastedSeries {
		s := aSeries([]float64{1, 2}, 1)
		s.Region, s.forecasts[0].Assumed = region, assumed
		return s
	}
	for name, tt := range map[string]struct {
		results []forecastedSeries
		want    string
	}{
		"one":        {[]forecastedSeries{in("us", "a")}, "\nAssumed:\n  - us m fast, x: a\n"},
		"everywhere": {[]forecastedSeries{in("us", "a", "b"), in("eu", "a")}, "\nAssumed:\n  - all forecasts: a\n  - us m fast, x: b\n"},
		"some":       {[]forecastedSeries{in("us", "a"), in("eu", "a"), in("asia")}, "\nAssumed:\n  - us m fast, x; eu m fast, x: a\n"},
		"none":       {[]forecastedSeries{in("us")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := writeForecastNotes(&out, tt.results); err != nil || out.String() != tt.want {
				t.Errorf("got %q, %v, want %q", &out, err, tt.want)
			}
		})
	}
}
