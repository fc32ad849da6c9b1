package plan

import (
	"slices"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
)

// EndpointForecast is the forecast of the interactive load of one model in one region, in uncached prompt
// tokens a step.
type EndpointForecast struct {
	Model    string
	Region   service.Region
	Forecast forecast.Forecast // in steps of ReviewOptions.Step, or of a minute for a short history
	// Deviation is the deviation of the load from its forecast at the time of the review.
	Deviation forecast.Deviation

	step  time.Duration // of the forecast
	first int64         // the first minute of the forecast, since 1970
}

// Start returns the time at which the forecast begins.
func (l *EndpointForecast) Start() time.Time { return time.Unix(l.first*60, 0).UTC() }

// stepsPerTarget returns the number of forecast steps in one step of MeanRates.
func (l *EndpointForecast) stepsPerTarget() int {
	return (len(l.Forecast.Mean) + maxTargetSteps - 1) / maxTargetSteps
}

// TargetStep returns the time between two values of MeanRates.
func (l *EndpointForecast) TargetStep() time.Duration {
	return time.Duration(l.stepsPerTarget()) * l.step
}

// PerSecond converts a value of the forecast to tokens per second.
func (l *EndpointForecast) PerSecond(value float64) float64 { return value / l.step.Seconds() }

// MeanRates returns the means of values of the forecast, such as its means or its upper limits, over steps of TargetStep,
// in tokens per second.
func (l *EndpointForecast) MeanRates(values []float64) []float64 {
	out := []float64{}
	for part := range slices.Chunk(values, l.stepsPerTarget()) {
		out = append(out, l.PerSecond(meanKnown(part)))
	}
	return out
}

// Deviations compares the loads since the review with its forecasts and returns the deviation of each of
// v.Forecasts, in their order. h must contain the minutes since then; minutes from now on are ignored.
func (v *ReviewResult) Deviations(h *forecast.History, now time.Time) []forecast.Deviation {
	past := h.Before(now.Unix() / 60)
	out := make([]forecast.Deviation, len(v.Forecasts))
	if past.Minutes == 0 {
		return out
	}
	arrived := map[[2]string]*traffic{}
	for _, t := range v.traffic(past) {
		arrived[[2]string{v.Problem.Models[t.model], v.Problem.Regions[t.region]}] = t
	}
	for i, l := range v.Forecasts {
		t := arrived[[2]string{l.Model, string(l.Region)}]
		minutes := unknownValues(int(min(int64(len(l.Forecast.Mean))*int64(l.step/time.Minute), max(0, past.End()-l.first))))
		for m := range minutes {
			if at := l.first + int64(m) - t.start; at >= 0 && at < int64(len(t.interactive)) {
				minutes[m] = t.interactive[at]
			}
		}
		out[i] = forecast.DetectDeviation(l.Forecast, stepsOf(minutes, int(l.step/time.Minute)), l.step)
	}
	return out
}

// HasNewLoad reports whether a model has its first interactive load in a region: in minutes after the review's history,
// which contains none of it. h must contain these minutes; those from now on are ignored.
func (v *ReviewResult) HasNewLoad(h *forecast.History, now time.Time) bool {
	past := h.Before(now.Unix() / 60).Since(v.review.historyEnd)
	return slices.ContainsFunc(v.traffic(past), func(t *traffic) bool {
		return hasLoad(t.interactive) && !v.review.loaded[[2]int{t.model, t.region}]
	})
}

// hasLoad reports whether one of the values is known and greater than 0.
func hasLoad(values []float64) bool {
	return slices.ContainsFunc(values, func(v float64) bool { return v > 0 })
}

// traffic is groupTraffic of later minutes, whose assumptions do not belong to the review.
func (v *ReviewResult) traffic(past *forecast.History) []*traffic {
	r := *v.review
	return r.groupTraffic(past, 0)
}
