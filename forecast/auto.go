package forecast

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Parameters of auto's comparison of candidates.
const (
	// minWindows is the minimum number of past windows for a comparison.
	minWindows = 4
	// weightFade is the age at which a past window has weight 1/e: traffic patterns change.
	weightFade = 2 * day
	// weightExponent is the exponent of the inverse error in a candidate's weight: 3.5 % less error
	// doubles the weight, and a candidate that is 15 % worse has almost none.
	weightExponent = 20
	// maxCombined is the maximum number of combined candidates.
	maxCombined = 4
	// priorWindows is the number of additional windows in which each candidate is assumed to have had the
	// mean error of the moving average, so that luck on a few windows has little effect. They count as windows of the
	// age weightFade.
	priorWindows = 3
)

type auto struct{ candidates []Forecaster }

// Auto combines the forecasters with the lowest absolute error in the days before the series' end, in windows that
// each of them forecasts from the values before. It takes the median of the forecasts of up to four forecasters,
// weighted by a power of their inverse errors, whose influence fades with age. It is a median because the
// forecasters are compared by absolute error, and where some forecast load and others none, it does not forecast a load
// between them. The intervals are learned from the past forecasts of the combination.
// With too little history for a comparison it uses the moving average and reports that.
// Comparing by absolute error favours the median where traffic is skewed; use Forecast.Peaks for
// planning capacity.
func Auto() Forecaster { return auto{candidates()} }

// candidates returns the forecasters that auto combines. The first is the moving average: it is used alone where the
// history is too short for a comparison, and the errors of the others are relative to its errors.
func candidates() []Forecaster {
	return []Forecaster{MovingAverage(), SeasonalNaive(), SeasonalProfile(), DampedTrend(), HAR(), TVAR(), HMM(), ARIMAForecaster()}
}

func (auto) Name() string { return "auto" }

func (a auto) Forecast(s Series, horizon int) (Forecast, error) {
	if err := s.checkHorizon(horizon); err != nil {
		return Forecast{}, err
	}
	until, delay := s.untilKnown()
	r := a.evaluate(until, delay, horizon)
	weights := r.weights(len(until.Values))
	if weights == nil {
		f, err := a.candidates[0].Forecast(s, horizon)
		if err != nil {
			return Forecast{}, err
		}
		description := fmt.Sprintf("%s of history is too short to compare forecasters: using %s", s.formatSteps(len(until.Values)), f.Forecaster)
		f.Assumed = append([]string{description}, f.Assumed...)
		return f, nil
	}
	f, err := a.combine(until, delay, horizon, weights)
	if err != nil {
		return Forecast{}, err
	}
	f.noteDelay(s, delay)
	f.learnIntervalsOrSpread(r.combinedTrack(), until)
	return f, nil
}

// CombinedPrefix begins the assumption of a combined forecast; the weights follow.
const CombinedPrefix = "combined by past errors: "

// combine combines the candidates' forecasts of the horizon. Between the series and the horizon there are `delay`
// steps with unknown values: see Series.untilKnown.
func (a auto) combine(s Series, delay, horizon int, weights []float64) (Forecast, error) {
	var parts []string
	all := make([][]float64, len(weights))
	for m, w := range weights {
		if w == 0 {
			continue
		}
		means, err := meansOf(a.candidates[m], s, delay+horizon)
		if err != nil {
			return Forecast{}, err
		}
		all[m] = s.dropDelay(means, delay)
		if share := math.Round(100 * w); share > 0 {
			parts = append(parts, fmt.Sprintf("%.0f %% %s", share, a.candidates[m].Name()))
		}
	}
	return Forecast{Forecaster: a.Name(), Mean: combineMeans(all, weights, horizon), Assumed: []string{CombinedPrefix + strings.Join(parts, ", ")}}, nil
}

// combineMeans returns, step by step, the weighted median of the means of the candidates with a weight;
// candidates whose means are nil are ignored.
func combineMeans(means [][]float64, weights []float64, horizon int) []float64 {
	out := make([]float64, horizon)
	parts := make([]weighted, 0, len(weights))
	for h := range out {
		parts = parts[:0]
		for m, w := range weights {
			if w > 0 && means[m] != nil {
				parts = append(parts, weighted{means[m][h], w})
			}
		}
		out[h] = weightedMedian(parts)
	}
	return out
}

// weightedMedian returns the value at half of the total weight. On the axis of cumulative weight, each
// value is at the middle of its own weight, and values between are interpolated linearly, so that the
// result changes smoothly with the weights: for two values it is between their mean and the heavier
// one. It sorts values, which must not be empty.
func weightedMedian(values []weighted) float64 {
	slices.SortFunc(values, func(a, b weighted) int { return cmp.Compare(a.value, b.value) })
	var half float64
	for _, v := range values {
		half += v.weight / 2
	}
	below, last, lastMiddle := 0.0, values[0].value, 0.0
	for i, v := range values {
		middle := below + v.weight/2
		if middle >= half {
			if i == 0 {
				return v.value
			}
			return last + (half-lastMiddle)/(middle-lastMiddle)*(v.value-last)
		}
		below, last, lastMiddle = below+v.weight, v.value, middle
	}
	return last
}

// meanForecaster is a forecaster that can skip its interval, which costs most of its time.
type meanForecaster interface {
	means(s Series, horizon int) ([]float64, error)
}

func meansOf(f Forecaster, s Series, horizon int) ([]float64, error) {
	if m, ok := f.(meanForecaster); ok {
		return m.means(s, horizon)
	}
	fc, err := f.Forecast(s, horizon)
	return fc.Mean, err
}

// pastErrors is the past forecasts of all candidates and their errors. The `delay` steps before an origin were hidden
// from its forecast.
type pastErrors struct {
	s              Series
	delay, horizon int
	origins        []int
	means          [][][]float64 // by candidate and origin; nil = no forecast
	errors         [][]float64   // by candidate and origin: sum of |actual - mean|
}

// evaluate rolls every candidate through the past.
func (a auto) evaluate(s Series, delay, horizon int) pastErrors {
	r := pastErrors{s: s, delay: delay, horizon: horizon, origins: pastOrigins(s, delay+minPast)}
	for _, c := range a.candidates {
		means, errs := make([][]float64, len(r.origins)), make([]float64, len(r.origins))
		t := rollThrough(c, s, r.origins, delay, horizon)
		i := 0
		for k, o := range t.origins {
			for r.origins[i] != o {
				i++
			}
			means[i] = t.means[k]
			errs[i], _, _ = absoluteError(window(s, o, horizon), t.means[k])
		}
		r.means, r.errors = append(r.means, means), append(r.errors, errs)
	}
	return r
}

// weights returns the candidates' weights at a time, from the windows that had ended by then; nil
// when there are too few.
func (r pastErrors) weights(at int) []float64 {
	past := 0
	for past < len(r.origins) && r.origins[past]+r.horizon <= at {
		past++
	}
	if past < minWindows {
		return nil
	}
	out := make([]float64, len(r.means))
	for m := range r.means {
		if ratio, ok := r.relativeError(m, past, at); ok {
			out[m] = math.Pow(max(ratio, 1e-3), -weightExponent)
		}
	}
	keepGreatest(out, maxCombined)
	return out
}

// relativeError returns a candidate's error relative to the moving average's, over the windows that it
// could forecast among the first `past` ones; ok is false if it could forecast none of them.
func (r pastErrors) relativeError(m, past, at int) (ratio float64, ok bool) {
	fade := float64(r.s.steps(weightFade))
	var own, yardstick, weight float64
	for i := range past {
		if r.means[m][i] == nil {
			continue
		}
		w := math.Exp(-float64(at-r.origins[i]) / fade)
		own += w * r.errors[m][i]
		yardstick += w * r.errors[0][i]
		weight += w
	}
	if weight == 0 {
		return 0, false
	}
	prior := priorWindows * yardstick / weight * math.Exp(-1) // 1/e is the weight at the age weightFade
	if yardstick+prior == 0 {
		return 1, true
	}
	return (own + prior) / (yardstick + prior), true
}

// keepGreatest sets all but the greatest n weights to zero, keeping the first of equal ones, and normalises them to a
// sum of 1.
func keepGreatest(weights []float64, n int) {
	descending := make([]int, len(weights))
	for i := range descending {
		descending[i] = i
	}
	slices.SortStableFunc(descending, func(a, b int) int { return cmp.Compare(weights[b], weights[a]) })
	for _, i := range descending[min(n, len(descending)):] {
		weights[i] = 0
	}
	var sum float64
	for _, w := range weights {
		sum += w
	}
	for i := range weights {
		weights[i] /= sum
	}
}

// combinedTrack returns the combination's past forecasts at every origin with enough history, with the
// weights known at the time.
func (r pastErrors) combinedTrack() pastTrack {
	t := pastTrack{delay: r.delay}
	for i, o := range r.origins {
		weights := r.weights(o - r.delay)
		if weights == nil {
			continue
		}
		means := make([][]float64, len(weights))
		known := false
		for m, w := range weights {
			means[m] = r.means[m][i]
			known = known || w > 0 && means[m] != nil
		}
		if !known {
			continue
		}
		t.origins, t.means = append(t.origins, o), append(t.means, combineMeans(means, weights, r.horizon))
	}
	return t
}
