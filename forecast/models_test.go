package forecast

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/testkit"
)

// tens is days of ten-minute steps of a shape with noise.
func tens(days int, noise float64, shape func(i int) float64) Series {
	r := rand.New(rand.NewPCG(3, 7))
	s := Series{Name: "us m IW-F", Step: 10 * time.Minute, Values: make([]float64, days*144)}
	for i := range s.Values {
		s.Values[i] = max(0, shape(i)+noise*r.NormFloat64())
	}
	return s
}

func wave(i int) float64 { return 1000 + 600*math.Sin(2*math.Pi*float64(i)/144) }

// Unusual series: every model makes a valid forecast of them, and gaps do not distort any of them
// much.
func TestHardSeries(t *testing.T) {
	testkit.Slow(t)
	day := func(i int) int { return i / 144 }
	for name, c := range map[string]struct {
		s        Series
		from, to float64 // where the next hour's means must lie
	}{
		"a day is missing":        {tens(3, 20, func(i int) float64 { return ifElse(day(i) == 1, math.NaN(), wave(i)) }), 500, 1700},
		"the last day is missing": {tens(4, 20, func(i int) float64 { return ifElse(day(i) == 3, math.NaN(), wave(i)) }), 0, 2500},
		"the clocks change":       {tens(3, 20, func(i int) float64 { return ifElse(day(i) < 2, wave(i), wave(i+6)) }), 500, 1700},
		"constant":                {tens(3, 0, func(int) float64 { return 7 }), 6.9, 7.1},
		"all zero":                {tens(3, 0, func(int) float64 { return 0 }), 0, 0},
		"it explodes":             {tens(3, 0, func(i int) float64 { return math.Exp(float64(i) / 20) }), 0, 4 * math.Exp(432.0/20)},
		"nothing, then a lot":     {tens(3, 0, func(i int) float64 { return ifElse(i < 426, 0, 1e6) }), 0, 4e6},
		"a single value":          {tens(3, 0, func(i int) float64 { return ifElse(i == 5, 3, math.NaN()) }), 0, 12},
		"zero at night":           {tens(3, 10, func(i int) float64 { return ifElse(i%144 < 72, 0, wave(i)) }), 0, 2000},
	} {
		s := thinned(c.s, 3)
		for _, f := range Forecasters() {
			fc, err := f.Forecast(s, 6)
			if err != nil {
				if !strings.Contains(err.Error(), s.Name) {
					t.Errorf("%s: %s: %v does not name the series", name, f.Name(), err)
				}
				continue
			}
			sound(t, name+": "+f.Name(), fc, 6)
			if lo, hi := slices.Min(fc.Mean), slices.Max(fc.Mean); lo < c.from || hi > c.to {
				t.Errorf("%s: %s forecasts %.4g to %.4g, want within %g to %g", name, f.Name(), lo, hi, c.from, c.to)
			}
			p := fc.Peaks
			if q := []float64{0, p.P05, p.P50, p.P90, p.P95, p.P99}; !slices.IsSorted(q) || math.IsNaN(p.Mean) || math.IsInf(p.P99, 0) {
				t.Errorf("%s: %s: peaks %+v", name, f.Name(), p)
			}
		}
	}
}

// thinned is every k-th value of a series: the same shape for less work.
func thinned(s Series, k int) Series {
	out := Series{Name: s.Name, Step: time.Duration(k) * s.Step}
	for i := k - 1; i < len(s.Values); i += k {
		out.Values = append(out.Values, s.Values[i])
	}
	return out
}

func ifElse(c bool, a, b float64) float64 {
	if c {
		return a
	}
	return b
}

// The same series yields the same forecast, to the bit.
func TestDeterministic(t *testing.T) {
	s := thinned(tens(4, 100, wave), 3)
	for _, f := range Forecasters() {
		a, errA := f.Forecast(s, 6)
		b, errB := f.Forecast(s, 6)
		if errA != nil || errB != nil || !slices.Equal(a.Mean, b.Mean) || !slices.Equal(a.Hi90, b.Hi90) || a.Peaks != b.Peaks {
			t.Errorf("%s: %v and %v (%v, %v)", f.Name(), a, b, errA, errB)
		}
	}
}

// The purpose of each model: the mean relative error over the next hour on a series of its kind.
func TestModelsForecastTheirOwnProcess(t *testing.T) {
	half := func(i int) float64 { return wave(i) * (1 + float64(i/144)/4) } // a level that grows by day
	for name, c := range map[string]struct {
		f        Forecaster
		s        Series
		truth    func(i int) float64
		maxError float64
	}{
		"a profile follows the level": {SeasonalProfile(), tens(5, 10, half), half, 0.1},
		"a damped trend climbs":       {DampedTrend(), tens(2, 1, func(i int) float64 { return 100 + 20*float64(i) }), func(i int) float64 { return 100 + 20*float64(i) }, 0.03},
		"HAR knows how days go on":    {HAR(), tens(7, 10, wave), wave, 0.05},
		"TVAR swings on":              {TVAR(), tens(2, 1, func(i int) float64 { return 1000 + 500*math.Sin(float64(i)/2) }), func(i int) float64 { return 1000 + 500*math.Sin(float64(i)/2) }, 0.2},
	} {
		fc, err := c.f.Forecast(c.s, 6)
		if err != nil {
			t.Fatal(err)
		}
		var off, all float64
		for h, m := range fc.Mean {
			want := c.truth(len(c.s.Values) + h)
			off += math.Abs(m - want)
			all += want
		}
		if off/all > c.maxError {
			t.Errorf("%s: %.3f off, want at most %.3f", name, off/all, c.maxError)
		}
	}
}

// A chain fitted to the output of a chain finds its states and their durations.
func TestHMMFindsStates(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	x, state := make([]float64, 3000), 0
	for i := range x {
		if r.Float64() < 0.05 {
			state = 1 - state
		}
		x[i] = 3*float64(state) + 0.5*r.NormFloat64()
		if i%50 == 7 {
			x[i] = math.NaN()
		}
	}
	c, likelihood := fitChain(x, 2)
	if math.Abs(c.mean[0]) > 0.1 || math.Abs(c.mean[1]-3) > 0.1 || math.Abs(c.dev[0]-0.5) > 0.05 {
		t.Errorf("means %v, deviations %v", c.mean, c.dev)
	}
	if stay := c.transitions[0][0]; math.Abs(stay-0.95) > 0.02 {
		t.Errorf("stays with %g, want 0.95", stay)
	}
	if _, one := fitChain(x, 1); one > likelihood {
		t.Errorf("one state is likelier than two: %g, %g", one, likelihood)
	}
	if c, _ := fitChain([]float64{1, 2, 3}, 2); len(c.start) != 0 {
		t.Errorf("three values have no chain: %+v", c)
	}
}

// Each step of Baum-Welch increases the likelihood.
func TestBaumWelchImproves(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	x := make([]float64, 400)
	for i := range x {
		x[i] = r.NormFloat64() + float64(i/100%2)*2
	}
	c := startChain(slices.Sorted(slices.Values(x)), 3)
	last := math.Inf(-1)
	for range 20 {
		likelihood := c.baumWelchStep(x)
		if likelihood < last-0.1 { // a little is lost to moves that must stay possible
			t.Fatalf("%g after %g", likelihood, last)
		}
		last = likelihood
	}
}

// Burg's method finds an autoregression, and none in noise.
func TestBurg(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	x := make([]float64, 4000)
	for i := 2; i < len(x); i++ {
		x[i] = 1.2*x[i-1] - 0.5*x[i-2] + r.NormFloat64()
	}
	phi := burg(x, 6)
	if len(phi) < 2 || math.Abs(phi[0]-1.2) > 0.05 || math.Abs(phi[1]+0.5) > 0.05 {
		t.Errorf("coefficients %v, want 1.2 and -0.5", phi)
	}
	if phi := burg(make([]float64, 50), 4); phi != nil {
		t.Errorf("nothing varies, yet %v", phi)
	}
}

// Ridge regression solves the regularised normal equations.
func TestSolveRidge(t *testing.T) {
	var xx [harTerms][harTerms]float64
	var xy, want [harTerms]float64
	for i := range xx {
		want[i] = float64(i) - 3
		for j := 0; j <= i; j++ {
			xx[i][j] = 1 / float64(1+i+j)
		}
	}
	for i := range xx {
		for j := range xx {
			xy[i] += xx[max(i, j)][min(i, j)] * want[j]
		}
		xy[i] += 0.5 * want[i]
	}
	got := solveRidge(&xx, &xy, 0.5)
	for i := range got {
		if math.Abs(got[i]-want[i]) > 1e-9 {
			t.Errorf("coefficient %d: %g, want %g", i, got[i], want[i])
		}
	}
}

func BenchmarkForecasters(b *testing.B) {
	s := daily(7, 60, 11)
	for _, f := range Forecasters() {
		b.Run(f.Name(), func(b *testing.B) {
			for b.Loop() {
				if _, err := f.Forecast(s, 60); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
