package whatif

import (
	"math"
	"time"

	"skyserve/forecast"
)

// dayBefore is the forecaster of the scaling scenarios where no other is asked for:
// what came a day before, or the moving average where that was nearer on the last
// three days. It takes milliseconds where forecast.Auto takes a second, and a
// simulated week asks 2,000 times.
type dayBefore struct{}

// How dayBefore judges: windows of the last days, so many hours apart.
const (
	judgedDays  = 3 * 24 * time.Hour
	judgedEvery = 3 * time.Hour
	judgedLeast = 4
)

func (dayBefore) Name() string { return "day-before" }

// Forecast implements forecast.Forecaster.
func (dayBefore) Forecast(s forecast.Series, horizon int) (forecast.Forecast, error) {
	average, season := forecast.MovingAverage(), forecast.SeasonalNaive()
	n, first := len(s.Values), int(24*time.Hour/s.Step)
	first = max(first, n-int(judgedDays/s.Step))
	var errors [2]float64
	windows := 0
	for at := n - horizon; at >= first; at -= int(judgedEvery / s.Step) {
		windows++
		for k, f := range []forecast.Forecaster{average, season} {
			guess, err := f.Forecast(s.Upto(at), horizon)
			if err != nil {
				return guess, err
			}
			for h, v := range guess.Mean {
				errors[k] += math.Abs(s.Values[at+h] - v)
			}
		}
	}
	if windows < judgedLeast || errors[0] <= errors[1] {
		return average.Forecast(s, horizon)
	}
	return season.Forecast(s, horizon)
}
