package forecast

import (
	"fmt"
	"math"
	"strings"
	"time"

	"skyserve/internal/service"
)

// maxValue bounds a series' values: sums of a year of larger values would no longer be exact, and
// no service has such a load.
const maxValue = 1e18

// Series is a quantity at equal time steps. It must not be negative because it represents traffic.
// NaN = unknown.
type Series struct {
	// Name identifies the series in errors.
	Name string
	// Unit is the unit of the values.
	Unit Unit
	// Start is the start of the first step, in minutes since the Unix epoch.
	Start int64
	// Step is the length of a step, above 0.
	Step   time.Duration
	Values []float64
}

// Forecast is the forecast of the steps after a series: the mean (for a model on logarithms or one
// that combines by absolute error, the median) and a 90 % prediction interval. All three have one
// value per step, Lo90 <= Mean <= Hi90, none below 0 and none NaN.
type Forecast struct {
	// Forecaster is the name of the forecaster.
	Forecaster       string
	Mean, Lo90, Hi90 []float64
	// Peaks is the distribution of the highest value among the steps.
	Peaks Peaks
	// Assumed lists assumptions for missing data.
	Assumed []string

	// earlier are past forecasts, and dayMean is the mean of the day before this one. They define the usual
	// deviations for DetectDeviation.
	earlier []pastForecast
	dayMean float64
}

// Forecaster predicts the horizon steps that follow a series. It fails, with the series' name, when
// the series has no known value or an invalid one, or is too short for the forecaster.
type Forecaster interface {
	Name() string
	Forecast(s Series, horizon int) (Forecast, error)
}

// UpTo returns the series' first n steps, sharing memory with it.
func (s Series) UpTo(n int) Series {
	s.Values = s.Values[:n]
	return s
}

// steps returns the number of steps in a duration, at least 1.
func (s Series) steps(d time.Duration) int { return max(1, int(d/s.Step)) }

// checkHorizon rejects series and horizons that no forecaster can use.
func (s Series) checkHorizon(horizon int) error {
	if s.Step <= 0 {
		return fmt.Errorf("forecasting %s: step: must be greater than 0, got %s", s.Name, s.Step)
	}
	if horizon < 1 {
		return fmt.Errorf("forecasting %s: horizon: must be at least one step of %s, got %d", s.Name, s.Step, horizon)
	}
	known := 0
	for i, v := range s.Values {
		if math.IsNaN(v) {
			continue
		}
		if v < 0 || v > maxValue {
			return fmt.Errorf("forecasting %s: value %d: must be 0 to %g, got %g", s.Name, i, float64(maxValue), v)
		}
		known++
	}
	if known == 0 {
		return fmt.Errorf("forecasting %s: no known value in %d steps", s.Name, len(s.Values))
	}
	return nil
}

// formatSteps formats a number of steps as time: "7 minutes", "36 hours".
func (s Series) formatSteps(steps int) string {
	return DurationInWords(time.Duration(steps) * s.Step)
}

// formatSpan returns formatSteps for use after "the last" or "the next": "hour", "7 minutes".
func (s Series) formatSpan(steps int) string { return strings.TrimPrefix(s.formatSteps(steps), "1 ") }

// Forecasters returns every forecaster, simplest first.
func Forecasters() []Forecaster {
	return append(candidates(), Auto())
}

// ForecasterByName returns a forecaster by name; the error suggests the nearest name and lists all.
func ForecasterByName(name string) (Forecaster, error) {
	var names []string
	for _, f := range Forecasters() {
		if f.Name() == name {
			return f, nil
		}
		names = append(names, f.Name())
	}
	if near := service.Nearest(name, names); near != "" {
		return nil, fmt.Errorf("unknown forecaster %q: must be one of %s; did you mean %q?", name, strings.Join(names, ", "), near)
	}
	return nil, fmt.Errorf("unknown forecaster %q: must be one of %s", name, strings.Join(names, ", "))
}
