package forecast

import (
	"fmt"
	"math"
	"time"
)

// Parameters for detecting a load that deviates from its forecast.
const (
	// watchWindow is the compared period: SageServe's LT-UA uses the last 20 minutes (section 6.4).
	watchWindow = 20 * time.Minute
	// ltuaBurstRatio and ltuaLullRatio are LT-UA's thresholds on the ratio of the window's load to its
	// forecast. They apply while there are too few past forecasts for a learned limit. isUsual also multiplies past
	// loads by them, to choose the learned limit that detects most of these changes.
	ltuaBurstRatio = 5
	ltuaLullRatio  = 0.5
	// watchMinKnown is the minimum number of known steps in a window.
	watchMinKnown = 3
	// watchBurstRatio is the ratio from which a load above its forecast is a burst.
	watchBurstRatio = 2
	// watchMinShare is the minimum deviation, as a share of the forecast, that is reported, however
	// steady the load is.
	watchMinShare = 0.1
)

// DeviationKind is the kind of a deviation from the forecast.
type DeviationKind string

// The kinds of deviation.
const (
	NoDeviation DeviationKind = ""
	Burst       DeviationKind = "burst"
	Above       DeviationKind = "above"
	Below       DeviationKind = "below"
)

// Deviation is a deviation of a load from its forecast; the zero value means that there is none.
type Deviation struct {
	Kind DeviationKind
	// Since is the time since the deviation began.
	Since time.Duration
	// Ratio is the load since then over its forecast; +Inf where none was forecast.
	Ratio float64
	// Message describes the deviation in a sentence.
	Message string
}

// DetectDeviation compares actual values, in steps of the given length, with an earlier forecast of the same
// steps. It reports a deviation when the last 20 minutes, without the single most extreme step,
// deviate more than nearly all past forecasts of this load did: at most 3 % of forecasts of an
// unchanged load are reported, or 5 % with fewer than 66 past forecasts. With fewer than forty past
// forecasts SageServe's thresholds apply: 5 and 0.5 times the load forecast for 20 minutes. NaN is unknown;
// fewer than three known values (two where a step lasts ten minutes) are not enough to decide.
//
// Measured with auto's forecasts of half hours (make compare-forecast): the share in which a
// deviation is reported for an unchanged load (x1), and for one whose last 20 minutes are multiplied (x1.5 to x0). A and B are the
// LLMs in the week of requests that SageServe published, m-large and m-mid LLMs in the request rates published with
// ServeGen.
//
//	           x1    x1.5   x2     x3     x5     x8    x0.5  x0.25    x0
//	A IW       0 %   42 %   88 %  100 %  100 %  100 %  88 %  100 %  100 %  by the minute, steady
//	A NIW      2 %   18 %   52 %   80 %   95 %   98 %   8 %   45 %  100 %  by the minute, bursts
//	B NIW      2 %    2 %   10 %   20 %   52 %   80 %   2 %    8 %   98 %  by the minute, noisy
//	B IW       0 %    2 %    5 %   12 %   22 %   30 %   0 %    0 %    5 %  by the minute, on and off
//	m-large    2 %   18 %   69 %   98 %   99 %  100 %  11 %   94 %  100 %  by ten minutes
//	m-mid      3 %   12 %   56 %   90 %   95 %   96 %  10 %   23 %   48 %  by ten minutes
//
// A load that is on and off by itself can be idle for 20 minutes, and an idle load stays idle when
// it is multiplied.
func DetectDeviation(f Forecast, actual []float64, step time.Duration) Deviation {
	n := min(len(actual), len(f.Mean))
	w := Series{Step: step}.steps(watchWindow)
	d := errorsOf(f.Mean, actual, max(0, n-w), n, 1)
	if d.known < minKnownOf(w) || math.Abs(d.excess) <= watchMinShare*d.expected {
		return Deviation{}
	}
	deviates := n >= w && (d.ratio() >= ltuaBurstRatio || d.ratio() <= ltuaLullRatio)
	if len(f.earlier) >= minPastForecasts {
		deviates = !f.isUsual(d, w)
	}
	if !deviates {
		return Deviation{}
	}
	return newDeviation(f, actual, onset(f.Mean, actual[:n], w), n, step)
}

// minKnownOf returns the minimum number of known steps in a window of w steps.
func minKnownOf(w int) int { return min(watchMinKnown, w) }

// windowErrors compares some steps of a forecast with the actual values: the sum of the excess, and the
// highest and the lowest error. Unknown steps do not count.
type windowErrors struct {
	known                             int
	expected, excess, highest, lowest float64
}

// errorsOf compares factor times the actual values with the means, in the steps from..to-1.
func errorsOf(means, actual []float64, from, to int, factor float64) windowErrors {
	var s windowErrors
	for t := from; t < to; t++ {
		if e := factor*actual[t] - means[t]; !math.IsNaN(e) {
			s.known++
			s.expected += means[t]
			s.excess += e
			s.highest, s.lowest = max(s.highest, e), min(s.lowest, e)
		}
	}
	return s
}

// ratio returns the load over its forecast.
func (s windowErrors) ratio() float64 {
	if s.excess == 0 {
		return 1
	}
	return 1 + s.excess/s.expected
}

// beyond returns the excess (side 1) or the shortfall (side -1), at least 0, without the most
// extreme step on that side: one minute is not a burst. In windows of at most watchMinKnown known steps all count.
func (s windowErrors) beyond(side float64) float64 {
	out := side * s.excess
	if s.known > watchMinKnown {
		out -= max(side*s.highest, side*s.lowest)
	}
	return max(0, out)
}

// onset returns the step, one of the last w, at which the load changed: the one for which an error that is zero before
// it and constant from it on fits best by least squares.
func onset(means, actual []float64, w int) int {
	n := len(actual)
	first := max(0, n-w)
	side := math.Copysign(1, errorsOf(means, actual, first, n, 1).excess)
	at, best := first, 0.0
	for t := first; t < n; t++ {
		s := errorsOf(means, actual, t, n, 1)
		if s.known < minKnownOf(w) || side*s.excess <= 0 {
			continue
		}
		if fit := s.excess * s.excess / float64(s.known); fit > best {
			at, best = t, fit
		}
	}
	return at
}

func newDeviation(f Forecast, actual []float64, from, to int, step time.Duration) Deviation {
	d := Deviation{Since: time.Duration(to-from) * step, Ratio: errorsOf(f.Mean, actual, from, to, 1).ratio()}
	switch {
	case d.Ratio >= watchBurstRatio:
		d.Kind = Burst
	case d.Ratio >= 1:
		d.Kind = Above
	default:
		d.Kind = Below
	}
	times := fmt.Sprintf("%.1fx the forecast", d.Ratio)
	if math.IsInf(d.Ratio, 1) {
		times = "load where none was forecast"
	}
	d.Message = fmt.Sprintf("%s, for %s (%s)", times, ShortDuration(time.Duration(to-from)*step), d.Kind)
	return d
}

// RecentDeviation reports the deviation of the end of a series from its forecast: it forecasts the last
// half hour from the values before it and calls DetectDeviation. A series that is too short for that has none.
func RecentDeviation(f Forecaster, s Series) Deviation {
	steps := max(2*watchMinKnown, s.steps(watchWindow+watchWindow/2))
	if len(s.Values) <= steps {
		return Deviation{}
	}
	origin := len(s.Values) - steps
	fc, err := f.Forecast(s.UpTo(origin), steps)
	if err != nil {
		return Deviation{}
	}
	return DetectDeviation(fc, s.Values[origin:], s.Step)
}
