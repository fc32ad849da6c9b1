package forecast

import (
	"fmt"
	"math"
	"time"
)

// day is the season of traffic from people.
const day = 24 * time.Hour

type seasonalNaive struct{}

// SeasonalNaive forecasts the value of the day before for each step. It requires a day of history.
func SeasonalNaive() Forecaster { return modelForecaster{seasonalNaive{}} }

func (seasonalNaive) Name() string { return "seasonal-naive" }

func (seasonalNaive) need(s Series) (steps int, description string) { return s.steps(day), "1 day" }

func (seasonalNaive) fit(Series, int) predictor {
	return func(s Series, horizon int) []float64 {
		out, _ := repeatDay(s.Values, s.steps(day), s.lastMean(), horizon)
		return out
	}
}

// repeatDay repeats each step of the day before, or the fallback where no day has a value; missing
// counts those.
func repeatDay(values []float64, period int, fallback float64, horizon int) (out []float64, missing int) {
	out = make([]float64, horizon)
	for h := range out {
		v, ok := yesterday(values, period, h)
		if !ok {
			v = fallback
			missing++
		}
		out[h] = v
	}
	return out, missing
}

// yesterday returns the newest known value at the time of day of the step h after the series' end.
func yesterday(values []float64, period, h int) (float64, bool) {
	for i := len(values) - period + h%period; i >= 0; i -= period {
		if !math.IsNaN(values[i]) {
			return values[i], true
		}
	}
	return 0, false
}

func (seasonalNaive) assumed(s Series, horizon int) []string {
	_, missing := repeatDay(s.Values, s.steps(day), 0, horizon)
	if missing == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s of the day before are unknown: assuming the mean of the last hour", s.formatSteps(missing))}
}
