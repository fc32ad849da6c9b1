package forecast

import (
	"fmt"
	"math"
)

// model is a statistical model, which forecasts means only. A modelForecaster adds the interval.
type model interface {
	Name() string
	// need returns the minimum number of steps of history, and the same as text for error messages.
	need(s Series) (steps int, description string)
	// fit learns from a series of at least need steps, at least one of them known. Its predictor also accepts the
	// series with later values.
	fit(s Series, horizon int) predictor
}

// predictor forecasts the steps after s from the fit and the values of s. s begins where the fitted series
// did, and may be longer. The result may be invalid: bounded corrects it.
type predictor func(s Series, horizon int) []float64

// explainer is a model that reports its assumptions.
type explainer interface {
	assumed(s Series, horizon int) []string
}

// modelForecaster is the Forecaster of a model. It learns the intervals from the model's past errors.
type modelForecaster struct{ model }

func (f modelForecaster) Forecast(s Series, horizon int) (Forecast, error) {
	if err := s.checkHorizon(horizon); err != nil {
		return Forecast{}, err
	}
	until, delay := s.untilKnown()
	means, err := f.means(until, delay+horizon)
	if err != nil {
		return Forecast{}, err
	}
	out := Forecast{Forecaster: f.Name(), Mean: until.dropDelay(means, delay)}
	if e, ok := f.model.(explainer); ok {
		out.Assumed = e.assumed(s, horizon)
	}
	out.noteDelay(s, delay)
	out.learnIntervalsOrSpread(rollRecent(f, until, delay, horizon), until)
	return out, nil
}

// means returns the forecast without its interval.
func (f modelForecaster) means(s Series, horizon int) ([]float64, error) {
	if err := f.checkNeed(s, horizon); err != nil {
		return nil, err
	}
	return bounded(f.fit(s, horizon)(s, horizon), s), nil
}

// checkNeed returns the reason why the model cannot forecast a series.
func (f modelForecaster) checkNeed(s Series, horizon int) error {
	if err := s.checkHorizon(horizon); err != nil {
		return err
	}
	if n, description := f.need(s); len(s.Values) < n {
		return fmt.Errorf("forecasting %s: %s requires %s of history, got %s", s.Name, f.Name(), description, s.formatSteps(len(s.Values)))
	}
	return nil
}

// roll implements roller.
func (f modelForecaster) roll(s Series, origins []int, horizon int) ([]Forecast, error) {
	if len(origins) == 0 {
		return nil, nil
	}
	first := s.UpTo(origins[0])
	if err := f.checkNeed(first, horizon); err != nil {
		return nil, err
	}
	predict := f.fit(first, horizon)
	out := make([]Forecast, len(origins))
	for i, o := range origins {
		past := s.UpTo(o)
		out[i] = Forecast{Forecaster: f.Name(), Mean: bounded(predict(past, horizon), past)}
	}
	return out, nil
}

// maxGrowth bounds a forecast to this multiple of the highest known value, so that a model does not
// extrapolate a trend further.
const maxGrowth = 4

// bounded keeps means finite, not negative and not far above the highest known value; a NaN mean
// becomes the mean of the last hour.
func bounded(means []float64, s Series) []float64 {
	limit := min(maxGrowth*s.maxKnown(), maxValue)
	for h, m := range means {
		if math.IsNaN(m) {
			m = s.lastMean()
		}
		means[h] = max(0, min(m, limit))
	}
	return means
}

// maxKnown returns the highest known value, 0 where there is none.
func (s Series) maxKnown() float64 {
	highest := 0.0
	for _, v := range s.Values {
		if v > highest {
			highest = v
		}
	}
	return highest
}

// lastMean returns the mean of the known values in the hour that ends with the last known value; 0 where
// nothing is known.
func (s Series) lastMean() float64 {
	recent := lastKnown(s.Values, s.steps(averageSpan))
	if len(recent) == 0 {
		return 0
	}
	return mean(recent)
}
