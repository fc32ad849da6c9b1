package forecast

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/testkit"
)

func series(values ...float64) Series {
	return Series{Name: "us m IW-F", Step: time.Minute, Values: values}
}

// daily is days of a sine of a day with noise from a seed.
func daily(days int, noise float64, seed uint64) Series {
	r := rand.New(rand.NewPCG(seed, 1))
	values := make([]float64, days*1440)
	for i := range values {
		values[i] = max(0, 1000+600*math.Sin(2*math.Pi*float64(i)/1440)+noise*r.NormFloat64())
	}
	return series(values...)
}

func constant(n int, v float64) Series {
	values := make([]float64, n)
	for i := range values {
		values[i] = v
	}
	return series(values...)
}

// sound checks the guarantees of every forecast.
func sound(t interface{ Fatalf(string, ...any) }, name string, f Forecast, horizon int) {
	if len(f.Mean) != horizon || len(f.Lo90) != horizon || len(f.Hi90) != horizon {
		t.Fatalf("%s: %d/%d/%d steps of %d", name, len(f.Mean), len(f.Lo90), len(f.Hi90), horizon)
	}
	for h := range f.Mean {
		if !(0 <= f.Lo90[h] && f.Lo90[h] <= f.Mean[h] && f.Mean[h] <= f.Hi90[h] && f.Hi90[h] < math.Inf(1)) {
			t.Fatalf("%s: step %d: %g <= %g <= %g does not hold", name, h, f.Lo90[h], f.Mean[h], f.Hi90[h])
		}
	}
}

// For any series, a forecast is valid or an error names the series.
func TestForecastIsValidOrAnError(t *testing.T) {
	testkit.Slow(t)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{0, 1, 2, 7, 60, 61, 200, 400, 1500}).Draw(t, "n")
		step := rapid.SampledFrom([]time.Duration{time.Minute, 10 * time.Minute, time.Hour}).Draw(t, "step")
		shape := rapid.SampledFrom([]string{"zero", "constant", "noise", "holes", "unknown", "huge", "explodes", "negative", "infinite"}).Draw(t, "shape")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))
		s := Series{Name: "the series", Step: step, Values: make([]float64, n)}
		for i := range s.Values {
			s.Values[i] = shapes[shape](i, r)
		}
		horizon := rapid.IntRange(1, 90).Draw(t, "horizon")
		every := 4 // of all there are, or the slow ones would leave no time for many series
		for i := rapid.IntRange(0, every-1).Draw(t, "first"); i < len(Forecasters()); i += every {
			f := Forecasters()[i]
			fc, err := f.Forecast(s, horizon)
			if err != nil {
				if !strings.Contains(err.Error(), "the series") {
					t.Fatalf("%s: error does not name the series: %v", f.Name(), err)
				}
				continue
			}
			sound(t, f.Name(), fc, horizon)
		}
	})
}

var shapes = map[string]func(i int, r *rand.Rand) float64{
	"zero":     func(int, *rand.Rand) float64 { return 0 },
	"constant": func(int, *rand.Rand) float64 { return 42 },
	"noise":    func(_ int, r *rand.Rand) float64 { return r.ExpFloat64() * 100 },
	"holes": func(_ int, r *rand.Rand) float64 {
		if r.IntN(3) == 0 {
			return math.NaN()
		}
		return r.Float64()
	},
	"unknown":  func(int, *rand.Rand) float64 { return math.NaN() },
	"huge":     func(_ int, r *rand.Rand) float64 { return maxValue * r.Float64() },
	"explodes": func(i int, _ *rand.Rand) float64 { return math.Exp(float64(i)) },
	"negative": func(i int, _ *rand.Rand) float64 { return float64(-i) },
	"infinite": func(i int, _ *rand.Rand) float64 { return math.Inf(1) },
}

func TestErrors(t *testing.T) {
	for name, c := range map[string]struct {
		f       Forecaster
		s       Series
		horizon int
		want    string
	}{
		"empty":     {MovingAverage(), series(), 5, "forecasting us m IW-F: no known value in 0 steps"},
		"unknown":   {Auto(), series(math.NaN()), 5, "no known value in 1 steps"},
		"negative":  {Auto(), series(1, -2), 5, "value 1: must be 0 to 1e+18, got -2"},
		"horizon":   {Auto(), series(1), 0, "horizon: must be at least one step of 1m0s, got 0"},
		"step":      {Auto(), Series{Name: "x", Values: []float64{1}}, 1, "step: must be greater than 0"},
		"short day": {SeasonalNaive(), constant(90, 1), 5, "seasonal-naive requires 1 day of history, got 90 minutes"},
	} {
		if _, err := c.f.Forecast(c.s, c.horizon); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", name, err, c.want)
		}
	}
}

func TestShortHistoryIsReported(t *testing.T) {
	f, err := Auto().Forecast(constant(7, 30), 60)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(f.Assumed, "; ")
	want := "7 minutes of history is too short to compare forecasters: using moving-average; " +
		"only 7 minutes of history: assuming its mean for the next hour; " +
		"insufficient history of past forecasts for a prediction interval: using the spread of the last 7 minutes"
	if got != want || f.Mean[59] != 30 || f.Forecaster != "moving-average" {
		t.Fatalf("got %q with %v by %s", got, f.Mean[59], f.Forecaster)
	}
	one, err := Auto().Forecast(constant(1, 30), 60)
	if err != nil || !strings.HasSuffix(strings.Join(one.Assumed, "; "), "using 0 to twice the only known value") || one.Lo90[0] != 0 || one.Hi90[0] != 60 {
		t.Fatalf("%+v, %v", one, err)
	}
	late, err := MovingAverage().Forecast(series(4, 4, math.NaN(), math.NaN()), 1)
	if err != nil || !strings.Contains(strings.Join(late.Assumed, "; "), "no data yet for the most recent 2 minutes") || late.Mean[0] != 4 {
		t.Fatalf("%+v, %v", late, err)
	}
}

func TestPoints(t *testing.T) {
	if f, _ := MovingAverage().Forecast(series(10), 1); f.Lo90[0] != 0 || f.Hi90[0] != 20 {
		t.Errorf("of one value nothing is known: %+v", f)
	}
	if f, _ := MovingAverage().Forecast(constant(500, 10), 60); f.Lo90[0] != 10 || f.Hi90[59] != 10 {
		t.Errorf("a constant is certain: %g..%g", f.Lo90[0], f.Hi90[59])
	}
	s := thinned(daily(3, 0, 1), 10)
	f, err := SeasonalNaive().Forecast(s, 144)
	if err != nil {
		t.Fatal(err)
	}
	for h, m := range f.Mean {
		if m != s.Values[2*144+h] {
			t.Fatalf("step %d: %g is not the day before's %g", h, m, s.Values[2*144+h])
		}
	}
	hole := thinned(daily(3, 0, 1), 10)
	hole.Values[2*144+5] = math.NaN()
	if f, _ := SeasonalNaive().Forecast(hole, 10); f.Mean[5] != hole.Values[144+5] {
		t.Errorf("a hole is filled with %g, want the day before it, %g", f.Mean[5], hole.Values[144+5])
	}
	mean, hi := Forecast{Mean: []float64{1, 3, 2}, Hi90: []float64{2, 4, 9}}.ExpectedPeak()
	if mean != 3 || hi != 9 {
		t.Errorf("peak %g, %g", mean, hi)
	}
	// Past forecasts were too high: their peaks were lower than this forecast's first step.
	mean, hi = Forecast{Mean: []float64{5, 3}, Hi90: []float64{6, 4}, Peaks: Peaks{Mean: 3, P50: 3, P90: 4, P95: 4, P99: 4}}.ExpectedPeak()
	if mean != 5 || hi != 5 {
		t.Errorf("the peak %g, %g is less than the first step", mean, hi)
	}
}

// Forecasts of values four times as large are four times as large: nothing depends on the
// unit. (Roots of 4 are exact.)
func TestScale(t *testing.T) {
	a := thinned(tens(3, 50, wave), 2)
	b := Series{Name: a.Name, Step: a.Step, Values: make([]float64, len(a.Values))}
	for i, v := range a.Values {
		b.Values[i] = 4 * v
	}
	for _, f := range Forecasters() {
		fa, err := f.Forecast(a, 3)
		if err != nil {
			t.Fatal(err)
		}
		fb, err := f.Forecast(b, 3)
		if err != nil {
			t.Fatal(err)
		}
		for h := range fa.Mean {
			if math.Abs(fb.Mean[h]-4*fa.Mean[h]) > 1e-3 || math.Abs(fb.Hi90[h]-4*fa.Hi90[h]) > 1e-3 {
				t.Fatalf("%s step %d: %g and %g", f.Name(), h, fa.Mean[h], fb.Mean[h])
			}
		}
	}
}

// Auto favours the models with the lowest past errors, and reports that.
func TestAutoFavoursTheBestModels(t *testing.T) {
	for name, c := range map[string]struct {
		s        Series
		selected string // the model with the most weight
	}{
		"a strong day with a sharp edge": {edges(4), "seasonal-naive"},
		"a level shift":                  {shift(4), "damped-trend"},
	} {
		f, err := Auto().Forecast(c.s, 60)
		if err != nil || f.Forecaster != "auto" {
			t.Fatalf("%s: %v, model %q", name, err, f.Forecaster)
		}
		description, highest := f.Assumed[0], 0
		for _, part := range strings.Split(strings.TrimPrefix(description, "combined by past errors: "), ", ") {
			var share int
			var model string
			fmt.Sscanf(part, "%d %% %s", &share, &model)
			if model == c.selected {
				highest = share
			}
		}
		if highest < 25 {
			t.Errorf("%s: %s, want %s to lead", name, description, c.selected)
		}
	}
	if f, err := Auto().Forecast(constant(30, 5), 60); err != nil || f.Forecaster != "moving-average" {
		t.Errorf("too short to compare: %s, %v", f.Forecaster, err)
	}
}

// edges is a day of two levels with sudden ends.
func edges(days int) Series {
	s := constant(days*1440, 100)
	for i := range s.Values {
		if m := i % 1440 / 37; m%2 == 0 {
			s.Values[i] = 900
		}
	}
	return s
}

func noise(days int, seed uint64) Series {
	r := rand.New(rand.NewPCG(seed, 5))
	s := constant(days*1440, 0)
	for i := range s.Values {
		s.Values[i] = max(0, 1000+300*r.NormFloat64())
	}
	return s
}

func shift(days int) Series {
	s := constant(days*1440, 100)
	for i := range s.Values {
		s.Values[i] += float64(100 * (i / 1440))
	}
	return s
}

func TestBacktest(t *testing.T) {
	tick := time.Duration(0)
	forecasters := []Forecaster{MovingAverage(), SeasonalNaive(), Auto()}
	report, err := compareAll(tens(3, 60, wave), forecasters, 6, 54, func() time.Duration { tick += time.Millisecond; return tick })
	if err != nil {
		t.Fatal(err)
	}
	rows := report.Rows
	for i, name := range []string{"moving-average", "seasonal-naive", "auto"} {
		r := rows[i]
		if r.Forecaster != name || r.Windows != 6 || *r.FitMillis != 1 {
			t.Fatalf("row %d: %+v", i, r)
		}
		if *r.Coverage90 < 0.8 || *r.Coverage90 > 0.99 {
			t.Errorf("%s covers %.2f of what came, want about 0.90", name, *r.Coverage90)
		}
	}
	if *rows[1].WAPE >= *rows[0].WAPE || *rows[2].WAPE > *rows[0].WAPE {
		t.Errorf("on a strong day: average %.3f, seasonal %.3f, auto %.3f", *rows[0].WAPE, *rows[1].WAPE, *rows[2].WAPE)
	}
	if m := *rows[1].MASE; math.Abs(m-1) > 0.1 {
		t.Errorf("MASE of the very rule it is scaled by: %.3f", m)
	}
}

// The results of a case computed by hand: a level of 10, and one hour later 20, 0, unknown.
func TestBacktestFigures(t *testing.T) {
	s := constant(6, 10)
	copy(s.Values[3:], []float64{20, 0, math.NaN()})
	report, err := compareAll(s, []Forecaster{MovingAverage()}, 3, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := report.Rows[0]
	if *r.MAPE != 0.5 || *r.WAPE != 1 || *r.RMSE != 10 || *r.Coverage90 != 0 || r.MASE != nil || r.FitMillis != nil || r.Windows != 1 {
		t.Fatalf("mape %v wape %v rmse %v coverage %v mase %v fit %v windows %d", *r.MAPE, *r.WAPE, *r.RMSE, *r.Coverage90, r.MASE, r.FitMillis, r.Windows)
	}
}

func TestBacktestRejectsBadInput(t *testing.T) {
	for name, c := range map[string]struct {
		s             Series
		horizon, step int
	}{
		"no window": {series(1, 2), 60, 1}, "no step": {daily(2, 1, 1), 60, 0}, "no values": {series(), 1, 1},
	} {
		if _, err := compareAll(c.s, Forecasters(), c.horizon, c.step, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	report, err := compareAll(constant(100, 5), []Forecaster{SeasonalNaive()}, 10, 10, nil)
	if err != nil || report.Rows[0].Windows != 0 || report.Rows[0].MAPE != nil || report.Windows != 0 || report.Winner != nil {
		t.Fatalf("a model that cannot forecast shows no figures: %+v, %v", report, err)
	}
}

func TestByName(t *testing.T) {
	for _, f := range Forecasters() {
		if got, err := ForecasterByName(f.Name()); err != nil || got.Name() != f.Name() {
			t.Errorf("%s: %v", f.Name(), err)
		}
	}
	if _, err := ForecasterByName("oracle"); err == nil || !strings.Contains(err.Error(), "moving-average") {
		t.Errorf("unknown name: %v", err)
	}
}

func BenchmarkAutoWeek(b *testing.B) {
	s := daily(7, 60, 11)
	for b.Loop() {
		if _, err := Auto().Forecast(s, 60); err != nil {
			b.Fatal(err)
		}
	}
}

func TestShortDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "", time.Hour: "1h", 90 * time.Minute: "1h30m", 90 * time.Second: "1m30s", 10 * time.Second: "10s", 10 * time.Minute: "10m", 24 * time.Hour: "24h",
	} {
		if got := ShortDuration(d); got != want {
			t.Errorf("%d: %q, want %q", d, got, want)
		}
	}
}

// The weighted median is among its values, is the middle one of equal weights, and no value with
// most of the weight is far from it.
func TestWeightedMedian(t *testing.T) {
	for name, c := range map[string]struct {
		values []weighted
		want   float64
	}{
		"one":                 {[]weighted{{7, 0.2}}, 7},
		"two of equal weight": {[]weighted{{4, 1}, {2, 1}}, 3},
		"a heavier one":       {[]weighted{{0, 3}, {8, 1}}, 2},
		"three":               {[]weighted{{100, 1}, {1, 1}, {5, 1}}, 5},
		"an outlier":          {[]weighted{{1, 0.45}, {1e9, 0.1}, {1, 0.45}}, 1},
	} {
		if got := weightedMedian(c.values); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %g, want %g", name, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		values := make([]weighted, rapid.IntRange(1, 9).Draw(t, "n"))
		lowest, highest := math.Inf(1), math.Inf(-1)
		for i := range values {
			values[i] = weighted{rapid.Float64Range(0, 1e6).Draw(t, "value"), rapid.Float64Range(0.01, 1).Draw(t, "weight")}
			lowest, highest = min(lowest, values[i].value), max(highest, values[i].value)
		}
		if got := weightedMedian(values); got < lowest-1e-6 || got > highest+1e-6 {
			t.Fatalf("%g is outside %g to %g", got, lowest, highest)
		}
	})
}
