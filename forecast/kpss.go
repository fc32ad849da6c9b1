package forecast

import "math"

// kpssCritical is the 5 % point of the KPSS statistic of a level (Kwiatkowski,
// Phillips, Schmidt and Shin 1992, table 1).
const kpssCritical = 0.463

// kpss is the statistic of the test that a series is stationary about a level:
// the greater, the less it is. The long-run variance takes 3*sqrt(n)/13 lags, as
// R's ndiffs has it. values must be known and not all alike.
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

// differences is how often a series must be differenced until the KPSS test no
// longer speaks against a level, at most most.
func differences(values []float64, most int) int {
	values = known(values)
	d := 0
	for d < most && !alike(values) && kpss(values) > kpssCritical {
		values = lagged(values, 1)
		d++
	}
	return d
}

// alike tells whether values are all the same, as far as numbers of their size
// can tell.
func alike(values []float64) bool {
	if len(values) == 0 {
		return true
	}
	lo, hi := values[0], values[0]
	for _, v := range values {
		lo, hi = min(lo, v), max(hi, v)
	}
	return hi-lo <= 1e-10*max(math.Abs(lo), math.Abs(hi))
}
