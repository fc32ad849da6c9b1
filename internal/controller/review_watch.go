package controller

import (
	"math"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Load is the forecast of the interactive load of one model in one region, in
// uncached prompt tokens a minute.
type Load struct {
	Model    string
	Region   service.Region
	Forecast forecast.Forecast
	// Left is how the load had left its forecast when the review was made.
	Left forecast.Departure

	first int64 // the minute since 1970 that the forecast begins with
}

// Watch compares the loads that came since the review with its forecasts: how each
// of Loads left its own, in their order. h holds the minutes since then or more;
// those from now on do not count.
func (v *Reviewed) Watch(h *telemetry.History, now time.Time) []forecast.Departure {
	past := h.Before(now.Unix() / 60)
	out := make([]forecast.Departure, len(v.Loads))
	if past.Minutes == 0 {
		return out
	}
	came := map[[2]string]*traffic{}
	quiet := *v.made // what it assumes on the way was said by the review
	for _, t := range quiet.traffic(past, 0) {
		came[[2]string{quiet.p.Models[t.model], quiet.p.Regions[t.region]}] = t
	}
	for i, l := range v.Loads {
		t := came[[2]string{l.Model, string(l.Region)}]
		values := unknown(min(len(l.Forecast.Mean), int(max(0, past.End()-l.first))))
		for m := range values {
			if at := l.first + int64(m) - t.start; at >= 0 && at < int64(len(t.interactive)) {
				values[m] = t.interactive[at]
			} else {
				values[m] = math.NaN()
			}
		}
		out[i] = forecast.Watch(l.Forecast, values, time.Minute)
	}
	return out
}
