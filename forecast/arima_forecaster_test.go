package forecast

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func arimaForecasters() []arimaForecaster {
	return []arimaForecaster{ARIMAForecaster().(arimaForecaster), SARIMAForecaster().(arimaForecaster), ARIMAFourier().(arimaForecaster)}
}

// A model fitted once and rolled on forecasts as the one that Forecast fits at
// the first origin, and sees nothing from any origin on.
func TestRollSeesNothingAtOrAfterAnOrigin(t *testing.T) {
	s := daily(4, 60, 5)
	origins := []int{3 * 1440, 3*1440 + 7, 3*1440 + 400}
	for _, f := range arimaForecasters() {
		want, err := f.roll(s, origins, 60)
		if err != nil {
			t.Fatal(err)
		}
		first, err := f.Forecast(s.Upto(origins[0]), 60)
		if err != nil {
			t.Fatal(err)
		}
		if !agreeing(first.Mean, want[0].Mean) {
			t.Errorf("%s: the first rolled forecast is not that of Forecast", f.Name())
		}
		for i, o := range origins {
			other := s
			other.Values = slices.Clone(s.Values)
			for j := o; j < len(other.Values); j++ {
				other.Values[j] = 1e5
			}
			got, err := f.roll(other, origins[:i+1], 60)
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(got[i].Mean) != fmt.Sprint(want[i].Mean) {
				t.Errorf("%s: the forecast at %d depends on what came after", f.Name(), o)
			}
		}
	}
	if got, err := arimaForecasters()[0].roll(s, nil, 60); got != nil || err != nil {
		t.Errorf("no origin: %v, %v", got, err)
	}
}

// agreeing reports whether means are the same but for rounding: a roll may have
// more of the past before the first step that counts.
func agreeing(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(x, y float64) bool { return math.Abs(x-y) <= 1e-6*y })
}

// What a model must make of histories that no textbook has.
func TestARIMAOfOddHistories(t *testing.T) {
	gap := daily(4, 30, 2)
	for i := 1440; i < 2*1440; i++ {
		gap.Values[i] = math.NaN()
	}
	late := daily(3, 30, 2)
	for i := len(late.Values) - 90; i < len(late.Values); i++ {
		late.Values[i] = math.NaN()
	}
	steep := constant(3*1440, 0)
	for i := range steep.Values {
		steep.Values[i] = math.Exp(float64(i) / 110)
	}
	sparse := constant(3*1440, 0)
	for i := 0; i < len(sparse.Values); i += 97 {
		sparse.Values[i] = 5e5
	}
	for name, s := range map[string]Series{
		"a day missing": gap, "the last hour and a half unknown": late, "growing without end": steep, "a spike now and then": sparse,
		"constant": constant(3*1440, 42), "zero": constant(3*1440, 0), "huge": constant(3*1440, maxValue),
	} {
		for _, f := range arimaForecasters() {
			fc, err := f.Forecast(thinned(s, 5), 18)
			if err != nil {
				t.Errorf("%s of %s: %v", f.Name(), name, err)
				continue
			}
			sound(t, f.Name()+" of "+name, fc, 18)
		}
	}
	for _, f := range arimaForecasters() {
		fc, _ := f.Forecast(constant(3*1440, 42), 60)
		if math.Abs(fc.Mean[59]-42) > 1e-6 || fc.Hi90[59]-fc.Lo90[59] > 1e-6 {
			t.Errorf("%s of a constant: %g, %g to %g", f.Name(), fc.Mean[59], fc.Lo90[59], fc.Hi90[59])
		}
		if fc, _ := f.Forecast(late, 60); !strings.Contains(strings.Join(fc.Assumed, ";"), "nothing is known of the last 90 minutes") {
			t.Errorf("%s does not say that the end is unknown: %q", f.Name(), fc.Assumed)
		}
	}
	fc, _ := SARIMAForecaster().Forecast(gap, 60)
	if !strings.Contains(strings.Join(fc.Assumed, ";"), "1 day are unknown: what came at the same time of another day is assumed") {
		t.Errorf("sarima does not say that it filled a day: %q", fc.Assumed)
	}
}

func TestARIMASaysWhatItNeeds(t *testing.T) {
	for name, c := range map[string]struct {
		f    Forecaster
		s    Series
		want string
	}{
		"empty":        {ARIMAForecaster(), series(), "forecasting us m IW-F: no known value in 0 steps"},
		"two points":   {ARIMAForecaster(), series(1, 2), "forecasting us m IW-F: arima needs 20 known steps of 5m, got 0"},
		"half a day":   {ARIMAFourier(), constant(720, 3), "forecasting us m IW-F: arima-fourier needs 1 day of history, got 12 hours"},
		"one day":      {SARIMAForecaster(), constant(1440, 3), "forecasting us m IW-F: sarima needs 49 hours of history, got 1 day"},
		"mostly holes": {ARIMAFourier(), holed(3 * 1440), "forecasting us m IW-F: arima-fourier needs 20 known steps of 10m, got 0"},
		"negative":     {SARIMAForecaster(), series(-1), "value 0: want 0 to 1e+18, got -1"},
	} {
		if _, err := c.f.Forecast(c.s, 60); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if _, err := c.f.(arimaForecaster).roll(c.s, []int{len(c.s.Values)}, 60); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: roll: got %v, want %q", name, err, c.want)
		}
	}
}

// holed knows one minute in ten.
func holed(n int) Series {
	s := constant(n, math.NaN())
	for i := 0; i < n; i += 10 {
		s.Values[i] = 3
	}
	return s
}

// On a strong day the seasonal models are near the truth where the plain one
// cannot be, and their intervals hold about nine values of ten.
func TestSeasonalModelsFollowTheDay(t *testing.T) {
	s := thinned(tens(5, 40, wave), 2)
	rows, err := Backtest(s, []Forecaster{ARIMAForecaster(), SARIMAForecaster(), ARIMAFourier()}, 12, 36, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows[1:] {
		if *r.WAPE > 0.06 || *r.WAPE > *rows[0].WAPE {
			t.Errorf("%s: WAPE %.3f, arima has %.3f", r.Forecaster, *r.WAPE, *rows[0].WAPE)
		}
		if *r.Coverage90 < 0.8 || *r.Coverage90 > 0.97 {
			t.Errorf("%s covers %.2f", r.Forecaster, *r.Coverage90)
		}
	}
}

// Two weeks show that Saturdays are quiet; the weekly terms carry it over.
func TestWeeklyTermsComeWithTwoWeeks(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	s := Series{Name: "weeks", Step: 10 * time.Minute, Values: make([]float64, 15*144)}
	for i := range s.Values {
		level := 1000.0 + 300*math.Sin(2*math.Pi*float64(i)/144) + 400*math.Cos(2*math.Pi*float64(i)/1008)
		s.Values[i] = level + 20*r.NormFloat64()
	}
	f := ARIMAFourier().(arimaForecaster)
	for days, want := range map[int]int{13: 1, 14: 2} {
		m, err := f.fit(s.Upto(days*144), 6)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.seasons) != want {
			t.Errorf("%d days: %d seasons, want %d", days, len(m.seasons), want)
		}
	}
	fc, err := f.Forecast(s.Upto(14*144), 144)
	if err != nil {
		t.Fatal(err)
	}
	for h, v := range fc.Mean {
		if want := s.Values[14*144+h]; math.Abs(v-want) > 150 {
			t.Errorf("step %d: %g, came %g", h, v, want)
		}
	}
}

// AICc keeps the terms that are there and drops those that are not.
func TestTermsAreChosenByAICc(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	y := make([]float64, 5*144)
	at := func(i int) float64 { return float64(10 * i) }
	for i := range y {
		angle := 2 * math.Pi * float64(i) / 144
		y[i] = 50 + 10*math.Sin(angle) + 6*math.Cos(3*angle) + r.NormFloat64()
	}
	m, kept, err := fitFourier(y, []season{{1440, 6}}, at)
	if err != nil {
		t.Fatal(err)
	}
	if kept[0].terms != 3 || len(m.Beta) != 6 {
		t.Fatalf("%d terms with %d coefficients, want 3", kept[0].terms, len(m.Beta))
	}
	for i, want := range []float64{10, 0, 0, 0, 0, 6} {
		if math.Abs(m.Beta[i]-want) > 0.5 {
			t.Errorf("coefficient %d is %g, want %g", i, m.Beta[i], want)
		}
	}
}

func TestCoarsen(t *testing.T) {
	nan := math.NaN()
	s := Series{Name: "x", Start: 100, Step: time.Minute, Values: []float64{9, 1, 3, nan, 4, nan, nan, nan, 6, 7, 8}}
	c := coarsen(s, 3*time.Minute, 10)
	if fmt.Sprint(c.Values) != "[3.5 NaN 7]" || c.skipped != 2 || c.each != 3 || c.Step != 3*time.Minute {
		t.Fatalf("%v, %d skipped, %d each of %s", c.Values, c.skipped, c.each, c.Step)
	}
	if got := c.middle(1); got != 106.5 {
		t.Errorf("middle at %g, want 106.5", got)
	}
	if got := coarsen(s, 3*time.Minute, 1); len(got.Values) != 1 || got.Values[0] != 7 {
		t.Errorf("the newest step alone: %v", got.Values)
	}
	if got := c.fine([]float64{3, 6, 12}, 9); fmt.Sprint(got) != "[3 3 4 5 6 8 10 12 12]" {
		t.Errorf("spread as %v", got)
	}
	if got := coarsen(s, time.Second, 100); len(got.Values) != len(s.Values) || got.each != 1 {
		t.Errorf("a series that is coarser already is kept: %v", got.Values)
	}
}

func TestFillSeason(t *testing.T) {
	nan := math.NaN()
	values := []float64{nan, 2, nan, 4, 5, nan, nan, 8, nan}
	if n := fillSeason(values, 3); n != 5 || fmt.Sprint(values) != "[4 2 3 4 5 4.5 4 8 8]" {
		t.Errorf("%d filled: %v", n, values)
	}
}
