package forecast

import (
	"math"
	"slices"
)

const (
	// falseAlarms is the share of forecasts of an unchanged load for which too much load is reported, and also the
	// share for which too little is.
	falseAlarms = 0.015
	// minPastForecasts is the minimum number of past forecasts for a learned limit: the next one
	// exceeds the greatest of forty on either side in 2 of 41 cases.
	minPastForecasts = 40
)

// watchScales are the scales to try for the deviation of a window: bursts grow with the mean of the day before, lulls
// with the forecast.
var watchScales = []errorScale{{0, 0.5}, {0.5, 0.5}, {1, 0}}

// pastForecast is a past forecast, the actual values, and the mean of the day before.
type pastForecast struct {
	means, actual []float64
	dayMean       float64
}

// recordPast keeps the forecasts of a track whose whole horizon is complete, as a sample of usual
// deviations. It copies values because a caller may change the series later.
func (f *Forecast) recordPast(t pastTrack, s Series, dayMeans []float64) {
	f.dayMean = dayMeans[len(s.Values)]
	for i, o := range t.origins {
		if actual := window(s, o, len(t.means[i])); len(actual) == len(t.means[i]) {
			f.earlier = append(f.earlier, pastForecast{t.means[i], slices.Clone(actual), dayMeans[o-t.delay]})
		}
	}
}

// isUsual reports whether the deviation in a window of w steps is within a learned limit (split conformal
// prediction). The score of a past forecast is the greatest deviation of any of its windows, and the limit is a
// quantile of these scores: of the forecasts of an unchanged load, falseAlarms have a window beyond the limit,
// however many windows are checked. Each of watchScales has its own limit. The scale that detects
// changes best is used: the one with the highest number of past forecasts whose last window is beyond the limit after its
// load is multiplied by 2 or 5 (for less load than forecast, by 0.5 or 0).
func (f Forecast) isUsual(s windowErrors, w int) bool {
	side, factors := 1.0, []float64{watchBurstRatio, ltuaBurstRatio}
	if s.excess < 0 {
		side, factors = -1, []float64{ltuaLullRatio, 0}
	}
	undisturbed, disturbed := f.windows(side, w), f.disturbedWindows(side, w, factors)
	floor := f.floor()
	usual, highest := false, -1
	for _, scale := range watchScales {
		c := calibration{scale: scale, floor: floor}
		limit := c.limit(undisturbed)
		reported := 0
		for _, d := range disturbed {
			if c.scaledDeviation(d) > limit {
				reported++
			}
		}
		if reported > highest {
			usual, highest = c.scaledDeviation(s.onSide(side, f.dayMean)) <= limit, reported
		}
	}
	return usual
}

// floor returns a hundredth of the mean of the actual values, so that the scale of an idle load is
// not zero.
func (f Forecast) floor() float64 {
	var actual, known float64
	for _, e := range f.earlier {
		for _, v := range e.actual {
			if !math.IsNaN(v) {
				actual, known = actual+v, known+1
			}
		}
	}
	return 0.01 * actual / max(1, known)
}

// sidedWindow is a window measured on one side: its deviation there, the mean of its forecast and the
// mean of the day before.
type sidedWindow struct{ beyond, mean, dayMean float64 }

func (s windowErrors) onSide(side, dayMean float64) sidedWindow {
	return sidedWindow{s.beyond(side), s.expected / float64(s.known), dayMean}
}

// windows returns the sufficiently known windows of every past forecast, at each of its steps.
func (f Forecast) windows(side float64, w int) [][]sidedWindow {
	out := make([][]sidedWindow, len(f.earlier))
	for i, e := range f.earlier {
		for t := minKnownOf(w); t <= len(e.actual); t++ {
			if s := errorsOf(e.means, e.actual, max(0, t-w), t, 1); s.known >= minKnownOf(w) {
				out[i] = append(out[i], s.onSide(side, e.dayMean))
			}
		}
	}
	return out
}

// disturbedWindows returns the last window of every past forecast once for each of the factors, by which its load is
// multiplied.
func (f Forecast) disturbedWindows(side float64, w int, factors []float64) (out []sidedWindow) {
	for _, e := range f.earlier {
		for _, factor := range factors {
			n := len(e.actual)
			if s := errorsOf(e.means, e.actual, max(0, n-w), n, factor); s.known >= minKnownOf(w) {
				out = append(out, s.onSide(side, e.dayMean))
			}
		}
	}
	return out
}

// scaledDeviation returns a window's deviation divided by its scale.
func (c calibration) scaledDeviation(s sidedWindow) float64 {
	return s.beyond / c.scaleAt(s.mean, s.dayMean)
}

// limit returns the deviation that the windows of nearly every forecast stay under.
func (c calibration) limit(windows [][]sidedWindow) float64 {
	furthest := make([]float64, len(windows))
	for i, of := range windows {
		for _, s := range of {
			furthest[i] = max(furthest[i], c.scaledDeviation(s))
		}
	}
	slices.Sort(furthest)
	n := float64(len(furthest))
	return furthest[int(min(n, math.Ceil((1-falseAlarms)*(n+1))))-1]
}
