package forecast

import (
	"fmt"
	"math"
	"time"
)

// day is the season of traffic that people make.
const day = 24 * time.Hour

// nearby is how far in time of day past errors count as alike: a quiet night
// says nothing about noon.
const nearby = 90 * time.Minute

type seasonalNaive struct{}

// SeasonalNaive expects of each step what came a day before it. It needs a day
// of history; its interval is the 90 % range of its own errors at that time of
// day over the last week.
func SeasonalNaive() Forecaster { return seasonalNaive{} }

func (seasonalNaive) Name() string { return "seasonal-naive" }

func (m seasonalNaive) Forecast(s Series, horizon int) (Forecast, error) {
	if err := s.check(horizon); err != nil {
		return Forecast{}, err
	}
	period := s.steps(day)
	if len(s.Values) < period {
		return Forecast{}, fmt.Errorf("forecasting %s: %s needs a day of history, got %s", s.Name, m.Name(), s.words(len(s.Values)))
	}
	fallback, err := MovingAverage().Forecast(s, horizon)
	if err != nil {
		return Forecast{}, err
	}
	f := Forecast{Model: m.Name(), Lo90: make([]float64, horizon), Hi90: make([]float64, horizon)}
	var missing int
	f.Mean, missing = repeatDay(s.Values, period, fallback.Mean)
	if missing > 0 {
		f.Assumed = append(f.Assumed, fmt.Sprintf("%s of the day before are unknown: the mean of the last hour is assumed for them", s.words(missing)))
	}
	m.intervals(s, period, fallback, &f)
	return f, nil
}

// means is the forecast without its interval.
func (seasonalNaive) means(s Series, horizon int) ([]float64, error) {
	fallback, err := movingAverage{}.means(s, horizon)
	if err != nil {
		return nil, err
	}
	out, _ := repeatDay(s.Values, s.steps(day), fallback)
	return out, nil
}

// repeatDay takes each step from the day before, or from the fallback where no
// day knows it; missing counts those.
func repeatDay(values []float64, period int, fallback []float64) (out []float64, missing int) {
	out = make([]float64, len(fallback))
	for h := range out {
		v, ok := yesterday(values, period, h)
		if !ok {
			v = fallback[h]
			missing++
		}
		out[h] = v
	}
	return out, missing
}

// yesterday is the newest known value at the time of day of the step h after
// the series' end.
func yesterday(values []float64, period, h int) (float64, bool) {
	for i := len(values) - period + h%period; i >= 0; i -= period {
		if !math.IsNaN(values[i]) {
			return values[i], true
		}
	}
	return 0, false
}

// intervals sets the interval of every step, one hour at a time; where the
// past has too few errors it has the width of the fallback's.
func (m seasonalNaive) intervals(s Series, period int, fallback Forecast, f *Forecast) {
	hour := s.steps(time.Hour)
	borrowed := false
	for from := 0; from < len(f.Mean); from += hour {
		to := min(from+hour, len(f.Mean))
		b, ok := bandOf(m.errorsNear(s, period, from+hour/2))
		borrowed = borrowed || !ok
		for h := from; h < to; h++ {
			if !ok {
				b = band{fallback.Lo90[h] - fallback.Mean[h], fallback.Hi90[h] - fallback.Mean[h]}
			}
			f.Lo90[h], f.Hi90[h] = b.around(f.Mean[h])
		}
	}
	if borrowed {
		f.Assumed = append(f.Assumed, "less than two days of history: the interval is that of the moving average")
	}
}

// errorsNear collects the rule's past errors within nearby of the time of day
// of the step h after the series' end, over the last week.
func (seasonalNaive) errorsNear(s Series, period, h int) []float64 {
	n := len(s.Values)
	reach := s.steps(nearby)
	var out []float64
	for centre := n + h%period - period; centre+reach >= period && centre > n-s.steps(errorLookback); centre -= period {
		for t := max(period, centre-reach); t <= min(n-1, centre+reach); t++ {
			if e := s.Values[t] - s.Values[t-period]; !math.IsNaN(e) {
				out = append(out, e)
			}
		}
	}
	return out
}
