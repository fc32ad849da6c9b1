package forecast

import (
	"fmt"
	"math"
	"time"
)

// Parameters of the ARIMA forecasters.
const (
	// arimaStep is the model's step: single minutes of traffic are mostly noise.
	arimaStep = 5 * time.Minute
	// arimaMemory bounds the history that is fitted.
	arimaMemory = 3 * day
	// trafficDifferences is the maximum number of differences of a traffic series: two would
	// extrapolate the last minutes' trend without bound.
	trafficDifferences = 1
	// minKnown is the minimum number of known steps.
	minKnown = 20
	// arimaTrendSteps is the number of steps over which a trend is extrapolated: two hours.
	// A trend learned at steps of 5 minutes does not extend over a day.
	arimaTrendSteps = 24
	// pastStride is the time between the past forecasts from which the interval is learned.
	pastStride = time.Hour
)

// arimaForecaster models the square root of the load. The noise of arrivals grows with the square
// root of their number, so the root has the same noise by night and by day. The forecast is the
// square of the expected root, a median, which bursts raise less than a mean. It is not a modelForecaster: it makes
// all past forecasts with one fit, and with too few of them uses the standard errors of that fit.
type arimaForecaster struct {
	memory time.Duration // length of the fitted history
}

// ARIMAForecaster forecasts with the non-seasonal ARIMA model that AutoARIMA selects for the last
// three days, at steps of 5 minutes. A trend continues for two hours; after that the level is
// constant.
func ARIMAForecaster() Forecaster { return arimaForecaster{memory: arimaMemory} }

// Name returns arima.
func (arimaForecaster) Name() string { return "arima" }

func (f arimaForecaster) Forecast(s Series, horizon int) (Forecast, error) {
	if err := s.checkHorizon(horizon); err != nil {
		return Forecast{}, err
	}
	until, delay := f.untilKnown(s)
	m, err := f.fit(until, delay+horizon)
	if err != nil {
		return Forecast{}, err
	}
	out, err := m.forecast(until, delay, horizon)
	if err != nil {
		return Forecast{}, err
	}
	out.noteDelay(s, delay)
	return out, nil
}

// untilKnown is Series.untilKnown at the model's steps: a step needs more than one known minute.
func (f arimaForecaster) untilKnown(s Series) (until Series, delay int) {
	until, delay = s.untilKnown()
	c := coarsen(until, arimaStep, len(until.Values))
	_, unknown := c.untilKnown()
	if unknown == len(c.Values) {
		return until, delay
	}
	return until.UpTo(len(until.Values) - unknown*c.size), delay + unknown*c.size
}

// fittedARIMA is a fitted model with its forecaster.
type fittedARIMA struct {
	arimaForecaster
	model *ARIMA
}

// coarseRoots converts a series to the model's input, the square roots of coarse means.
func (f arimaForecaster) coarseRoots(s Series) coarse {
	c := coarsen(s, arimaStep, int(f.memory/max(arimaStep, s.Step)))
	for i, v := range c.Values {
		c.Values[i] = math.Sqrt(v)
	}
	return c
}

func (f arimaForecaster) fit(s Series, horizon int) (*fittedARIMA, error) {
	if err := s.checkHorizon(horizon); err != nil {
		return nil, err
	}
	c := f.coarseRoots(s)
	if n := len(known(c.Values)); n < minKnown {
		return nil, fmt.Errorf("forecasting %s: %s requires %d known steps of %s, got %d", s.Name, f.Name(), minKnown, ShortDuration(c.Step), n)
	}
	m, err := AutoARIMA(c.Values, 0, trafficDifferences, nil)
	if err != nil {
		return nil, fmt.Errorf("forecasting %s: %s: %w", s.Name, f.Name(), err)
	}
	return &fittedARIMA{f, m}, nil
}

// forecast forecasts the horizon that begins `delay` steps after s, which may differ from the fitted
// series.
func (f *fittedARIMA) forecast(s Series, delay, horizon int) (Forecast, error) {
	c := f.coarseRoots(s)
	n := len(c.Values)
	ahead := (delay + horizon + c.size - 1) / c.size
	z := f.model.unexplained(c.Values, nil)
	origins := append(f.pastOrigins(c), n)
	paths := f.model.paths(z, origins, ahead)
	for i, p := range paths {
		f.toLoads(p, origins[i])
	}
	means := func(path []float64) []float64 {
		return s.dropDelay(bounded(unblock(path, c.size, delay+horizon), s), delay)
	}
	t := pastTrack{delay: delay}
	for i, o := range origins[:len(origins)-1] {
		if at := c.skipped + o*c.size + delay; paths[i] != nil && at < len(s.Values) {
			t.origins, t.means = append(t.origins, at), append(t.means, means(paths[i]))
		}
	}
	out := Forecast{Forecaster: f.Name(), Mean: means(paths[len(paths)-1])}
	f.interval(&out, s, c, t, z)
	for h, v := range out.Mean {
		if math.IsNaN(v) || math.IsInf(out.Hi90[h], 0) {
			return Forecast{}, fmt.Errorf("forecasting %s: %s has no finite forecast", s.Name, f.Name())
		}
	}
	return out, nil
}

// toLoads converts the path of the process from a coarse origin, which may be nil, to loads.
func (f *fittedARIMA) toLoads(path []float64, origin int) {
	for h := range path {
		root := max(0, path[h]+f.model.explained(origin+h, nil))
		path[h] = root * root
	}
	if f.model.differenced() > 0 {
		for h := arimaTrendSteps; h < len(path); h++ {
			path[h] = path[arimaTrendSteps-1]
		}
	}
}

// pastOrigins returns the coarse steps of the last week from which forecasts are made to learn the
// interval, ascending.
func (f *fittedARIMA) pastOrigins(c coarse) []int {
	n := len(c.Values)
	stride := c.steps(pastStride)
	first := max(f.model.differenced()+minKnown, n-c.steps(errorLookback))
	var out []int
	for o := first + (n-first)%stride; o < n; o += stride {
		out = append(out, o)
	}
	return out
}

// interval learns the interval from the errors of past forecasts with the same model. With too few
// of them it uses the model's own standard errors and the noise within a coarse step.
func (f *fittedARIMA) interval(out *Forecast, s Series, c coarse, t pastTrack, z []float64) {
	noise := rootNoise(s, c)
	se := f.model.standardErrors(z, (t.delay+len(out.Mean)+c.size-1)/c.size)
	out.learnIntervals(t, s, func(h int) (lo, hi float64) {
		e := se[(t.delay+h)/c.size]
		half := normal95 * math.Sqrt(e*e+noise)
		lo, hi = max(0, math.Sqrt(out.Mean[h])-half), math.Sqrt(out.Mean[h])+half
		return min(out.Mean[h], lo*lo), max(out.Mean[h], hi*hi)
	}, "the model's standard errors")
}

// rootNoise returns the variance of the roots of the series around the root of their coarse step:
// the noise that the coarse series hides.
func rootNoise(s Series, c coarse) float64 {
	var sum float64
	n := 0
	for i, m := range c.Values {
		for _, v := range s.Values[c.skipped+i*c.size : c.skipped+(i+1)*c.size] {
			if d := math.Sqrt(v) - m; !math.IsNaN(d) {
				sum += d * d
				n++
			}
		}
	}
	if c.size == 1 || n <= len(c.Values) {
		return 0
	}
	return sum / float64(n-len(c.Values))
}
