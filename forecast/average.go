package forecast

import (
	"fmt"
	"math"
	"time"
)

// Windows of the models, each with its reason.
const (
	// averageWindow is what the moving average looks back: the hour that a plan
	// is made for.
	averageWindow = time.Hour
	// errorLookback bounds the past that intervals are learned from: a week
	// holds every kind of day and nothing of last season.
	errorLookback = 7 * 24 * time.Hour
	// horizonBins is into how many parts a horizon is cut to learn how errors
	// grow with distance.
	horizonBins = 4
	// maxErrors bounds the past errors of a bin.
	maxErrors = 2000
)

type movingAverage struct{}

// MovingAverage expects the mean of the last hour (or of what there is) to go
// on. Its interval is the 90 % range of the errors that the same rule made
// before, by distance; with too little past it is that of the hour's own spread.
func MovingAverage() Forecaster { return movingAverage{} }

func (movingAverage) Name() string { return "moving-average" }

func (m movingAverage) Forecast(s Series, horizon int) (Forecast, error) {
	if err := s.check(horizon); err != nil {
		return Forecast{}, err
	}
	window := s.steps(averageWindow)
	recent, late := lastKnown(s.Values, window)
	level := mean(recent)
	f := Forecast{Model: m.Name(), Mean: make([]float64, horizon), Lo90: make([]float64, horizon), Hi90: make([]float64, horizon)}
	f.Assumed = m.assumed(s, window, len(recent), late, horizon)
	bands := m.bands(s, window, horizon)
	for h := range horizon {
		b := spread(recent)
		if bands != nil {
			b = bands[h*horizonBins/horizon]
		}
		f.Mean[h] = level
		f.Lo90[h], f.Hi90[h] = b.around(level)
	}
	return f, nil
}

// means is the forecast without its interval.
func (movingAverage) means(s Series, horizon int) ([]float64, error) {
	recent, _ := lastKnown(s.Values, s.steps(averageWindow))
	if len(recent) == 0 {
		return nil, s.check(horizon)
	}
	out := make([]float64, horizon)
	level := mean(recent)
	for h := range out {
		out[h] = level
	}
	return out, nil
}

// lastKnown takes the window's known values, or, when it has none, as many as
// it would hold from before it; late is how many steps it had to go back.
func lastKnown(values []float64, window int) (recent []float64, late int) {
	end := len(values)
	for end > 0 && math.IsNaN(values[end-1]) {
		end--
	}
	return known(values[max(0, end-window):end]), len(values) - end
}

func (movingAverage) assumed(s Series, window, have, late, horizon int) []string {
	var out []string
	if have < window {
		only := "only "
		if have == len(s.Values) {
			only += s.words(have) + " of history"
		} else {
			only += s.words(have) + " known of the last " + s.span(min(window, len(s.Values)))
		}
		out = append(out, fmt.Sprintf("%s: the mean of the last %s is assumed for the next %s", only, s.span(have), s.span(horizon)))
	}
	if late > 0 {
		out = append(out, fmt.Sprintf("nothing is known of the last %s: the mean before is assumed to go on", s.span(late)))
	}
	return out
}

// bands learns the range of the rule's past errors for each part of the
// horizon; nil when any part has too few.
func (movingAverage) bands(s Series, window, horizon int) []band {
	sum, count := prefixSums(s.Values)
	n := len(s.Values)
	first := max(window, n-s.steps(errorLookback))
	stride := max(1, (n-first)*horizon/horizonBins/maxErrors)
	errs := make([][]float64, horizonBins)
	for o := first; o < n; o += stride {
		have := count[o] - count[o-window]
		if have == 0 {
			continue
		}
		level := (sum[o] - sum[o-window]) / float64(have)
		for h := range min(horizon, n-o) {
			if v := s.Values[o+h]; !math.IsNaN(v) {
				bin := h * horizonBins / horizon
				errs[bin] = append(errs[bin], v-level)
			}
		}
	}
	out := make([]band, horizonBins)
	for i := range out {
		if i*horizon/horizonBins == (i+1)*horizon/horizonBins {
			continue // a horizon shorter than horizonBins leaves parts empty
		}
		b, ok := bandOf(errs[i])
		if !ok {
			return nil
		}
		out[i] = b
	}
	return out
}

// prefixSums gives running sums and counts of the known values: sum[i] is over
// the first i.
func prefixSums(values []float64) (sum []float64, count []int) {
	sum, count = make([]float64, len(values)+1), make([]int, len(values)+1)
	for i, v := range values {
		sum[i+1], count[i+1] = sum[i], count[i]
		if !math.IsNaN(v) {
			sum[i+1] += v
			count[i+1]++
		}
	}
	return sum, count
}
