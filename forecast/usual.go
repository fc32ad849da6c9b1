package forecast

import (
	"math"
	"slices"
)

const (
	// falseAlarms is the share of forecasts of a load that goes on as it did that are
	// reported for too much, and as many for too little.
	falseAlarms = 0.015
	// leastEarlier is how many earlier forecasts teach a limit: the next one passes
	// the greatest of forty on either side in 2 of 41 cases.
	leastEarlier = 40
)

// watchScales are what the excess of a window may be measured in: bursts come in
// sizes of the day's level, lulls in shares of the forecast.
var watchScales = []powers{{0, 0.5}, {0.5, 0.5}, {1, 0}}

// earlierForecast is what a forecaster would have said at a time in the past, what
// came, and the mean of the day before.
type earlierForecast struct {
	means, came []float64
	level       float64
}

// remember keeps the forecasts of a track whose whole horizon is over, as the
// measure of what the load does by itself. A caller may change the series later.
func (f *Forecast) remember(t track, s Series, levels []float64) {
	f.level = levels[len(s.Values)]
	for i, o := range t.origins {
		if came := window(s, o, len(t.means[i])); len(came) == len(t.means[i]) {
			f.earlier = append(f.earlier, earlierForecast{t.means[i], slices.Clone(came), levels[o-t.late]})
		}
	}
}

// isUsual tells whether the load strayed no further in a window of w steps than it
// does at some time after nearly every earlier forecast. It is split conformal: a
// forecast's figure is the furthest that any of its windows went, and the limit is
// the quantile of these figures that one more of the same kind stays under in all
// but falseAlarms of cases, however often it is looked at. Of watchScales that one
// measures on which the most past windows would have been reported, had LT-UA's
// factor or a clearer one been on them.
func (f Forecast) isUsual(s stretch, w int) bool {
	side, factors := 1.0, []float64{watchSharp, burstRatio}
	if s.excess < 0 {
		side, factors = -1, []float64{lullRatio, 0}
	}
	undisturbed, disturbed := f.windows(side, w), f.disturbed(side, w, factors)
	floor := f.floor()
	usual, most := false, -1
	for _, p := range watchScales {
		c := calibration{by: p, floor: floor}
		limit := c.limit(undisturbed)
		told := 0
		for _, d := range disturbed {
			if c.strays(d) > limit {
				told++
			}
		}
		if told > most {
			usual, most = c.strays(s.on(side, f.level)) <= limit, told
		}
	}
	return usual
}

// floor is a hundredth of the mean of what came, which keeps a rest from being
// measured in nothing.
func (f Forecast) floor() float64 {
	var came, known float64
	for _, e := range f.earlier {
		for _, v := range e.came {
			if !math.IsNaN(v) {
				came, known = came+v, known+1
			}
		}
	}
	return 0.01 * came / max(1, known)
}

// sided is a window as seen from one side: how far it went there, the mean of its
// forecast and the level.
type sided struct{ beyond, mean, level float64 }

func (s stretch) on(side, level float64) sided {
	return sided{s.beyond(side), s.expected / float64(s.known), level}
}

// windows are those of every earlier forecast, at each step of it, that are known
// well enough.
func (f Forecast) windows(side float64, w int) [][]sided {
	out := make([][]sided, len(f.earlier))
	for i, e := range f.earlier {
		for t := leastOf(w); t <= len(e.came); t++ {
			if s := stretchOf(e.means, e.came, max(0, t-w), t, 1); s.known >= leastOf(w) {
				out[i] = append(out[i], s.on(side, e.level))
			}
		}
	}
	return out
}

// disturbed are the last windows of the earlier forecasts, multiplied by each of
// the factors.
func (f Forecast) disturbed(side float64, w int, factors []float64) (out []sided) {
	for _, e := range f.earlier {
		for _, factor := range factors {
			n := len(e.came)
			if s := stretchOf(e.means, e.came, max(0, n-w), n, factor); s.known >= leastOf(w) {
				out = append(out, s.on(side, e.level))
			}
		}
	}
	return out
}

// strays is how far a window went, in units of the scale.
func (c calibration) strays(s sided) float64 { return s.beyond / c.scale(s.mean, s.level) }

// limit is what the windows of nearly every forecast stay under.
func (c calibration) limit(windows [][]sided) float64 {
	furthest := make([]float64, len(windows))
	for i, of := range windows {
		for _, s := range of {
			furthest[i] = max(furthest[i], c.strays(s))
		}
	}
	slices.Sort(furthest)
	n := float64(len(furthest))
	return furthest[int(min(n, math.Ceil((1-falseAlarms)*(n+1))))-1]
}
