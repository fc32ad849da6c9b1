package forecast

import (
	"math"
)

// Peaks is the distribution of the highest value over a horizon, which capacity is planned for: in
// a noisy series it is above the highest mean. P05..P99 are its quantiles, none below 0, ascending.
type Peaks struct {
	Mean                    float64
	P05, P50, P90, P95, P99 float64
}

// ExpectedPeak returns the expected highest value over the horizon and its 95 % quantile, neither below the highest mean;
// for a forecast without learned peaks, the highest mean and upper end of the interval. Learned peaks are below the highest
// mean where earlier forecasts were too high: they correct that error, and the means do not.
func (f Forecast) ExpectedPeak() (mean, hi float64) {
	if f.Peaks != (Peaks{}) {
		top, _ := maxOf(f.Mean)
		return max(top, f.Peaks.Mean), max(top, f.Peaks.P95)
	}
	for i := range f.Mean {
		mean, hi = max(mean, f.Mean[i]), max(hi, f.Hi90[i])
	}
	return mean, hi
}

// PeakQuantiles are the names that At accepts.
var PeakQuantiles = []string{"p50", "p90", "p95", "p99", "expected"}

// At returns the mean of the peak for the name expected, or a quantile; ok is false for a name that
// is not in PeakQuantiles.
func (p Peaks) At(name string) (peak float64, ok bool) {
	switch name {
	case "expected":
		return p.Mean, true
	case "p50":
		return p.P50, true
	case "p90":
		return p.P90, true
	case "p95":
		return p.P95, true
	case "p99":
		return p.P99, true
	}
	return 0, false
}

// learnPeak sets the distribution of the peak from the deviations of past peaks from the highest
// means that were forecast. With too few it is derived from the intervals.
func (f *Forecast) learnPeak(t pastTrack, s Series, dayMeans []float64) {
	top, _ := maxOf(f.Mean)
	c, ok := calibratePeaks(t.peaks(s, dayMeans))
	if !ok {
		lo, _ := maxOf(f.Lo90)
		hi, _ := maxOf(f.Hi90)
		f.Peaks = Peaks{Mean: top, P05: lo, P50: top, P90: top + (hi-top)*normal90/normal95, P95: hi, P99: top + (hi-top)*normal99/normal95}
		return
	}
	errs, scale := c.errors(top), c.scaleAt(top, dayMeans[len(s.Values)])
	at := func(q float64) float64 { return max(0, top+scale*errs.quantile(q)) }
	for _, e := range errs.values {
		f.Peaks.Mean += e.weight * max(0, top+scale*e.value)
	}
	f.Peaks.P05, f.Peaks.P50, f.Peaks.P90, f.Peaks.P95, f.Peaks.P99 = at(0.05), at(0.50), at(0.90), at(0.95), at(0.99)
}

// Quantiles of the standard normal distribution.
const (
	normal90 = 1.2815515655446004
	normal95 = 1.6448536269514722
	normal99 = 2.3263478740408408
)

// calibratePeaks creates a calibration from past peaks, oldest first; ok is false when there are too few. The peaks of one
// period count as one error: the windows of its origins overlap, and their correlation falls in proportion to the steps that
// they share, so that they are as much evidence as windows that do not overlap. Few independent errors are left. So the
// quantiles are unbiased: P50 is planned for.
func calibratePeaks(past []outcome) (c calibration, ok bool) {
	if c, ok = scaledCalibration(past); ok {
		c.correlation, c.periods, c.unbiased = 1, past[len(past)-1].period+1, true
	}
	return c, ok
}

// peaks returns the highest means of a track and the highest actual values, of the horizons that
// are complete and known.
func (t pastTrack) peaks(s Series, dayMeans []float64) []outcome {
	var out []outcome
	for i, o := range t.origins {
		actual := window(s, o, len(t.means[i]))
		if top, ok := maxOf(actual); ok && len(actual) == len(t.means[i]) {
			expected, _ := maxOf(t.means[i])
			out = append(out, outcome{expected, top, dayMeans[o-t.delay], t.weight(i, s, peakFade), (o - t.origins[0]) / len(t.means[i])})
		}
	}
	return out
}

// maxOf returns the highest value; ok is false when one is unknown or there is none.
func maxOf(values []float64) (top float64, ok bool) {
	for _, v := range values {
		if math.IsNaN(v) {
			return 0, false
		}
		top = max(top, v)
	}
	return top, len(values) > 0
}
