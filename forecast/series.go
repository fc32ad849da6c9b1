package forecast

import (
	"fmt"
	"math"
	"strings"
	"time"

	"skyserve/internal/service"
)

// maxValue bounds what a series may hold: sums of a year of larger values would
// no longer be exact, and no service carries them.
const maxValue = 1e18

// Series is a quantity by equal steps of time. It must not be negative: traffic
// is what it stands for. NaN = unknown.
type Series struct {
	// Name is how errors call the series.
	Name string
	// Unit is what the values count.
	Unit Unit
	// Start is the first step's beginning, in minutes since the Unix epoch.
	Start int64
	// Step is the length of a step, above 0.
	Step   time.Duration
	Values []float64
}

// Forecast is what is expected of the steps after a series: the mean (of a model
// that works on logarithms or combines by absolute error, the median) and an
// interval that is meant to hold each value with probability 0.9. All three
// have one value a step, Lo90 <= Mean <= Hi90, none below 0 and none NaN.
type Forecast struct {
	// Model is the name of the forecaster that made it.
	Model            string
	Mean, Lo90, Hi90 []float64
	// Peaks is the distribution of the greatest value among the steps.
	Peaks Peaks
	// Assumed says in words what the data could not say.
	Assumed []string

	// earlier and level, the mean of the day before, tell Watch what is usual.
	earlier []earlierForecast
	level   float64
}

// Forecaster predicts the horizon steps that follow a series. It fails, naming
// the series, when the series holds no known value or an impossible one, or is
// too short for the model.
type Forecaster interface {
	Name() string
	Forecast(s Series, horizon int) (Forecast, error)
}

// Upto is the series' first n steps, sharing memory with it.
func (s Series) Upto(n int) Series {
	s.Values = s.Values[:n]
	return s
}

// steps is how many steps a duration holds, at least 1.
func (s Series) steps(d time.Duration) int { return max(1, int(d/s.Step)) }

// check refuses what no forecaster can use.
func (s Series) check(horizon int) error {
	if s.Step <= 0 {
		return fmt.Errorf("forecasting %s: step must be above 0, got %s", s.Name, s.Step)
	}
	if horizon < 1 {
		return fmt.Errorf("forecasting %s: horizon must be at least one step of %s, got %d", s.Name, s.Step, horizon)
	}
	known := 0
	for i, v := range s.Values {
		if math.IsNaN(v) {
			continue
		}
		if v < 0 || v > maxValue {
			return fmt.Errorf("forecasting %s: value %d: want 0 to %g, got %g", s.Name, i, float64(maxValue), v)
		}
		known++
	}
	if known == 0 {
		return fmt.Errorf("forecasting %s: no known value in %d steps", s.Name, len(s.Values))
	}
	return nil
}

// words says a number of steps as time: "7 minutes", "36 hours".
func (s Series) words(steps int) string {
	d := time.Duration(steps) * s.Step
	for _, u := range []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}} {
		if n := d / u.size; d >= u.size && d%u.size == 0 {
			if n == 1 {
				return "1 " + u.name
			}
			return fmt.Sprintf("%d %ss", n, u.name)
		}
	}
	return d.String()
}

// span is words after "the last" or "the next": "hour", "7 minutes".
func (s Series) span(steps int) string { return strings.TrimPrefix(s.words(steps), "1 ") }

// Forecasters lists every model, simplest first.
func Forecasters() []Forecaster {
	return append(candidates(), Auto())
}

// ByName finds a forecaster by its name; the error lists the names, the nearest first.
func ByName(name string) (Forecaster, error) {
	var names []string
	for _, f := range Forecasters() {
		if f.Name() == name {
			return f, nil
		}
		names = append(names, f.Name())
	}
	if near := service.Nearest(name, names); near != "" {
		return nil, fmt.Errorf("unknown forecaster %q: did you mean %q? The names are %s", name, near, strings.Join(names, ", "))
	}
	return nil, fmt.Errorf("unknown forecaster %q: want one of %s", name, strings.Join(names, ", "))
}
