package forecast

import (
	"math"
	"time"
)

// Parameters of the heterogeneous autoregression.
const (
	harBlock = 10 * time.Minute
	// harPast is the history that is fitted: two weeks contain every weekday twice.
	harPast = 14 * day
	// harGroups is the maximum number of parts of a horizon with separate coefficients.
	harGroups = 12
	// harRidge is the weight of the penalty that shrinks coefficients to zero. For each coefficient it has the effect of
	// this many more observations whose regressor is 1 and whose value is 0. If all coefficients are zero, the forecast is
	// a constant level.
	harRidge = 3
	// harFloor keeps logarithms of small loads finite: a share of the level.
	harFloor = 0.01
	// harClip is the upper bound of a regressor and of a forecast, in logarithms; -2*harClip is the lower bound of a
	// regressor.
	harClip = 2
)

// harSpans are the spans whose means are regressors, in blocks: 10 minutes to 4 hours.
var harSpans = [...]int{1, 2, 3, 6, 12, 24}

// harDays are the numbers of previous days over which the daily trend is averaged.
var harDays = [...]int{1, 7}

// harTerms counts a constant, the spans and the days.
const harTerms = 1 + len(harSpans) + len(harDays)

type har struct{}

// HAR is a heterogeneous autoregression (Corsi 2009). The logarithm of each part of the
// horizon is regressed with a small ridge penalty. The regressors are the logarithms of the means
// of the last 10 minutes to 4 hours and the trend of previous days at this time. All means
// are divided by the level. Because it is fitted on logarithms it forecasts the
// median. It requires 6 hours of history.
func HAR() Forecaster { return modelForecaster{har{}} }

func (har) Name() string { return "har" }

func (har) need(s Series) (steps int, description string) {
	n := max(s.steps(6*time.Hour), harSpans[len(harSpans)-1]*s.blockSize(harBlock))
	return n, s.formatSteps(n)
}

func (har) fit(s Series, horizon int) predictor {
	size := s.blockSize(harBlock)
	ahead := blocksOf(horizon, size)
	group := (ahead + harGroups - 1) / harGroups
	r := newRegressors(s, size)
	beta := make([][harTerms]float64, blocksOf(ahead, group))
	for g := range beta {
		beta[g] = r.regress(g*group, (g+1)*group, s.steps(harPast)/size)
	}
	return func(s Series, horizon int) []float64 {
		r := newRegressors(s, size)
		out := make([]float64, ahead)
		for b := range out {
			g := b / group
			out[b] = r.predict(g*group, (g+1)*group, beta[g])
		}
		return unblock(out, size, horizon)
	}
}

// regressors computes the regressors of a series in blocks.
type regressors struct{ days }

func newRegressors(s Series, size int) regressors { return regressors{newDays(s, size)} }

// level returns the level at an origin: the average of the means of the last 6 and the last 18 blocks, an hour and
// three hours. It is at least 2 % of the mean of all blocks before, because other means are divided by it.
func (r regressors) level(o int) float64 {
	l := 0.5*r.mean(o-6, o, o) + 0.5*r.mean(o-18, o, o)
	if math.IsNaN(l) {
		l = r.mean(0, o, o)
	}
	return max(l, 0.02*r.mean(0, o, o))
}

func logRatio(v, level float64) float64 {
	return math.Log((v/level + harFloor) / (1 + harFloor))
}

// row sets the regressors at an origin for the blocks from..to-1 after it; unknown means count as
// the level. ok is false where the level is unknown or zero.
func (r regressors) row(o, from, to int, x *[harTerms]float64) (level float64, ok bool) {
	level = r.level(o)
	if !(level > 0) {
		return 0, false
	}
	x[0] = 1
	for i, w := range harSpans {
		x[1+i] = orZero(logRatio(r.mean(o-w, o, o), level))
	}
	for k, days := range harDays {
		x[1+len(harSpans)+k] = r.trend(o, from, to, days)
	}
	return level, true
}

// trend returns the trend of previous days at this time: the logarithm of the mean of the blocks
// from..to-1 after the time of the origin, divided by the mean of the last 6 blocks, an hour, before it, each summed over
// `days` days; 0 where they are unknown.
func (r regressors) trend(o, from, to, days int) float64 {
	var then, now float64
	for k := 1; k <= days; k++ {
		back := k * r.period
		if o-back-6 < 0 {
			break
		}
		a, b := r.mean(o+from-back-r.reach, o+to-back+r.reach, o), r.mean(o-back-6, o-back, o)
		if !math.IsNaN(a) && !math.IsNaN(b) {
			then, now = then+a, now+b
		}
	}
	if !(now > 0) {
		return 0
	}
	return min(max(math.Log(then/now), -1), 1)
}

func orZero(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return min(max(v, -2*harClip), harClip)
}

// regress fits the mean of the blocks from..to-1 after each origin of the last `past` blocks.
func (r regressors) regress(from, to, past int) [harTerms]float64 {
	var xx [harTerms][harTerms]float64
	var xy, x [harTerms]float64
	n := len(r.values)
	for o := max(harSpans[len(harSpans)-1], n-past); o+to <= n; o++ {
		level, ok := r.row(o, from, to, &x)
		if !ok {
			continue
		}
		y := logRatio(r.mean(o+from, o+to, n), level)
		if math.IsNaN(y) {
			continue
		}
		for i := range x {
			for j := range i + 1 {
				xx[i][j] += x[i] * x[j]
			}
			xy[i] += x[i] * y
		}
	}
	return solveRidge(&xx, &xy, harRidge)
}

// solveRidge solves (xx + ridge I) beta = xy by Cholesky; xx contains its lower half.
func solveRidge(xx *[harTerms][harTerms]float64, xy *[harTerms]float64, ridge float64) (beta [harTerms]float64) {
	for i := range xx {
		for j := 0; j <= i; j++ {
			sum := xx[i][j]
			if i == j {
				sum += ridge
			}
			for k := range j {
				sum -= xx[i][k] * xx[j][k]
			}
			if i == j {
				xx[i][i] = math.Sqrt(max(sum, 1e-12))
			} else {
				xx[i][j] = sum / xx[j][j]
			}
		}
	}
	for i := range beta {
		sum := xy[i]
		for k := range i {
			sum -= xx[i][k] * beta[k]
		}
		beta[i] = sum / xx[i][i]
	}
	for i := len(beta) - 1; i >= 0; i-- {
		for k := i + 1; k < len(beta); k++ {
			beta[i] -= xx[k][i] * beta[k]
		}
		beta[i] /= xx[i][i]
	}
	return beta
}

// predict returns the regression at the series' end.
func (r regressors) predict(from, to int, beta [harTerms]float64) float64 {
	var x [harTerms]float64
	level, ok := r.row(len(r.values), from, to, &x)
	if !ok {
		return 0
	}
	var y float64
	for i := range x {
		y += beta[i] * x[i]
	}
	return level * max(0, (1+harFloor)*math.Exp(min(y, harClip))-harFloor)
}
