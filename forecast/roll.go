package forecast

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// roller is a forecaster that computes its past forecasts at several origins from one fit, which
// costs less than a fit at each.
type roller interface {
	// roll fits the series up to the first origin and forecasts the horizon steps from each origin
	// on. Origins are ascending and within the series; a forecast uses nothing at or after its
	// origin. The intervals may be omitted.
	roll(s Series, origins []int, horizon int) ([]Forecast, error)
}

// rollAny rolls any forecaster; without a roller it makes a separate forecast at each origin.
func rollAny(f Forecaster, s Series, origins []int, horizon int) ([]Forecast, error) {
	if r, ok := f.(roller); ok {
		return r.roll(s, origins, horizon)
	}
	out := make([]Forecast, 0, len(origins))
	for _, o := range origins {
		fc, err := f.Forecast(s.UpTo(o), horizon)
		if err != nil {
			return nil, err
		}
		out = append(out, fc)
	}
	return out, nil
}

// Parameters of past forecasts.
const (
	// errorLookback bounds the history that errors are learned from: a week contains every weekday,
	// and errors of earlier weeks may be out of date.
	errorLookback = 7 * 24 * time.Hour
	// maxOrigins bounds the past forecasts: a week by the hour.
	maxOrigins = 7 * 24
	// When rolling through the past, a fit is used for refitEvery, or for 1/refitShare of the length of the history that
	// it used if that is shorter, because a fit on little history is soon outdated.
	refitEvery = 2 * day
	refitShare = 3
	// minPast is the minimum history, in steps, before the first past forecast of any forecaster.
	minPast = 10
)

// pastTrack is the past forecasts of a forecaster: at every origin the means of the next horizon steps. The `delay`
// steps before an origin (see Series.untilKnown) were hidden from its forecast. Origins and means are parallel, oldest
// first.
type pastTrack struct {
	delay   int
	origins []int
	means   [][]float64
}

// rollRecent rolls a forecaster through the last week of a series, at most maxOrigins times. For a
// series that is too short for the forecaster, the track is empty. The forecasts ignore the `delay` steps
// before their origin.
func rollRecent(f Forecaster, s Series, delay, horizon int) pastTrack {
	first := minPast
	if m, ok := f.(modelForecaster); ok {
		n, _ := m.need(s)
		first = max(first, n)
	}
	return rollThrough(f, s, pastOrigins(s, delay+first), delay, horizon)
}

// untilKnown returns the series up to its last known value, and the delay of its data: the number of unknown values
// after that one. A forecast covers the delay and then the horizon. Past forecasts are made with the same
// delay to be comparable.
func (s Series) untilKnown() (until Series, delay int) {
	n := len(s.Values)
	for n > 0 && math.IsNaN(s.Values[n-1]) {
		n--
	}
	return s.UpTo(n), len(s.Values) - n
}

// dropDelay drops the means of the delay. After a delay of an hour or more, it bounds the other means by the
// highest known value, so that no trend extrapolates beyond that value.
func (s Series) dropDelay(means []float64, delay int) []float64 {
	means = means[delay:]
	if delay >= s.steps(averageSpan) {
		highest := s.maxKnown()
		for h := range means {
			means[h] = min(means[h], highest)
		}
	}
	return means
}

// noteDelay adds the delay of a series to Assumed.
func (f *Forecast) noteDelay(s Series, delay int) {
	if delay > 0 {
		f.Assumed = append(f.Assumed, fmt.Sprintf("no data yet for the most recent %s: estimated by the forecast too", s.formatSpan(delay)))
	}
}

// pastOrigins returns at most maxOrigins steps of the last week before the series' end and at or
// after first. They are equally spaced. To let models that work in blocks share their work, the distance
// is rounded up to whole blocks, unless that at least doubles it.
func pastOrigins(s Series, first int) []int {
	n := len(s.Values)
	first = max(first, n-s.steps(errorLookback))
	if first >= n {
		return nil
	}
	stride := max(1, (n-first+maxOrigins-1)/maxOrigins)
	if whole := s.blockSize(smoothingBlock); 2*stride > whole {
		stride = (stride + whole - 1) / whole * whole
	}
	var out []int
	for o := n - stride; o >= first; o -= stride {
		out = append(out, o)
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}

// rollThrough rolls a forecaster through origins, refitting it every refitEvery or sooner. It hides the
// `delay` steps before each origin. Origins that it cannot forecast are skipped.
func rollThrough(f Forecaster, s Series, origins []int, delay, horizon int) pastTrack {
	t := pastTrack{delay: delay}
	visible := make([]int, len(origins)) // the length of the visible series for each origin
	for i, o := range origins {
		visible[i] = o - delay
	}
	for len(visible) > 0 {
		chunk := min(s.steps(refitEvery), visible[0]/refitShare)
		n := 1
		for n < len(visible) && visible[n] < visible[0]+chunk {
			n++
		}
		fcs, err := rollAny(f, s, visible[:n], delay+horizon)
		if err != nil {
			n = 1 // the next origin has more history
		}
		for i, fc := range fcs {
			t.origins = append(t.origins, visible[i]+delay)
			t.means = append(t.means, slices.Clone(s.UpTo(visible[i]).dropDelay(fc.Mean, delay))) // drops the reference to earlier means
		}
		visible = visible[n:]
	}
	return t
}

// window returns the values after an origin, cut at the series' end.
func window(s Series, origin, horizon int) []float64 {
	return s.Values[origin:min(origin+horizon, len(s.Values))]
}

// absoluteError sums |actual - mean| over the known steps of a window, and the actual values.
func absoluteError(actual, means []float64) (abs, sum float64, steps int) {
	for h, v := range actual {
		if !math.IsNaN(v) {
			abs += math.Abs(v - means[h])
			sum += v
			steps++
		}
	}
	return abs, sum, steps
}
