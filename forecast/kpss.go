package forecast

import "math"

// kpssCritical is the 5 % point of the KPSS statistic of a level (Kwiatkowski,
// Phillips, Schmidt and Shin 1992, table 1).
const kpssCritical = 0.463

// kpss returns the statistic of the test that a series is stationary around a level: the higher,
// the less stationary. The long-run variance uses 3*sqrt(n)/13 lags, as in R's ndiffs. values must
// be known and not all equal.
func kpss(values []float64) float64 {
	n := len(values)
	m := mean(values)
	e := make([]float64, n)
	var sum, squares float64
	for t, v := range values {
		e[t] = v - m
		sum += e[t]
		squares += sum * sum
	}
	lags := int(3 * math.Sqrt(float64(n)) / 13)
	long := dot(e, e)
	for lag := 1; lag <= lags; lag++ {
		long += 2 * (1 - float64(lag)/float64(lags+1)) * dot(e[lag:], e[:n-lag])
	}
	return squares / float64(n) / long
}

// differences returns how often a series must be differenced until the KPSS test no longer rejects
// a level, at most maximum times.
func differences(values []float64, maximum int) int {
	values = known(values)
	d := 0
	for d < maximum && !allEqual(values) && kpss(values) > kpssCritical {
		values = lagged(values, 1)
		d++
	}
	return d
}

// allEqual reports whether values are all equal within floating-point precision.
func allEqual(values []float64) bool {
	if len(values) == 0 {
		return true
	}
	lo, hi := values[0], values[0]
	for _, v := range values {
		lo, hi = min(lo, v), max(hi, v)
	}
	return hi-lo <= 1e-10*max(math.Abs(lo), math.Abs(hi))
}
