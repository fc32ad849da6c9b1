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
	// over its forecast: beyond them a load has left, whatever the interval says.
	burstRatio = 5
	lullRatio  = 0.5
	// watchAllowance and watchLimit are the reference value and the decision
	// interval of a cumulative sum (Page 1954) of errors in standard deviations of
	// the interval. They are far above those for independent errors, because the
	// errors of one forecast go together.
	watchAllowance = 1.5
	watchLimit     = 6
	// watchClip bounds what a single step adds: one minute is no burst.
	watchClip = 3
	// watchLeast is how many known steps are too few to judge.
	watchLeast = 3
	// watchSharp is the ratio from which a load above its forecast is a burst and
	// not a drift.
	watchSharp = 2
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
// forecast of the same steps made before. It reports a departure when the
// cumulative sum of the errors, in units of the interval, says so, and in any
// case beyond SageServe's thresholds of 5 and 0.5 times the forecast over the
// last 20 minutes. NaN is unknown; fewer than three known values say nothing.
//
// Measured with auto's forecasts of half hours (make compare-forecast): the share
// in which a departure is reported when nothing was done to the load, and when
// its last 20 minutes are multiplied.
//
//	             x1   x1.5  x2    x3    x5    x0.5  x0.25  x0
//	A IW         0 %  12 %  72 %  95 %  100 %  80 %  100 %  100 %  by the minute, steady
//	A NIW        5 %  28 %  52 %  78 %   95 %  28 %   82 %  100 %  by the minute, bursts
//	B NIW       15 %  18 %  20 %  42 %   72 %  32 %   78 %  100 %  by the minute, noisy
//	B IW        78 %  78 %  75 %  80 %   80 %  80 %   88 %  100 %  by the minute, on and off
//	m-large      2 %   1 %   1 %   1 %    9 %   9 %   49 %   95 %  by ten minutes
//	m-mid        7 %   7 %   7 %   8 %   10 %  12 %   54 %   97 %  by ten minutes
//
// A load that is on and off by itself leaves any forecast; of steps of ten
// minutes two are too few to tell.
func Watch(f Forecast, came []float64, step time.Duration) Departure {
	n := min(len(came), len(f.Mean))
	if len(known(came[:n])) < watchLeast {
		return Departure{}
	}
	steps := max(watchLeast, int(watchWindow/step))
	if r := ratioOf(f, came, max(0, n-steps), n); n >= steps && (r >= burstRatio || r <= lullRatio) {
		return depart(f, came, max(0, n-steps), n, step)
	}
	var up, down float64
	var upFrom, downFrom int
	for t := range n {
		z := f.deviations(t, came[t])
		if math.IsNaN(z) {
			continue
		}
		if up = max(0, up+z-watchAllowance); up == 0 {
			upFrom = t + 1
		}
		if down = max(0, down-z-watchAllowance); down == 0 {
			downFrom = t + 1
		}
	}
	switch {
	case up > watchLimit && up >= down:
		return depart(f, came, upFrom, n, step)
	case down > watchLimit:
		return depart(f, came, downFrom, n, step)
	}
	return Departure{}
}

// deviations is how far a value lies from the mean, in standard deviations of a
// normal distribution with the half of the interval on its side, clipped.
func (f Forecast) deviations(t int, v float64) float64 {
	half := f.Hi90[t] - f.Mean[t]
	if v < f.Mean[t] {
		half = f.Mean[t] - f.Lo90[t]
	}
	if v == f.Mean[t] {
		return 0
	}
	half = max(half, 0.02*f.Mean[t], math.SmallestNonzeroFloat64)
	z := (v - f.Mean[t]) / (half / normal95)
	return max(-watchClip, min(z, watchClip))
}

// ratioOf is the load of the steps from..to-1 over its forecast.
func ratioOf(f Forecast, came []float64, from, to int) float64 {
	var load, expected float64
	for t := from; t < to; t++ {
		if !math.IsNaN(came[t]) {
			load += came[t]
			expected += f.Mean[t]
		}
	}
	if load == expected {
		return 1
	}
	return load / expected
}

func depart(f Forecast, came []float64, from, to int, step time.Duration) Departure {
	d := Departure{Since: time.Duration(to-from) * step, Ratio: ratioOf(f, came, from, to)}
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
