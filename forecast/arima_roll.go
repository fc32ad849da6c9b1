package forecast

import (
	"math"
	"time"
)

// roll fits the model on the values before the first of the ascending origins, then forecasts from
// each origin with that model and the values before the origin. Origins that are whole coarse steps
// apart share one pass over the series.
func (f arimaForecaster) roll(s Series, origins []int, horizon int) ([]Forecast, error) {
	if len(origins) == 0 {
		return nil, nil
	}
	m, err := f.fit(s.UpTo(origins[0]), horizon)
	if err != nil {
		return nil, err
	}
	out := make([]Forecast, len(origins))
	for i := range origins {
		if out[i].Mean == nil {
			m.rollAlong(s, origins, i, horizon, out)
		}
	}
	return out, nil
}

// means returns the forecast without its interval.
func (f arimaForecaster) means(s Series, horizon int) ([]float64, error) {
	if err := s.checkHorizon(horizon); err != nil {
		return nil, err
	}
	until, delay := f.untilKnown(s)
	fcs, err := f.roll(until, []int{len(until.Values)}, delay+horizon)
	if err != nil {
		return nil, err
	}
	return until.dropDelay(fcs[0].Mean, delay), nil
}

// rollAlong forecasts from the i-th origin and the later ones that are whole coarse steps away.
func (f *fittedARIMA) rollAlong(s Series, origins []int, i, horizon int, out []Forecast) {
	size := s.steps(max(arimaStep, s.Step))
	var along []int
	for k := i; k < len(origins); k++ {
		if (origins[k]-origins[i])%size == 0 {
			along = append(along, k)
		}
	}
	past := s.UpTo(origins[along[len(along)-1]])
	wide := f.arimaForecaster
	wide.memory += s.Step * time.Duration(len(past.Values)-origins[i])
	c := wide.coarseRoots(past)
	ahead := (horizon + c.size - 1) / c.size
	at := make([]int, len(along))
	for k, j := range along {
		at[k] = (origins[j] - c.skipped) / c.size
	}
	paths := f.model.paths(f.model.unexplained(c.Values, nil), at, ahead)
	for k, j := range along {
		out[j] = Forecast{Forecaster: f.Name(), Mean: f.rolled(s.UpTo(origins[j]), c, paths[k], at[k], horizon)}
	}
}

// rolled converts a path from a coarse origin to means.
func (f *fittedARIMA) rolled(past Series, c coarse, path []float64, origin, horizon int) []float64 {
	if path == nil {
		return bounded(flat(math.NaN(), horizon), past)
	}
	f.toLoads(path, origin)
	return bounded(unblock(path, c.size, horizon), past)
}
