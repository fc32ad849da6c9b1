package forecast

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// roller is a forecaster that says what it would have forecast at several
// origins from one fit, which costs less than a fit at each.
type roller interface {
	// roll fits the series up to the first origin and forecasts the horizon steps
	// from each on. Origins ascend and lie within the series; a forecast uses
	// nothing at or after its origin. The intervals may be left out.
	roll(s Series, origins []int, horizon int) ([]Forecast, error)
}

// rollAny rolls a forecaster, one that is no roller by a forecast at each origin.
func rollAny(f Forecaster, s Series, origins []int, horizon int) ([]Forecast, error) {
	if r, ok := f.(roller); ok {
		return r.roll(s, origins, horizon)
	}
	out := make([]Forecast, 0, len(origins))
	for _, o := range origins {
		fc, err := f.Forecast(s.Upto(o), horizon)
		if err != nil {
			return nil, err
		}
		out = append(out, fc)
	}
	return out, nil
}

// How the past is looked at.
const (
	// errorLookback bounds the past that errors are learned from: a week holds
	// every kind of day and nothing of last season.
	errorLookback = 7 * 24 * time.Hour
	// maxOrigins bounds the past forecasts: a week by the hour.
	maxOrigins = 7 * 24
	// refitEvery is how long one fit serves when the past is rolled through, and
	// refitShare the share of its history: a fit on little is soon outgrown.
	refitEvery = 2 * day
	refitShare = 3
	// leastPast is the history that a model without a need of its own has before
	// its first remembered forecast, in steps.
	leastPast = 10
)

// track is what a forecaster would have said: at every origin the means of the
// horizon steps that follow, told nothing of the last late steps before it.
// Origins and means are parallel, oldest first.
type track struct {
	late    int
	origins []int
	means   [][]float64
}

// recall rolls a forecaster through the last week of a series, at most
// maxOrigins times; fewer origins than a model needs give an empty track. Its
// forecasts are made late, see rollThrough.
func recall(f Forecaster, s Series, late, horizon int) track {
	first := leastPast
	if m, ok := f.(forecaster); ok {
		n, _ := m.need(s)
		first = max(first, n)
	}
	return rollThrough(f, s, pastOrigins(s, late+first), late, horizon)
}

// untilKnown is the series up to its last known value, and how many unknown ones
// follow it: who forecasts from there looks that much further ahead. Past
// forecasts that are to be like it are made late too.
func (s Series) untilKnown() (until Series, late int) {
	n := len(s.Values)
	for n > 0 && math.IsNaN(s.Values[n-1]) {
		n--
	}
	return s.Upto(n), len(s.Values) - n
}

// afterLate leaves out the first late means. Where nothing is known of an hour or
// more, no trend is carried on to more than was ever seen.
func (s Series) afterLate(means []float64, late int) []float64 {
	means = means[late:]
	if late >= s.steps(averageWindow) {
		most := s.most()
		for h := range means {
			means[h] = min(means[h], most)
		}
	}
	return means
}

// noteLate says in words that the end of a series is unknown.
func (f *Forecast) noteLate(s Series, late int) {
	if late > 0 {
		f.Assumed = append(f.Assumed, fmt.Sprintf("nothing is known of the last %s: the forecast reaches over them", s.span(late)))
	}
}

// pastOrigins are at most maxOrigins steps of the last week before the series'
// end and at or after first, evenly apart and, unless that is too rare, by
// whole blocks, which lets models in blocks share their work.
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

// rollThrough rolls a forecaster through origins, fitting it anew every
// refitEvery or sooner. At each origin it is told nothing of the last late steps.
// Origins that it cannot forecast at are left out.
func rollThrough(f Forecaster, s Series, origins []int, late, horizon int) track {
	t := track{late: late}
	told := make([]int, len(origins)) // how much of the series at each
	for i, o := range origins {
		told[i] = o - late
	}
	for len(told) > 0 {
		chunk := min(s.steps(refitEvery), told[0]/refitShare)
		n := 1
		for n < len(told) && told[n] < told[0]+chunk {
			n++
		}
		fcs, err := rollAny(f, s, told[:n], late+horizon)
		if err != nil {
			n = 1 // the next origin has more history
		}
		for i, fc := range fcs {
			t.origins = append(t.origins, told[i]+late)
			t.means = append(t.means, slices.Clone(s.Upto(told[i]).afterLate(fc.Mean, late))) // what lies before is kept by nobody
		}
		told = told[n:]
	}
	return t
}

// window is the known part of what came after an origin, cut at the series' end.
func window(s Series, origin, horizon int) []float64 {
	return s.Values[origin:min(origin+horizon, len(s.Values))]
}

// absoluteError sums |actual - mean| over the known steps of a window, with the
// sum of actuals.
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
