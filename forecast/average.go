package forecast

import (
	"fmt"
	"math"
	"time"
)

// averageSpan is the span of the moving average: an hour, like the horizon of a plan.
const averageSpan = time.Hour

type movingAverage struct{}

// MovingAverage forecasts the mean of the last hour, or of the available history.
func MovingAverage() Forecaster { return modelForecaster{movingAverage{}} }

func (movingAverage) Name() string { return "moving-average" }

func (movingAverage) need(Series) (steps int, description string) { return 1, "a step" }

func (movingAverage) fit(Series, int) predictor {
	return func(s Series, horizon int) []float64 { return flat(s.lastMean(), horizon) }
}

// flat returns the same value at every step.
func flat(v float64, horizon int) []float64 {
	out := make([]float64, horizon)
	for h := range out {
		out[h] = v
	}
	return out
}

// lastKnown returns the known values among the n values that end with the last known one.
func lastKnown(values []float64, n int) []float64 {
	end := len(values)
	for end > 0 && math.IsNaN(values[end-1]) {
		end--
	}
	return known(values[max(0, end-n):end])
}

func (movingAverage) assumed(s Series, horizon int) []string {
	span := s.steps(averageSpan)
	recent := lastKnown(s.Values, span)
	have := len(recent)
	var out []string
	if have < span {
		only := "only "
		if have == len(s.Values) {
			only += s.formatSteps(have) + " of history"
		} else {
			only += s.formatSteps(have) + " of known load in the last " + s.formatSpan(min(span, len(s.Values)))
		}
		out = append(out, fmt.Sprintf("%s: assuming its mean for the next %s", only, s.formatSpan(horizon)))
	}
	return out
}
