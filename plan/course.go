package plan

import "time"

// Course is the load of one model in one region over time, which a plan is made
// for, and what its counts carry of it. All rates are uncached prompt tokens a
// second by the minute; the time of the plan parts the past from what is forecast.
type Course struct {
	Model, Region string
	// Past ends at the time of the plan; NaN is unknown.
	Past []float64
	// Mean is the forecast with an interval that is meant to hold nine minutes of
	// ten; nil without one. Planned is what the plan carries: Mean raised to the
	// peak that is planned for, and batch load.
	Mean, Lo90, Hi90, Planned []float64
	// PeakHigh is the 95 % quantile of the forecast's peak.
	PeakHigh float64
	// CapacityNow is what the region's replicas carry of the model, CapacityThen what
	// they will, StartUp after the plan; nil where there is no plan.
	CapacityNow  float64
	CapacityThen *float64
	StartUp      time.Duration
}

// Peak is the greatest load planned for and the minute in which it comes; 0, 0 for
// none.
func (c Course) Peak() (tps float64, minute int) {
	for w, v := range c.Planned {
		if v > tps {
			tps, minute = v, w
		}
	}
	return tps, minute
}
