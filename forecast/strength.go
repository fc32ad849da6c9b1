package forecast

import "math"

// strongSeason is the strength from which a series is seasonally differenced, as in R's nsdiffs.
const strongSeason = 0.64

// seasonSmoothing is the number of seasons in the loess of the seasonal part, as in R's mstl.
const seasonSmoothing = 11

// seasonStrength returns the share of a series' variance around its trend that its season explains,
// 0 to 1 (Wang, Smith and Hyndman 2006), from a decomposition by loess. Unknown values are
// interpolated first. It is 0 for less than two seasons.
func seasonStrength(values []float64, season int) float64 {
	if season < 2 || len(values) <= 2*season {
		return 0
	}
	values = interpolated(values)
	seasonal, trend := stl(values, season)
	rest, both := make([]float64, len(values)), make([]float64, len(values))
	for t, v := range values {
		rest[t] = v - trend[t] - seasonal[t]
		both[t] = v - trend[t]
	}
	whole := variance(both)
	if whole == 0 || allEqual(values) {
		return 0
	}
	return max(0, 1-variance(rest)/whole)
}

func variance(values []float64) float64 {
	m := mean(values)
	var sum float64
	for _, v := range values {
		sum += (v - m) * (v - m)
	}
	return sum / float64(len(values)-1)
}

// interpolated fills unknown values linearly between their known neighbours, and with the nearest
// known one at the ends. They stay unknown where none is known.
func interpolated(values []float64) []float64 {
	out := append([]float64(nil), values...)
	last := -1
	for t := 0; t <= len(out); t++ {
		if t < len(out) && math.IsNaN(out[t]) {
			continue
		}
		for i := last + 1; i < t; i++ {
			switch {
			case last < 0 && t < len(out):
				out[i] = out[t]
			case t == len(out) && last >= 0:
				out[i] = out[last]
			case t < len(out):
				out[i] = out[last] + (out[t]-out[last])*float64(i-last)/float64(t-last)
			}
		}
		last = t
	}
	return out
}

// stl decomposes a series into a season and a trend by loess (Cleveland, Cleveland, McRae and
// Terpenning 1990), without robust weights, with R's windows; the residual is noise.
func stl(values []float64, season int) (seasonal, trend []float64) {
	n := len(values)
	trendWindow := nextOdd(1.5 * float64(season) / (1 - 1.5/seasonSmoothing))
	lowWindow := nextOdd(float64(season))
	seasonal, trend = make([]float64, n), make([]float64, n)
	work := make([]float64, n)
	for range 2 {
		for t, v := range values {
			work[t] = v - trend[t]
		}
		cycles := cycleLoess(work, season)
		low := loess(average(average(average(cycles, season), season), 3), lowWindow, 1, 0, n)
		for t := range seasonal {
			seasonal[t] = cycles[t+season] - low[t]
			work[t] = values[t] - seasonal[t]
		}
		trend = loess(work, trendWindow, 1, 0, n)
	}
	return seasonal, trend
}

// nextOdd returns the smallest odd number that is not below v.
func nextOdd(v float64) int {
	n := int(math.Ceil(v))
	return n + 1 - n%2
}

// cycleLoess smooths the values of each position in the season separately, and extends them by a
// season at both ends.
func cycleLoess(values []float64, season int) []float64 {
	out := make([]float64, len(values)+2*season)
	for place := range season {
		var sub []float64
		for t := place; t < len(values); t += season {
			sub = append(sub, values[t])
		}
		for i, v := range loess(sub, seasonSmoothing, 0, -1, len(sub)+1) {
			out[place+i*season] = v
		}
	}
	return out
}

// loess returns the local regression of degree 0 or 1 of values on their positions, with the
// tricube weights of the window nearest values, at positions from..to-1.
func loess(values []float64, window, degree, from, to int) []float64 {
	n := len(values)
	out := make([]float64, 0, to-from)
	weights := make([]float64, n)
	for at := from; at < to; at++ {
		left := min(max(0, at-window/2), max(0, n-window))
		right := min(n, left+window)
		reach := float64(max(at-left, right-1-at))
		if window > n {
			reach += float64((window - n) / 2)
		}
		var sum, places float64
		for i := left; i < right; i++ {
			weights[i] = tricube(math.Abs(float64(i-at)), reach)
			sum += weights[i]
			places += weights[i] * float64(i)
		}
		places /= sum
		out = append(out, localFit(values[left:right], weights[left:right], float64(left), places, float64(at), sum, degree))
	}
	return out
}

// tricube returns the weight of a value at a distance, with the limits of the original program: 1
// near the middle, 0 at the edge.
func tricube(distance, reach float64) float64 {
	switch {
	case distance <= 0.001*reach:
		return 1
	case distance > 0.999*reach:
		return 0
	}
	f := distance / reach
	f = 1 - f*f*f
	return f * f * f
}

// localFit returns the weighted mean, or line, of values at position at; the first value's position
// is left, their weighted centre is middle.
func localFit(values, weights []float64, left, middle, at, sum float64, degree int) float64 {
	var square, v, slope float64
	for i, w := range weights {
		d := left + float64(i) - middle
		square += w * d * d
		v += w * values[i]
		slope += w * d * values[i]
	}
	v /= sum
	if degree == 1 && math.Sqrt(square/sum) > 0.001*float64(len(values)) {
		v += (at - middle) * slope / square
	}
	return v
}

// average returns the moving average of window values; the result is shorter by window-1.
func average(values []float64, window int) []float64 {
	out := make([]float64, len(values)-window+1)
	var sum float64
	for t, v := range values {
		sum += v
		if t >= window {
			sum -= values[t-window]
		}
		if t >= window-1 {
			out[t-window+1] = sum / float64(window)
		}
	}
	return out
}
