package forecast

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestFitARIMARejectsBadInput(t *testing.T) {
	ramp, twice := make([]float64, 50), make([]float64, 50)
	for i := range ramp {
		ramp[i], twice[i] = float64(i), 2*float64(i)
	}
	y := minutes(50, 2)
	for name, c := range map[string]struct {
		y    []float64
		spec ARIMASpec
		want string
	}{
		"a negative order":     {y, ARIMASpec{ARIMAOrder: ARIMAOrder{P: -1}}, "order: must not be negative, got -1"},
		"no season":            {y, ARIMASpec{ARIMAOrder: ARIMAOrder{SP: 1}}, "season: a seasonal order requires a season of at least 2 steps, got 0"},
		"two differences":      {y, ARIMASpec{ARIMAOrder: ARIMAOrder{D: 2}, Constant: true}, "constant: must have at most one difference, got 2"},
		"a short regressor":    {y, ARIMASpec{X: [][]float64{ramp[1:]}}, "regressor 0: must have 50 values, got 49"},
		"an unknown regressor": {[]float64{1, 2}, ARIMASpec{X: [][]float64{{1, math.NaN()}}}, "regressor 0: value 1: must be a number, got NaN"},
		"twice the same":       {y, ARIMASpec{ARIMAOrder: ARIMAOrder{P: 1}, X: [][]float64{ramp, twice}}, "regressors: must be linearly independent"},
		"few values":           {[]float64{1, 2, math.NaN(), 3}, ARIMASpec{ARIMAOrder: ARIMAOrder{P: 2, D: 1}}, "fitting ARIMA(2,1,0): must have at least 4 known values, got 3"},
		"a drift of a drift":   {y, ARIMASpec{ARIMAOrder: ARIMAOrder{D: 1}, Constant: true, X: [][]float64{ramp}}, "regressors: must be linearly independent"},
	} {
		if _, err := FitARIMA(c.y, c.spec); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if _, err := AutoARIMA([]float64{math.NaN()}, 0, 2, nil); err == nil || !strings.Contains(err.Error(), "no known value in 1") {
		t.Errorf("nothing known: %v", err)
	}
	if _, err := AutoARIMA(y, 0, 2, [][]float64{ramp, twice}); err == nil || !strings.Contains(err.Error(), "regressors: must be linearly independent") {
		t.Errorf("dependent regressors: %v", err)
	}
}

func TestPredictRejectsBadInput(t *testing.T) {
	y := minutes(60, 3)
	m, err := FitARIMA(y, ARIMASpec{ARIMAOrder: ARIMAOrder{P: 1}, X: [][]float64{minutes(60, 4)}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		horizon int
		x       [][]float64
		want    string
	}{
		"no horizon":   {0, nil, "horizon: must be at least 1, got 0"},
		"no regressor": {3, nil, "must have 1 regressors, got 0"},
		"too short":    {3, [][]float64{{1, 2}}, "regressor 0: must have 3 values, got 2"},
	} {
		if _, _, err := m.Predict(c.horizon, c.x); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// A series times a factor has the same coefficients, and its forecasts are multiplied by the
// factor; two fits to the same values are identical to the last bit.
func TestFitsDoNotDependOnTheUnit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		y := minutes(120, rapid.Uint64().Draw(t, "seed"))
		factor := rapid.SampledFrom([]float64{0.125, 1, 1024}).Draw(t, "factor")
		spec := ARIMASpec{ARIMAOrder: ARIMAOrder{P: rapid.IntRange(0, 2).Draw(t, "p"), D: rapid.IntRange(0, 1).Draw(t, "d"), Q: rapid.IntRange(0, 2).Draw(t, "q")}}
		spec.Constant = rapid.Bool().Draw(t, "constant")
		scaled := make([]float64, len(y))
		for i, v := range y {
			scaled[i] = factor * v
		}
		a, err := FitARIMA(y, spec)
		if err != nil {
			t.Fatal(err)
		}
		b, err := FitARIMA(scaled, spec)
		if err != nil {
			t.Fatal(err)
		}
		ma, sa, _ := a.Predict(10, nil)
		mb, sb, _ := b.Predict(10, nil)
		for h := range ma {
			if mb[h] != factor*ma[h] || sb[h] != factor*sa[h] {
				t.Fatalf("step %d: %g +- %g of %g times the series, want %g +- %g", h, mb[h], sb[h], factor, factor*ma[h], factor*sa[h])
			}
		}
	})
}

// For any order and series, forecasts are numbers and standard errors of a differenced process do
// not shrink.
func TestFitsAreValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		y := minutes(rapid.IntRange(1, 50).Draw(t, "n"), rapid.Uint64().Draw(t, "seed"))
		for i := range y {
			if rapid.IntRange(0, 9).Draw(t, "kind") == 0 {
				y[i] = rapid.SampledFrom([]float64{math.NaN(), 0, 1e9}).Draw(t, "value")
			}
		}
		n := func(name string, maximum int) int { return rapid.IntRange(0, maximum).Draw(t, name) }
		spec := ARIMASpec{ARIMAOrder: ARIMAOrder{P: n("p", 3), D: n("d", 2), Q: n("q", 3), SP: n("P", 1), SD: n("D", 1), SQ: n("Q", 1), Season: 6}}
		spec.Constant = spec.D+spec.SD < 2
		m, err := FitARIMA(y, spec)
		if err != nil {
			return
		}
		mean, se, err := m.Predict(12, nil)
		if err != nil {
			t.Fatal(err)
		}
		for h := range mean {
			if math.IsNaN(mean[h]) || math.IsInf(mean[h], 0) || !(se[h] >= 0) || math.IsInf(se[h], 0) {
				t.Fatalf("%s: step %d: %g +- %g", m, h, mean[h], se[h])
			}
			if h > 0 && spec.D > 0 && spec.SD == 0 && spec.SP == 0 && spec.P == 0 && spec.SQ == 0 && spec.Q == 0 && se[h] < se[h-1] {
				t.Fatalf("%s: standard errors shrink at %d: %g after %g", m, h, se[h], se[h-1])
			}
		}
	})
}

func TestKPSS(t *testing.T) {
	for name, c := range map[string]struct {
		values []float64
		want   int
	}{
		"nothing":       {nil, 0},
		"a constant":    {[]float64{3, 3, 3, 3}, 0},
		"one value":     {[]float64{3}, 0},
		"a line":        {[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 1},
		"back and on":   {[]float64{1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2}, 0},
		"an unknown":    {[]float64{1, math.NaN(), 1, 2, 1, 2, 1, 2}, 0},
		"a square line": {squares(40), 2},
	} {
		if got := differences(c.values, 2); got != c.want {
			t.Errorf("%s: %d differences, want %d", name, got, c.want)
		}
	}
}

func squares(n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = float64(i * i)
	}
	return out
}

func TestSeasonStrength(t *testing.T) {
	for name, c := range map[string]struct {
		s        Series
		lo, high float64
	}{
		"nothing but season": {daily(4, 0, 1), 0.99, 1},
		"nothing but noise":  {noise(4, 1), 0, 0.4},
		"constant":           {constant(4*1440, 7), 0, 0},
		"too short":          {daily(2, 0, 1), 0, 0},
	} {
		values := coarsen(c.s, 15*time.Minute, 1000).Values
		if got := seasonStrength(values, 96); got < c.lo || got > c.high {
			t.Errorf("%s: %g, want %g to %g", name, got, c.lo, c.high)
		}
	}
}

// The search finds the minimum of Rosenbrock's function, and stops where a function has no
// descent direction.
func TestMinimise(t *testing.T) {
	valley := func(x []float64) float64 {
		a, b := 1-x[0], x[1]-x[0]*x[0]
		return a*a + 100*b*b
	}
	start := []float64{-1.2, 1}
	x, lowest := minimise(valley, start, valley(start), accuracy{gradient: 1e-8, change: 0, step: 1e-6, central: true})
	if math.Abs(x[0]-1) > 1e-4 || math.Abs(x[1]-1) > 1e-4 || lowest > 1e-8 {
		t.Errorf("ends at %v with %g", x, lowest)
	}
	flat := func([]float64) float64 { return 3 }
	if x, lowest := minimise(flat, start, 3, exact); lowest != 3 || x[0] != start[0] {
		t.Errorf("flat: %v with %g", x, lowest)
	}
	wall := func(x []float64) float64 {
		if x[0] != -1.2 {
			return impossibleValue
		}
		return 0
	}
	if x, lowest := minimise(wall, start, 0, exact); lowest != 0 || x[0] != start[0] {
		t.Errorf("between walls: %v with %g", x, lowest)
	}
}
