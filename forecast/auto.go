package forecast

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// How auto judges its candidates.
const (
	// autoMinWindows is the least number of past windows that decides anything.
	autoMinWindows = 4
	// autoFade is the age at which a past window counts 1/e: habits change.
	autoFade = 2 * day
	// autoSharp is the power of the inverse error that a candidate's weight is:
	// 3.5 % less error is twice the weight, and what is 15 % worse hardly counts.
	autoSharp = 20
	// autoFew is the greatest number of candidates that are combined.
	autoFew = 4
	// autoPrior is how many windows' worth of "as bad as the moving average" a
	// candidate's record is drawn to, so that luck on a few windows weighs little.
	autoPrior = 3
)

type auto struct{ candidates []Forecaster }

// Auto combines the models that had the least absolute error in the days before
// the series' end, each past window forecast from what came before it: up to
// four, whose median it takes, weighted by a power of their inverse errors, which
// fade with age. A median because they are judged by absolute errors: where they
// disagree whether there will be load at all it does not split the difference. Its
// intervals are learned from what the combination itself would have said. With
// too little history to judge it takes the moving average and says so. Being
// judged by absolute error it leans to the median where traffic is skewed;
// Forecast.Peak has what capacity is planned for.
func Auto() Forecaster { return auto{candidates()} }

// candidates are the models that auto combines; the first is the yardstick.
func candidates() []Forecaster {
	return []Forecaster{MovingAverage(), SeasonalNaive(), SeasonalProfile(), DampedTrend(), HAR(), TVAR(), HMM(), ARIMAForecaster()}
}

func (auto) Name() string { return "auto" }

func (a auto) Forecast(s Series, horizon int) (Forecast, error) {
	if err := s.check(horizon); err != nil {
		return Forecast{}, err
	}
	until, late := s.untilKnown()
	r := a.judge(until, late, horizon)
	weights := r.weights(len(until.Values))
	if weights == nil {
		f, err := a.candidates[0].Forecast(s, horizon)
		if err != nil {
			return Forecast{}, err
		}
		words := fmt.Sprintf("%s of history is too little to compare models: %s is used", s.words(len(until.Values)), f.Model)
		f.Assumed = append([]string{words}, f.Assumed...)
		return f, nil
	}
	f, err := a.combine(until, late, horizon, weights)
	if err != nil {
		return Forecast{}, err
	}
	f.noteLate(s, late)
	f.learnOrSpread(r.combined(), until)
	return f, nil
}

// combine joins the candidates' forecasts of the horizon that begins late steps
// after the series.
func (a auto) combine(s Series, late, horizon int, weights []float64) (Forecast, error) {
	var parts []string
	all := make([][]float64, len(weights))
	for m, w := range weights {
		if w == 0 {
			continue
		}
		means, err := meansOf(a.candidates[m], s, late+horizon)
		if err != nil {
			return Forecast{}, err
		}
		all[m] = s.afterLate(means, late)
		if share := math.Round(100 * w); share > 0 {
			parts = append(parts, fmt.Sprintf("%.0f %% %s", share, a.candidates[m].Name()))
		}
	}
	return Forecast{Model: a.Name(), Mean: joined(all, weights, horizon), Assumed: []string{"combined by past errors: " + strings.Join(parts, ", ")}}, nil
}

// joined is, step by step, the weighted median of the means of the models that
// have a weight; those whose means are nil have no say.
func joined(means [][]float64, weights []float64, horizon int) []float64 {
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

// weightedMedian is what lies at half of the weight on the line through the
// middles of the values' own weights, and so moves smoothly with them: of two
// values it is between their mean and the heavier. It sorts the values, of which
// there is at least one.
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

// meaner is a forecaster that can leave out its interval, which costs most of
// its time.
type meaner interface {
	means(s Series, horizon int) ([]float64, error)
}

func meansOf(f Forecaster, s Series, horizon int) ([]float64, error) {
	if m, ok := f.(meaner); ok {
		return m.means(s, horizon)
	}
	fc, err := f.Forecast(s, horizon)
	return fc.Mean, err
}

// record is what all candidates would have said in the past, told nothing of the
// last late steps, and how far off they were.
type record struct {
	s             Series
	late, horizon int
	origins       []int
	means         [][][]float64 // by candidate and origin; nil = could not forecast
	errors        [][]float64   // by candidate and origin: sum of |actual - mean|
}

// judge rolls every candidate through the past.
func (a auto) judge(s Series, late, horizon int) record {
	r := record{s: s, late: late, horizon: horizon, origins: pastOrigins(s, late+leastPast)}
	for _, c := range a.candidates {
		means, errs := make([][]float64, len(r.origins)), make([]float64, len(r.origins))
		t := rollThrough(c, s, r.origins, late, horizon)
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

// weights are the candidates' at a time, by the windows that had ended by then;
// nil when there are too few.
func (r record) weights(at int) []float64 {
	past := 0
	for past < len(r.origins) && r.origins[past]+r.horizon <= at {
		past++
	}
	if past < autoMinWindows {
		return nil
	}
	out := make([]float64, len(r.means))
	for m := range r.means {
		if ratio, ok := r.relative(m, past, at); ok {
			out[m] = math.Pow(max(ratio, 1e-3), -autoSharp)
		}
	}
	keepFew(out, autoFew)
	return out
}

// relative is a candidate's error over that of the first one, on the windows
// that it could forecast among the first past; ok is false where it cannot
// forecast now.
func (r record) relative(m, past, at int) (ratio float64, ok bool) {
	fade := float64(r.s.steps(autoFade))
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
	prior := autoPrior * yardstick / weight * math.Exp(-1)
	if yardstick+prior == 0 {
		return 1, true
	}
	return (own + prior) / (yardstick + prior), true
}

// keepFew sets all but the greatest n weights to zero and makes them sum to 1.
func keepFew(weights []float64, n int) {
	sorted := slices.Clone(weights)
	slices.Sort(sorted)
	least := sorted[max(0, len(sorted)-n)]
	var sum float64
	for i, w := range weights {
		if w < least {
			weights[i] = 0
		}
		sum += weights[i]
	}
	for i := range weights {
		weights[i] /= sum
	}
}

// combined is what the combination would have said at every past origin that had
// enough before it, weighted by what was known then.
func (r record) combined() track {
	t := track{late: r.late}
	for i, o := range r.origins {
		weights := r.weights(o - r.late)
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
		t.origins, t.means = append(t.origins, o), append(t.means, joined(means, weights, r.horizon))
	}
	return t
}
