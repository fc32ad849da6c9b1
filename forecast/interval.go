package forecast

import (
	"math"
	"slices"
	"time"
)

const (
	// minErrors is the minimum number of past errors for an interval: with fewer than 20 the ends
	// of a 90 % interval are outside the observed range.
	minErrors = 20
	// horizonBins is the number of parts of a horizon whose errors are learned separately, because
	// errors grow with distance.
	horizonBins = 6
	// similarShare is the share of past errors that apply to a forecast: those of the forecasts of the most
	// similar size, because a quiet night is no evidence for noon.
	similarShare = 0.4
	// nearZero is the share of the mean below which a lower end is near zero.
	nearZero = 0.1
	// errorFade is the age at which an error of a step has weight 1/e, and peakFade that of a peak: few peaks of a week are
	// independent.
	errorFade = 3 * day
	peakFade  = 2 * errorFade
	// minSimilar is the minimum number of past errors that apply to a forecast, of a step or of a peak.
	minSimilar = 100
)

// outcome is a past forecast of one value and the actual value. dayMean is the mean of the day before
// the forecast; weight fades with age. Time is divided into periods as long as the horizon, because the errors of one
// period may be large together; period is the number of periods before the one of the value, or of a peak's origin.
type outcome struct {
	mean, actual, dayMean, weight float64
	period                        int
}

// errorScale defines what errors are divided by, so that those of large and of small loads are comparable: a power
// of the forecast (0 = absolute errors, 1 = relative errors) times a power of the mean of the day before. A forecast
// alone cannot distinguish a quiet weekend, whose bursts are small, from a quiet hour of a busy day.
type errorScale struct{ meanPower, dayMeanPower float64 }

// errorScales are the scales to try: no error grows faster than the load.
var errorScales = []errorScale{{0, 0}, {0.5, 0}, {1, 0}, {0, 0.5}, {0.5, 0.5}}

// calibration learns the intervals of new forecasts from past outcomes: split conformal prediction, with
// scaled errors from forecasts of similar size.
type calibration struct {
	outcomes []outcome // by mean
	byError  []scaledError
	scale    errorScale
	floor    float64 // added to means before scaling, so that the scale of an idle load is not zero
	similar  int     // number of outcomes that apply
	// correlation is the correlation of large errors of one period, from 0 for independent ones to 1.
	correlation float64
	periods     int // number of periods
	// unbiased is copied to the samples of errors.
	unbiased bool
}

// calibrate creates a calibration from past outcomes of steps, oldest first; ok is false when there are too
// few.
func calibrate(past []outcome) (c calibration, ok bool) {
	if c, ok = scaledCalibration(past); ok {
		c.learnCorrelation()
	}
	return c, ok
}

// scaledCalibration creates a calibration of independent errors. Its scale is the one whose intervals, learned from the
// older half, have the lowest interval score (Gneiting and Raftery 2007, eq. 43) on the newer half.
func scaledCalibration(past []outcome) (c calibration, ok bool) {
	if len(past) < minErrors {
		return calibration{}, false
	}
	half := len(past) / 2
	older := byMean(past[:half])
	best, lowest := errorScales[0], math.Inf(1)
	for _, scale := range errorScales {
		if score := newCalibration(older, scale).score(past[half:]); score < lowest {
			best, lowest = scale, score
		}
	}
	return newCalibration(byMean(past), best), true
}

// byMean returns outcomes sorted by mean, the older of equal ones first.
func byMean(past []outcome) []outcome {
	return slices.SortedStableFunc(slices.Values(past), func(a, b outcome) int { return ascending(a.mean, b.mean) })
}

// ascending is cmp.Compare without the test for NaN, which is slow: a calibration spends most of its time
// in comparisons.
func ascending(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// newCalibration scales the errors of outcomes, which must be sorted by mean.
func newCalibration(sorted []outcome, scale errorScale) calibration {
	c := calibration{outcomes: sorted, scale: scale}
	var sum float64
	for _, o := range sorted {
		sum += o.actual
	}
	c.floor = 0.01 * sum / float64(max(1, len(sorted)))
	c.similar = max(minSimilar, int(similarShare*float64(len(sorted))))
	c.byError = make([]scaledError, len(sorted))
	for i, o := range sorted {
		c.byError[i] = scaledError{(o.actual - o.mean) / c.scaleAt(o.mean, o.dayMean), i}
	}
	slices.SortFunc(c.byError, func(a, b scaledError) int { return ascending(a.value, b.value) })
	return c
}

// scaledError is the error of an outcome, divided by its scale. All of them are sorted by value once; those of any range
// of outcomes are then in order without another sort.
type scaledError struct {
	value   float64
	outcome int
}

// scaleAt returns what the error of a forecast is divided by.
func (c calibration) scaleAt(mean, dayMean float64) float64 {
	if s := power(mean+c.floor, c.scale.meanPower) * power(dayMean+c.floor, c.scale.dayMeanPower); s > 0 {
		return s
	}
	return 1
}

// power is math.Pow, faster for the few exponents of errorScales.
func power(x, exponent float64) float64 {
	switch exponent {
	case 0:
		return 1
	case 0.5:
		return math.Sqrt(x)
	case 1:
		return x
	}
	return math.Pow(x, exponent)
}

// errors returns the scaled errors of the outcomes whose means are nearest to mean.
func (c calibration) errors(mean float64) errorSample {
	from, to := nearest(c.outcomes, mean, c.similar)
	out := errorSample{values: make([]weighted, 0, to-from)}
	var sum, squares float64
	together := make([]float64, c.periods) // the weights of each period
	for _, e := range c.byError {
		if e.outcome < from || e.outcome >= to {
			continue
		}
		o := c.outcomes[e.outcome]
		out.values = append(out.values, weighted{e.value, o.weight})
		sum += o.weight
		squares += o.weight * o.weight
		if c.periods > 0 {
			together[o.period] += o.weight
		}
	}
	for i := range out.values {
		out.values[i].weight /= sum
	}
	variance := (1 - c.correlation) * squares
	for _, w := range together {
		variance += c.correlation * w * w
	}
	out.count, out.unbiased = sum*sum/variance, c.unbiased
	return out
}

// errorSample is past errors, sorted, with weights that sum to 1. count is the equivalent number of
// independent errors of equal weight (Kish 1965: a sample of clusters).
type errorSample struct {
	values   []weighted
	count    float64
	unbiased bool
}

type weighted struct{ value, weight float64 }

// quantile returns the q-quantile of the error of the next forecast, by the correction of conformal prediction for few
// errors: the next error is equally likely to have any rank among the past ones (`count` of them). So the result is
// at least as far from the median as the q-quantile of the past errors. An unbiased one is half a rank nearer to the
// median, and the median is that of the past errors.
func (e errorSample) quantile(q float64) float64 {
	if q < 0.5 {
		return -e.upper(1-q, -1)
	}
	return e.upper(q, 1)
}

// upper returns the quantile for q of at least 0.5, of the errors times sign.
func (e errorSample) upper(q, sign float64) float64 {
	ranks := 1.0
	if e.unbiased {
		ranks = 0.5
	}
	beyond := (1-q)*(1+1/e.count) - ranks/e.count
	var sum float64
	n := len(e.values)
	for k := range n {
		v := e.values[k]
		if sign > 0 {
			v = e.values[n-1-k]
		}
		if sum += v.weight; sum > beyond {
			return sign * v.value
		}
	}
	return sign * e.values[n-1].value
}

// nearest returns the range of n outcomes whose means are nearest to mean by rank: where possible, as many below as
// above.
func nearest(sorted []outcome, mean float64, n int) (from, to int) {
	at, _ := slices.BinarySearchFunc(sorted, mean, func(o outcome, m float64) int {
		if o.mean < m {
			return -1
		}
		return 1
	})
	from = min(max(0, at-n/2), max(0, len(sorted)-n))
	return from, min(len(sorted), from+n)
}

// interval returns the range that contains 90 % of the outcomes of similar forecasts: 5 % are below
// and 5 % above. Where the lower end is at zero, so that none can be below, up to 10 % are above.
func (c calibration) interval(mean, dayMean float64) (lo, hi float64) {
	errs := c.errors(mean)
	s := c.scaleAt(mean, dayMean)
	lo = max(0, mean+s*min(0, errs.quantile(0.05)))
	below := 0.05
	if lo < nearZero*mean {
		below = min(below, c.below(mean, lo))
	}
	return lo, mean + s*max(0, errs.quantile(0.90+below))
}

// below returns the share of outcomes of similar forecasts under a value.
func (c calibration) below(mean, value float64) float64 {
	from, to := nearest(c.outcomes, mean, c.similar)
	var under, all float64
	for _, o := range c.outcomes[from:to] {
		all += o.weight
		if o.actual < value {
			under += o.weight
		}
	}
	return under / all
}

// score returns the mean interval score on newer outcomes. To save time, it computes the quantiles of the errors for
// a few sizes of forecast only, and uses the nearest of these for each outcome.
func (c calibration) score(newer []outcome) float64 {
	if len(c.outcomes) == 0 {
		return 0
	}
	type ends struct{ lo, hi float64 }
	const sizes = 8
	var cuts [sizes]float64
	var errs [sizes]ends
	for i := range cuts {
		m := c.outcomes[(2*i+1)*len(c.outcomes)/(2*sizes)].mean
		e := c.errors(m)
		cuts[i], errs[i] = m, ends{e.quantile(0.05), e.quantile(0.95)}
	}
	var sum float64
	for _, o := range newer {
		i := 0
		for i+1 < sizes && o.mean-cuts[i] > cuts[i+1]-o.mean {
			i++
		}
		s := c.scaleAt(o.mean, o.dayMean)
		lo, hi := o.mean+s*errs[i].lo, o.mean+s*errs[i].hi
		sum += hi - lo + 20*max(0, lo-o.actual) + 20*max(0, o.actual-hi)
	}
	return sum / float64(max(1, len(newer)))
}

// outcomes returns the outcomes of a track's forecasts in one bin of the horizon.
func (t pastTrack) outcomes(s Series, dayMeans []float64, horizon, bin int) []outcome {
	from, to := bin*horizon/horizonBins, (bin+1)*horizon/horizonBins
	var out []outcome
	for i, o := range t.origins {
		actual := window(s, o, horizon)
		weight := t.weight(i, s, errorFade)
		for h := from; h < min(to, len(actual)); h++ {
			if v := actual[h]; !math.IsNaN(v) {
				out = append(out, outcome{t.means[i][h], v, dayMeans[o-t.delay], weight, (o + h - t.origins[0]) / horizon})
			}
		}
	}
	return out
}

// weight returns the weight of a forecast, which is 1/e at the age fade.
func (t pastTrack) weight(i int, s Series, fade time.Duration) float64 {
	return math.Exp(-float64(len(s.Values)-t.origins[i]) / float64(s.steps(fade)))
}

// dayMeansOf returns the mean of the day before every step, and of the last day of the series. Over a whole day, the mean
// does not depend on the time of day. Where that day is unknown, the mean is over all values before, and 0 where none is
// known.
func dayMeansOf(s Series) []float64 {
	sum, count := prefixSums(s.Values)
	out := make([]float64, len(sum))
	past := s.steps(day)
	for o := range out {
		from := max(0, o-past)
		if count[o] == count[from] {
			from = 0
		}
		if n := count[o] - count[from]; n > 0 {
			out[o] = (sum[o] - sum[from]) / n
		}
	}
	return out
}

// learnIntervals sets a forecast's intervals, its peaks and the usual deviations for DetectDeviation from past
// forecasts of a series that ends with a known value. Intervals are learned for one part of the horizon at a time.
// Parts with too few outcomes have the intervals that ends returns, and Assumed reports that.
func (f *Forecast) learnIntervals(t pastTrack, s Series, ends func(h int) (lo, hi float64), description string) {
	horizon := len(f.Mean)
	f.Lo90, f.Hi90 = make([]float64, horizon), make([]float64, horizon)
	short := false
	dayMeans := dayMeansOf(s)
	now := dayMeans[len(s.Values)]
	for bin := range horizonBins {
		from, to := bin*horizon/horizonBins, (bin+1)*horizon/horizonBins
		if from == to {
			continue // a horizon shorter than horizonBins has empty parts
		}
		c, ok := calibrate(t.outcomes(s, dayMeans, horizon, bin))
		short = short || !ok
		for h := from; h < to; h++ {
			if ok {
				f.Lo90[h], f.Hi90[h] = c.interval(f.Mean[h], now)
			} else {
				f.Lo90[h], f.Hi90[h] = ends(h)
			}
		}
	}
	if short {
		f.Assumed = append(f.Assumed, "insufficient history of past forecasts for a prediction interval: using "+description)
	}
	f.learnPeak(t, s, dayMeans)
	f.recordPast(t, s, dayMeans)
}

// learnIntervalsOrSpread is learnIntervals with the spread of the last values where the interval cannot be learned.
func (f *Forecast) learnIntervalsOrSpread(t pastTrack, s Series) {
	past := max(s.steps(averageSpan), t.delay+len(f.Mean))
	b, description := spread(s, past), "the spread of the last "+s.formatSpan(min(past, len(s.Values)))
	if len(lastKnown(s.Values, past)) == 1 {
		description = "0 to twice the only known value"
	}
	f.learnIntervals(t, s, func(h int) (lo, hi float64) { return max(0, f.Mean[h]-b), f.Mean[h] + b }, description)
}

// spread returns half the 90 % range of a normal distribution with the standard deviation of the
// last `past` known values, for series without past errors: a longer horizon uses more of the past.
// For a single value it is that value.
func spread(s Series, past int) float64 {
	values := lastKnown(s.Values, past)
	n := float64(len(values))
	m := mean(values)
	if n < 2 {
		return m
	}
	var ss float64
	for _, v := range values {
		ss += (v - m) * (v - m)
	}
	return 1.645 * math.Sqrt(ss/(n-1)*(1+1/n))
}

func mean(values []float64) float64 {
	var sum float64
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// known returns the known values.
func known(values []float64) []float64 {
	out := make([]float64, 0, len(values))
	for _, v := range values {
		if !math.IsNaN(v) {
			out = append(out, v)
		}
	}
	return out
}
