package forecast

import (
	"fmt"
	"math"
	"time"
)

// How a load that leaves its forecast is noticed.
const (
	// watchWindow is what is compared: SageServe's LT-UA looks at the last 20
	// minutes (section 6.4).
	watchWindow = 20 * time.Minute
	// burstRatio and lullRatio are LT-UA's thresholds on the load of the window
	// over its forecast. They rule while too little is known of the load, and are
	// what a limit that is learned should tell.
	burstRatio = 5
	lullRatio  = 0.5
	// watchLeast is how many known steps are too few to judge, where a window has more.
	watchLeast = 3
	// watchSharp is the ratio from which a load above its forecast is a burst and
	// not a drift.
	watchSharp = 2
	// watchMatters is the least share of the forecast that is worth a word, however
	// steady the load is.
	watchMatters = 0.1
)

// DepartureKind says how a load left its forecast.
type DepartureKind string

// The kinds of Departure.
const (
	NoDeparture DepartureKind = ""
	Burst       DepartureKind = "burst"
	DriftUp     DepartureKind = "drift up"
	DriftDown   DepartureKind = "drift down"
)

// Departure is how a load left its forecast; the zero value says that it did not.
type Departure struct {
	Kind DepartureKind
	// Since is how long ago it began.
	Since time.Duration
	// Ratio is the load since then over its forecast; +Inf where none was expected.
	Ratio float64
	// Words says all that in a sentence.
	Words string
}

// Watch compares the values that came, of steps of that length, with the
// forecast of the same steps made before. It reports a departure when the last 20
// minutes, without the one step that lies furthest out, brought more or less than
// nearly all of the forecaster's earlier forecasts of this load ever saw: at most 3 %
// of forecasts of a load that goes on as it did are reported. After fewer than forty
// earlier ones SageServe's thresholds rule: 5 and 0.5 times the load expected of
// 20 minutes. NaN is unknown; fewer than three known values (two where a step
// lasts ten minutes) say nothing.
//
// Measured with auto's forecasts of half hours (make compare-forecast): the share
// in which a departure is reported when nothing was done to the load, and when
// its last 20 minutes are multiplied.
//
//	           x1    x1.5   x2     x3     x5     x8    x0.5  x0.25    x0
//	A IW       0 %   42 %   88 %  100 %  100 %  100 %  88 %  100 %  100 %  by the minute, steady
//	A NIW      2 %   18 %   52 %   80 %   95 %   98 %   8 %   45 %  100 %  by the minute, bursts
//	B NIW      2 %    2 %   10 %   20 %   52 %   80 %   2 %    8 %   98 %  by the minute, noisy
//	B IW       0 %    2 %    5 %   12 %   22 %   30 %   0 %    0 %    5 %  by the minute, on and off
//	m-large    2 %   18 %   69 %   98 %   99 %  100 %  11 %   94 %  100 %  by ten minutes
//	m-mid      3 %   12 %   56 %   90 %   95 %   96 %  10 %   23 %   48 %  by ten minutes
//
// A load that is on and off by itself can rest for 20 minutes, and what rests stays
// at rest when it is multiplied.
func Watch(f Forecast, came []float64, step time.Duration) Departure {
	n := min(len(came), len(f.Mean))
	w := Series{Step: step}.steps(watchWindow)
	d := stretchOf(f.Mean, came, max(0, n-w), n, 1)
	if d.known < leastOf(w) || math.Abs(d.excess) <= watchMatters*d.expected {
		return Departure{}
	}
	left := n >= w && (d.ratio() >= burstRatio || d.ratio() <= lullRatio)
	if len(f.earlier) >= leastEarlier {
		left = !f.isUsual(d, w)
	}
	if !left {
		return Departure{}
	}
	return depart(f, came, onset(f.Mean, came[:n], w), n, step)
}

// leastOf is how many known steps of a window of w are needed to judge it.
func leastOf(w int) int { return min(watchLeast, w) }

// stretch is some steps of a forecast beside what came: how much more came than
// was expected, in sum, and the greatest and the least of the errors. Unknown
// steps do not count.
type stretch struct {
	known                         int
	expected, excess, most, least float64
}

// stretchOf holds factor times what came to the means, in the steps from..to-1.
func stretchOf(means, came []float64, from, to int, factor float64) stretch {
	var s stretch
	for t := from; t < to; t++ {
		if e := factor*came[t] - means[t]; !math.IsNaN(e) {
			s.known++
			s.expected += means[t]
			s.excess += e
			s.most, s.least = max(s.most, e), min(s.least, e)
		}
	}
	return s
}

// ratio is the load over its forecast.
func (s stretch) ratio() float64 {
	if s.excess == 0 {
		return 1
	}
	return 1 + s.excess/s.expected
}

// beyond is how much more came (side 1) or less (side -1), at least 0, without the
// step furthest out on that side: one minute is no burst. In windows of few steps
// each one counts.
func (s stretch) beyond(side float64) float64 {
	out := side * s.excess
	if s.known > watchLeast {
		out -= max(side*s.most, side*s.least)
	}
	return max(0, out)
}

// onset is the step of the last w since which the load is another: where two
// levels of the error, none before it and another after it, fit best by least
// squares.
func onset(means, came []float64, w int) int {
	n := len(came)
	first := max(0, n-w)
	side := math.Copysign(1, stretchOf(means, came, first, n, 1).excess)
	at, best := first, 0.0
	for t := first; t < n; t++ {
		s := stretchOf(means, came, t, n, 1)
		if s.known < leastOf(w) || side*s.excess <= 0 {
			continue
		}
		if fit := s.excess * s.excess / float64(s.known); fit > best {
			at, best = t, fit
		}
	}
	return at
}

func depart(f Forecast, came []float64, from, to int, step time.Duration) Departure {
	d := Departure{Since: time.Duration(to-from) * step, Ratio: stretchOf(f.Mean, came, from, to, 1).ratio()}
	switch {
	case d.Ratio >= watchSharp:
		d.Kind = Burst
	case d.Ratio >= 1:
		d.Kind = DriftUp
	default:
		d.Kind = DriftDown
	}
	times := fmt.Sprintf("%.1f times the forecast", d.Ratio)
	if math.IsInf(d.Ratio, 1) {
		times = "load where none was forecast"
	}
	d.Words = fmt.Sprintf("%s for %s (%s)", times, Series{Step: step}.words(to-from), d.Kind)
	return d
}

// Departed tells whether the end of a series left what a forecaster expected of
// it: it forecasts the last half hour from before it and calls Watch. A series
// that is too short for that has not departed.
func Departed(f Forecaster, s Series) Departure {
	steps := max(2*watchLeast, s.steps(watchWindow+watchWindow/2))
	if len(s.Values) <= steps {
		return Departure{}
	}
	origin := len(s.Values) - steps
	fc, err := f.Forecast(s.Upto(origin), steps)
	if err != nil {
		return Departure{}
	}
	return Watch(fc, s.Values[origin:], s.Step)
}
