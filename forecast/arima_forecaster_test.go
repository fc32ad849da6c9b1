package forecast

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func arimaForecasters() []arimaForecaster {
	return []arimaForecaster{ARIMAForecaster().(arimaForecaster)}
}

// A model fitted once and rolled forward forecasts like the one that Forecast fits at the first
// origin, and uses nothing after any origin.
func TestRollUsesNothingAfterAnOrigin(t *testing.T) {
	s := daily(4, 60, 5)
	origins := []int{3 * 1440, 3*1440 + 7, 3*1440 + 400}
	for _, f := range arimaForecasters() {
		want, err := f.roll(s, origins, 60)
		if err != nil {
			t.Fatal(err)
		}
		first, err := f.Forecast(s.UpTo(origins[0]), 60)
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

// agreeing reports whether means are equal up to rounding: a roll may include more history before
// the first step that counts.
func agreeing(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(x, y float64) bool { return math.Abs(x-y) <= 1e-6*y })
}

// Models handle unusual histories.
func TestARIMAOfUnusualHistories(t *testing.T) {
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
		if fc, _ := f.Forecast(late, 60); !strings.Contains(strings.Join(fc.Assumed, ";"), "no data yet for the most recent 90 minutes") {
			t.Errorf("%s does not report that the end is unknown: %q", f.Name(), fc.Assumed)
		}
	}
}

func TestARIMAReportsWhatItRequires(t *testing.T) {
	for name, c := range map[string]struct {
		f    Forecaster
		s    Series
		want string
	}{
		"empty":        {ARIMAForecaster(), series(), "forecasting us m IW-F: no known value in 0 steps"},
		"two points":   {ARIMAForecaster(), series(1, 2), "forecasting us m IW-F: arima requires 20 known steps of 5m, got 0"},
		"mostly holes": {ARIMAForecaster(), holed(3 * 1440), "forecasting us m IW-F: arima requires 20 known steps of 5m, got 0"},
		"negative":     {ARIMAForecaster(), series(-1), "value 0: must be 0 to 1e+18, got -1"},
	} {
		if _, err := c.f.Forecast(c.s, 60); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if _, err := c.f.(arimaForecaster).roll(c.s, []int{len(c.s.Values)}, 60); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: roll: got %v, want %q", name, err, c.want)
		}
	}
}

// holed keeps one minute in ten and makes the others unknown.
func holed(n int) Series {
	s := constant(n, math.NaN())
	for i := 0; i < n; i += 10 {
		s.Values[i] = 3
	}
	return s
}

func TestCoarsen(t *testing.T) {
	nan := math.NaN()
	s := Series{Name: "x", Start: 100, Step: time.Minute, Values: []float64{9, 1, 3, nan, 4, nan, nan, nan, 6, 7, 8}}
	c := coarsen(s, 3*time.Minute, 10)
	if fmt.Sprint(c.Values) != "[3.5 NaN 7]" || c.skipped != 2 || c.size != 3 || c.Step != 3*time.Minute {
		t.Fatalf("%v, %d skipped, %d each of %s", c.Values, c.skipped, c.size, c.Step)
	}
	if got := coarsen(s, 3*time.Minute, 1); len(got.Values) != 1 || got.Values[0] != 7 {
		t.Errorf("the newest step alone: %v", got.Values)
	}
	if got := unblock([]float64{3, 6, 12}, c.size, 9); fmt.Sprint(got) != "[3 3 4 5 6 8 10 12 12]" {
		t.Errorf("spread as %v", got)
	}
	if got := coarsen(s, time.Second, 100); len(got.Values) != len(s.Values) || got.size != 1 {
		t.Errorf("a series that is coarser already is kept: %v", got.Values)
	}
}
