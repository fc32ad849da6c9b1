package forecast

import (
	"fmt"
	"math"
	"time"
)

// How the ARIMA forecasters look at a series.
const (
	// arimaStep is what the one without a season takes together: minutes of
	// traffic are mostly noise.
	arimaStep = 5 * time.Minute
	// fourierStep is what the one with Fourier terms does: the seasons follow the
	// load, and the rest may be coarser.
	fourierStep = 10 * time.Minute
	// sarimaStep keeps a day at 96 steps.
	sarimaStep = 15 * time.Minute
	// arimaMemory and sarimaMemory bound the past that they learn from.
	arimaMemory  = 3 * day
	sarimaMemory = 7 * day
	// fourierMemory bounds it where weeks repeat.
	fourierMemory = 4 * 7 * day
	// trafficDifferences is how often a series of traffic is differenced at most:
	// twice would carry the last minutes' trend on without end.
	trafficDifferences = 1
	// leastKnown is how many known steps a model needs at the least.
	leastKnown = 20
	// dailyTerms and weeklyTerms are the most Fourier terms: 6 a day follow what
	// lasts 4 hours. There are no more of a day than days, or chance passes for a
	// season.
	dailyTerms, weeklyTerms = 6, 3
	// arimaCarries is how many steps the one without a season carries a trend on: two
	// hours. One that is learned from 5 minutes to the next says nothing of a day.
	arimaCarries = 24
	// pastStride is the time between the past forecasts that the interval is
	// learned from.
	pastStride = time.Hour
)

// arimaForecaster is a way to build an ARIMA model of a series. All of them model
// the square root of the load: the noise of arrivals grows with the root of
// their number, so that its root has the same noise by night and by day. What is
// forecast is the square of the expected root, the middle of what may come,
// which bursts draw less upwards than a mean.
type arimaForecaster struct {
	name string
	step time.Duration
	// memory is how long a past the model is built from.
	memory time.Duration
	// least is how much history it needs.
	least time.Duration
	// carries is how many steps a trend is carried on at most, 0 for without end.
	carries int
	build   func(c coarse) (*ARIMA, []season, error)
}

// ARIMAForecaster forecasts by the ARIMA model without a season that AutoARIMA
// chooses for the last three days, at steps of 5 minutes. A trend goes on for two
// hours; after that the level stays.
func ARIMAForecaster() Forecaster {
	return arimaForecaster{name: "arima", step: arimaStep, memory: arimaMemory, carries: arimaCarries, build: func(c coarse) (*ARIMA, []season, error) {
		m, err := AutoARIMA(c.Values, 0, trafficDifferences, nil)
		return m, nil, err
	}}
}

// SARIMAForecaster forecasts by the seasonal ARIMA model that AutoARIMA chooses
// for the last week, at steps of 15 minutes and a season of a day. It needs two
// days and an hour of history. Unknown steps are taken from the day before.
func SARIMAForecaster() Forecaster {
	return arimaForecaster{name: "sarima", step: sarimaStep, memory: sarimaMemory, least: 2*day + time.Hour, build: func(c coarse) (*ARIMA, []season, error) {
		m, err := AutoARIMA(c.Values, c.steps(day), trafficDifferences, nil)
		return m, nil, err
	}}
}

// ARIMAFourier forecasts by an ARIMA model at steps of 10 minutes with Fourier
// terms of the day, and of the week once there are two weeks: how many, AICc
// decides.
// It needs a day of history.
func ARIMAFourier() Forecaster {
	return arimaForecaster{name: "arima-fourier", step: fourierStep, memory: fourierMemory, least: day, build: buildFourier}
}

func buildFourier(c coarse) (*ARIMA, []season, error) {
	days := len(c.Values) / c.steps(day)
	seasons := []season{{day.Minutes(), min(dailyTerms, days)}}
	if len(c.Values) >= 2*c.steps(7*day) {
		seasons = append(seasons, season{7 * day.Minutes(), weeklyTerms})
	}
	return fitFourier(c.Values, seasons, c.middle)
}

func (f arimaForecaster) Name() string { return f.name }

func (f arimaForecaster) Forecast(s Series, horizon int) (Forecast, error) {
	if err := s.check(horizon); err != nil {
		return Forecast{}, err
	}
	until, late := f.untilKnown(s)
	m, err := f.fit(until, late+horizon)
	if err != nil {
		return Forecast{}, err
	}
	out, err := m.forecast(until, late, horizon)
	if err != nil {
		return Forecast{}, err
	}
	out.noteLate(s, late)
	return out, nil
}

// untilKnown is Series.untilKnown by the steps of the model: a known minute does
// not make one.
func (f arimaForecaster) untilKnown(s Series) (until Series, late int) {
	until, late = s.untilKnown()
	c := coarsen(until, f.step, len(until.Values))
	_, unknown := c.untilKnown()
	if unknown == len(c.Values) {
		return until, late
	}
	return until.Upto(len(until.Values) - unknown*c.each), late + unknown*c.each
}

// fittedARIMA is a model with how it reads a series.
type fittedARIMA struct {
	arimaForecaster
	model   *ARIMA
	seasons []season
}

// view is the series as the model reads it, the roots of coarse means; filled
// counts the steps that were taken from other days.
func (f arimaForecaster) view(s Series) (c coarse, filled int) {
	step := max(f.step, s.Step)
	c = coarsen(s, f.step, int(f.memory/step))
	for i, v := range c.Values {
		c.Values[i] = math.Sqrt(v)
	}
	if f.name == "sarima" {
		filled = fillSeason(c.Values, c.steps(day))
	}
	return c, filled
}

func (f arimaForecaster) fit(s Series, horizon int) (*fittedARIMA, error) {
	if err := s.check(horizon); err != nil {
		return nil, err
	}
	if need := int(f.least / s.Step); len(s.Values) < need {
		return nil, fmt.Errorf("forecasting %s: %s needs %s of history, got %s", s.Name, f.name, s.words(need), s.words(len(s.Values)))
	}
	c, _ := f.view(s)
	if n := len(known(c.Values)); n < leastKnown {
		return nil, fmt.Errorf("forecasting %s: %s needs %d known steps of %s, got %d", s.Name, f.name, leastKnown, ShortDuration(c.Step), n)
	}
	m, seasons, err := f.build(c)
	if err != nil {
		return nil, fmt.Errorf("forecasting %s: %s: %w", s.Name, f.name, err)
	}
	return &fittedARIMA{f, m, seasons}, nil
}

// forecast forecasts the horizon that begins late steps after s, which need not be
// what the model was fitted on.
func (f *fittedARIMA) forecast(s Series, late, horizon int) (Forecast, error) {
	c, filled := f.view(s)
	n := len(c.Values)
	ahead := (late + horizon + c.each - 1) / c.each
	x := seasonColumns(f.seasons, n+ahead, c.middle)
	z := f.model.unexplained(c.Values, x)
	origins := append(f.pastOrigins(c), n)
	paths := f.model.paths(z, origins, ahead)
	for i, p := range paths {
		f.square(p, origins[i], x)
	}
	means := func(path []float64) []float64 {
		return s.afterLate(bounded(c.fine(path, late+horizon), s), late)
	}
	t := track{late: late}
	for i, o := range origins[:len(origins)-1] {
		if at := c.skipped + o*c.each + late; paths[i] != nil && at < len(s.Values) {
			t.origins, t.means = append(t.origins, at), append(t.means, means(paths[i]))
		}
	}
	out := Forecast{Model: f.name, Mean: means(paths[len(paths)-1])}
	f.interval(&out, s, c, t, z)
	if filled > 0 {
		out.Assumed = append(out.Assumed, fmt.Sprintf("%s are unknown: what came at the same time of another day is assumed for them", c.words(filled)))
	}
	for h, v := range out.Mean {
		if math.IsNaN(v) || math.IsInf(out.Hi90[h], 0) {
			return Forecast{}, fmt.Errorf("forecasting %s: %s finds no finite forecast", s.Name, f.name)
		}
	}
	return out, nil
}

// square turns the path of the process from a coarse origin, unless it is nil, into
// loads.
func (f *fittedARIMA) square(path []float64, origin int, x [][]float64) {
	for h := range path {
		root := max(0, path[h]+f.model.explained(origin+h, func(j int) float64 { return x[j][origin+h] }))
		path[h] = root * root
	}
	if f.carries > 0 && f.model.differenced() > 0 {
		for h := f.carries; h < len(path); h++ {
			path[h] = path[f.carries-1]
		}
	}
}

// pastOrigins are the coarse steps of the last week from which forecasts are
// made to learn the interval, ascending.
func (f *fittedARIMA) pastOrigins(c coarse) []int {
	n := len(c.Values)
	stride := c.steps(pastStride)
	first := max(f.model.differenced()+leastKnown, n-c.steps(errorLookback))
	var out []int
	for o := first + (n-first)%stride; o < n; o += stride {
		out = append(out, o)
	}
	return out
}

// interval learns the interval from what came of past forecasts by the same
// model; with too few of them it is that of the model's own standard errors and
// the noise within a coarse step.
func (f *fittedARIMA) interval(out *Forecast, s Series, c coarse, t track, z []float64) {
	noise := rootNoise(s, c)
	se := f.model.standardErrors(z, (t.late+len(out.Mean)+c.each-1)/c.each)
	out.learn(t, s, func(h int) (lo, hi float64) {
		e := se[(t.late+h)/c.each]
		half := normal95 * math.Sqrt(e*e+noise)
		lo, hi = max(0, math.Sqrt(out.Mean[h])-half), math.Sqrt(out.Mean[h])+half
		return min(out.Mean[h], lo*lo), max(out.Mean[h], hi*hi)
	}, "the model's own errors")
}

// rootNoise is the variance of the roots of the series about that of their coarse
// step: what the coarser series cannot show.
func rootNoise(s Series, c coarse) float64 {
	var sum float64
	n := 0
	for i, m := range c.Values {
		for _, v := range s.Values[c.skipped+i*c.each : c.skipped+(i+1)*c.each] {
			if d := math.Sqrt(v) - m; !math.IsNaN(d) {
				sum += d * d
				n++
			}
		}
	}
	if c.each == 1 || n <= len(c.Values) {
		return 0
	}
	return sum / float64(n-len(c.Values))
}

// fillSeason replaces unknown values by the nearest known one at the same place
// in the season, past before coming, and by the line between neighbours where no
// season knows it. It counts them.
func fillSeason(values []float64, season int) (filled int) {
	for t, v := range values {
		if !math.IsNaN(v) {
			continue
		}
		filled++
		values[t] = sameElsewhere(values, t, season)
	}
	if filled > 0 && anyUnknown(values) {
		copy(values, interpolated(values))
	}
	return filled
}

func sameElsewhere(values []float64, t, season int) float64 {
	for i := t - season; i >= 0; i -= season {
		if !math.IsNaN(values[i]) {
			return values[i]
		}
	}
	for i := t + season; i < len(values); i += season {
		if !math.IsNaN(values[i]) {
			return values[i]
		}
	}
	return math.NaN()
}
