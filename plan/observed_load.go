package plan

import (
	"math"

	"skyserve/forecast"
	"skyserve/internal/service"
)

// ObservedMinutes is the period of a strategy's ObservedTPS. It is long enough to average out single requests, and much
// shorter than loadRatioWindow.
const ObservedMinutes = 5

// ObservedLoads returns the mean interactive load of the n minutes before a minute, by model and region, in uncached
// prompt tokens per second. If a minute is missing, only the minutes after it count; a load whose last minute is missing
// is omitted. The keys have no tier. The history was read from the minute `from` on. If it begins later, its first
// minute counts as missing, because balancers counted only a part of it.
func ObservedLoads(h *forecast.History, from, before int64, n int) map[forecast.SeriesKey]float64 {
	first := max(before-int64(n), h.First)
	if h.First > from {
		first = max(first, h.First+1)
	}
	out := map[forecast.SeriesKey]float64{}
	missing := map[forecast.SeriesKey]bool{}
	for i := range h.Series {
		s := &h.Series[i]
		if s.Tier == service.TierDeferred {
			continue
		}
		at := forecast.SeriesKey{Model: s.Model, Region: s.Region}
		sum, known := 0.0, 0
		for m := before - 1; m >= first && m < h.End() && !math.IsNaN(s.Values[m-h.First]); m-- {
			sum, known = sum+s.Values[m-h.First]-s.Cached[m-h.First], known+1
		}
		if known == 0 {
			missing[at] = true
			continue
		}
		out[at] += sum / float64(60*known)
	}
	for at := range missing {
		delete(out, at)
	}
	return out
}
