package plan

import "time"

// LoadCurve is the load of one model in one region over time, and the capacity that serves it. All
// rates are uncached prompt tokens per second, by minute: History until the time of the plan, the
// other curves from then on.
type LoadCurve struct {
	Model, Region string
	// History ends at the time of the plan; NaN is unknown.
	History []float64
	// Mean is the forecast with its 90 % prediction interval; nil without a forecast. Planned is
	// the planned load: Mean raised to the planned peak, plus the planned share of batch
	// load and the backlog of accepted batches.
	Mean, Lo90, Hi90, Planned []float64
	// PeakHigh is the 95 % quantile of the forecast's peak, at least the planned peak.
	PeakHigh float64
	// CurrentCapacity is the throughput of the model's current replicas in the region. PlannedCapacity
	// is that of the planned ones, of which new ones are ready after StartUp; nil when there is no
	// plan.
	CurrentCapacity float64
	PlannedCapacity *float64
	StartUp         time.Duration
}

// Peak returns the highest planned load and its minute; 0, 0 for none.
func (c LoadCurve) Peak() (tps float64, minute int) {
	for w, v := range c.Planned {
		if v > tps {
			tps, minute = v, w
		}
	}
	return tps, minute
}
