package forecast

import (
	"fmt"
	"math"
	"time"
)

// How auto judges its candidates.
const (
	// autoLookback is the past it scores them on.
	autoLookback = 3 * day
	// autoOriginStep spreads the windows over the times of day.
	autoOriginStep = 3 * time.Hour
	// autoMinWindows is the least number of windows that decides anything.
	autoMinWindows = 4
)

type auto struct{ candidates []Forecaster }

// Auto forecasts with whichever model had the least weighted absolute error on
// the days before the series' end, each window forecast from what came before
// it. With too little history to judge it takes the moving average and says so.
func Auto() Forecaster { return auto{[]Forecaster{MovingAverage(), SeasonalNaive()}} }

func (auto) Name() string { return "auto" }

func (a auto) Forecast(s Series, horizon int) (Forecast, error) {
	if err := s.check(horizon); err != nil {
		return Forecast{}, err
	}
	chosen, why := a.choose(s, horizon)
	f, err := chosen.Forecast(s, horizon)
	if err != nil {
		return Forecast{}, err
	}
	if why != "" {
		f.Assumed = append([]string{why}, f.Assumed...)
	}
	return f, nil
}

// choose scores every candidate on the same windows, all of which end before
// the series does. why is empty when the scores decided.
func (a auto) choose(s Series, horizon int) (best Forecaster, why string) {
	n := len(s.Values)
	first := max(s.steps(day), n-s.steps(autoLookback))
	origins := windows(first, n, horizon, s.steps(autoOriginStep))
	if len(origins) < autoMinWindows {
		return a.candidates[0], fmt.Sprintf("%s of history is too little to compare models: %s is used", s.words(n), a.candidates[0].Name())
	}
	best, least := a.candidates[0], math.Inf(1)
	for _, c := range a.candidates {
		if e, ok := absoluteError(c, s, horizon, origins); ok && e < least {
			best, least = c, e
		}
	}
	return best, ""
}

// windows lists the origins from first on, counted back from the newest, whose
// horizon ends within n steps.
func windows(first, n, horizon, step int) []int {
	var out []int
	for o := n - horizon; o >= first; o -= step {
		out = append(out, o)
	}
	return out
}

// meaner is a forecaster that can leave out its interval, which costs most of
// its time and plays no part in a comparison of means.
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

// absoluteError sums |actual - mean| over the windows; ok is false when the
// model could not forecast one of them.
func absoluteError(f Forecaster, s Series, horizon int, origins []int) (sum float64, ok bool) {
	for _, o := range origins {
		means, err := meansOf(f, s.Upto(o), horizon)
		if err != nil {
			return 0, false
		}
		for h, m := range means {
			if v := s.Values[o+h]; !math.IsNaN(v) {
				sum += math.Abs(v - m)
			}
		}
	}
	return sum, true
}
