package forecast

import (
	"math"
	"time"

	"gonum.org/v1/gonum/optimize"
)

// hwBlock is the step at which Holt-Winters runs: a season of single minutes
// would be all noise.
const hwBlock = 15 * time.Minute

// hwPast is the past that it is fitted on.
const hwPast = 14 * day

// hwEvaluations bounds the search for the constants; it takes 80 to 160.
const hwEvaluations = 300

// hwStart is how many seasons the start values are read off.
const hwStart = 2

type holtWintersModel struct{}

// HoltWinters is triple exponential smoothing (Holt 1957, Winters 1960) with a
// season of a day at 15-minute steps, additive or multiplicative, whichever had
// the least squared error one step ahead. Start values and constants are those
// of R's HoltWinters: a decomposition of the first two seasons, and least
// squares. It needs two days of history.
func HoltWinters() Forecaster { return forecaster{holtWintersModel{}} }

func (holtWintersModel) Name() string { return "holt-winters" }

func (holtWintersModel) need(s Series) (steps int, words string) {
	return hwStart*s.steps(day) + s.blockSize(hwBlock), "two days and a quarter of an hour"
}

func (holtWintersModel) fit(s Series, horizon int) predictor {
	size := s.blockSize(hwBlock)
	period := s.steps(day) / size
	values := recentDays(s, size)
	best := fitHoltWinters(values, period, false)
	if positive(values) {
		if m := fitHoltWinters(values, period, true); m.sse < best.sse {
			best = m
		}
	}
	c := best.hwConstants
	return func(s Series, horizon int) []float64 {
		values := recentDays(s, size)
		state := runHoltWinters(values, period, best.multiplicative, c)
		return unblock(state.forecast(blocksOf(horizon, size)), size, horizon)
	}
}

// recentDays is a series in blocks, as many whole days as hwPast allows and the
// running one.
func recentDays(s Series, size int) []float64 {
	values := blocks(s.Values, size)
	return values[max(0, len(values)-s.steps(hwPast)/size):]
}

// positive reports whether there are known values and all of them are above 0.
func positive(values []float64) bool {
	have := false
	for _, v := range values {
		if v <= 0 {
			return false
		}
		have = have || v > 0
	}
	return have
}

// hwConstants smooth level, trend and season.
type hwConstants struct{ alpha, beta, gamma float64 }

// holtWinters is the state after the last value.
type holtWinters struct {
	hwConstants
	multiplicative bool
	level, trend   float64
	season         []float64 // of the next steps
	sse            float64   // one step ahead, from the second season on
}

// fitHoltWinters finds the constants of least squared error one step ahead.
func fitHoltWinters(values []float64, period int, multiplicative bool) holtWinters {
	start := startHoltWinters(values, period, multiplicative)
	season := make([]float64, len(values))
	sse := func(x []float64) float64 {
		c, outside := boxed(x)
		h := start
		h.hwConstants, h.season = c, season
		copy(season, start.season)
		h.run(values, period)
		if math.IsNaN(h.sse) || math.IsInf(h.sse, 0) {
			return math.MaxFloat64
		}
		return h.sse * (1 + outside)
	}
	// R starts from the same constants.
	best := []float64{0.3, 0.1, 0.1}
	settings := &optimize.Settings{FuncEvaluations: hwEvaluations, Converger: &optimize.FunctionConverge{Relative: 1e-8, Iterations: 20}}
	if r, err := optimize.Minimize(optimize.Problem{Func: sse}, best, settings, &optimize.NelderMead{SimplexSize: 0.1}); err == nil {
		best = r.X
	}
	c, _ := boxed(best)
	return runHoltWinters(values, period, multiplicative, c)
}

// boxed moves constants into 0..1; outside is the squared distance that it took.
func boxed(x []float64) (c hwConstants, outside float64) {
	in := func(v float64) float64 {
		w := min(max(v, 0), 1)
		outside += (v - w) * (v - w)
		return w
	}
	return hwConstants{in(x[0]), in(x[1]), in(x[2])}, outside
}

// runHoltWinters smooths values with given constants.
func runHoltWinters(values []float64, period int, multiplicative bool, c hwConstants) holtWinters {
	h := startHoltWinters(values, period, multiplicative)
	h.hwConstants = c
	season := make([]float64, len(values))
	copy(season, h.season)
	h.season = season
	h.run(values, period)
	h.season = season[len(values)-period:]
	return h
}

// run smooths the values from the second season on. The season of step t lies
// at t, written over that of t-period's successor: season has one value a step,
// shifted by a season.
func (h *holtWinters) run(values []float64, period int) {
	for t := period; t < len(values); t++ {
		last := h.season[t-period]
		before, expected := h.level, h.level+h.trend
		v := values[t]
		if math.IsNaN(v) {
			h.level = expected
			h.season[t] = last
			continue
		}
		if h.multiplicative {
			e := v - expected*last
			h.sse += e * e
			h.level = h.alpha*v/last + (1-h.alpha)*expected
			h.season[t] = h.gamma*v/h.level + (1-h.gamma)*last
		} else {
			e := v - expected - last
			h.sse += e * e
			h.level = h.alpha*(v-last) + (1-h.alpha)*expected
			h.season[t] = h.gamma*(v-h.level) + (1-h.gamma)*last
		}
		h.trend = h.beta*(h.level-before) + (1-h.beta)*h.trend
	}
}

// forecast carries level, trend and season on.
func (h holtWinters) forecast(ahead int) []float64 {
	out := make([]float64, ahead)
	for k := range out {
		m, s := h.level+float64(k+1)*h.trend, h.season[k%len(h.season)]
		if h.multiplicative {
			out[k] = m * s
		} else {
			out[k] = m + s
		}
	}
	return out
}

// startHoltWinters reads level, trend and season off the first two seasons by a
// classical decomposition: a centred moving average is the trend, a line
// through it the level and slope, and the mean distance from it the season.
func startHoltWinters(values []float64, period int, multiplicative bool) holtWinters {
	head := bridged(values[:hwStart*period])
	if len(head) == 0 {
		head = make([]float64, hwStart*period)
	}
	trend := centredAverage(head, period)
	level, slope := line(trend)
	h := holtWinters{multiplicative: multiplicative, level: level, trend: slope}
	h.season = seasonFigure(head, trend, period, multiplicative)
	return h
}

// centredAverage is the moving average over a season, NaN at the ends; the ends
// of an even season count half.
func centredAverage(x []float64, period int) []float64 {
	out := make([]float64, len(x))
	half := period / 2
	for t := range out {
		out[t] = math.NaN()
		if t < half || t+half >= len(x) {
			continue
		}
		var sum float64
		for k := -half; k <= half; k++ {
			w := 1.0
			if period%2 == 0 && (k == -half || k == half) {
				w = 0.5
			}
			sum += w * x[t+k]
		}
		out[t] = sum / float64(period)
	}
	return out
}

// line fits a + b i by least squares to the known values, i counted from 1.
func line(values []float64) (a, b float64) {
	y := known(values)
	n := float64(len(y))
	if n < 2 {
		return mean(values), 0
	}
	var sx, sy, sxx, sxy float64
	for i, v := range y {
		x := float64(i + 1)
		sx, sy, sxx, sxy = sx+x, sy+v, sxx+x*x, sxy+x*v
	}
	b = (n*sxy - sx*sy) / (n*sxx - sx*sx)
	return (sy - b*sx) / n, b
}

// seasonFigure is the mean distance (or ratio) of values from their trend by
// place in the season, brought to a mean of 0 (or 1).
func seasonFigure(x, trend []float64, period int, multiplicative bool) []float64 {
	sum, have := make([]float64, period), make([]float64, period)
	for t, m := range trend {
		d := x[t] - m
		if multiplicative {
			d = x[t] / m
		}
		if !math.IsNaN(d) && !math.IsInf(d, 0) {
			sum[t%period] += d
			have[t%period]++
		}
	}
	for i := range sum {
		if have[i] > 0 {
			sum[i] /= have[i]
		} else if multiplicative {
			sum[i] = 1
		}
	}
	centre := mean(sum)
	for i := range sum {
		if multiplicative {
			sum[i] /= centre
		} else {
			sum[i] -= centre
		}
	}
	return sum
}
