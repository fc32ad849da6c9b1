package forecast

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// outcomesOf draws forecasts and actual values.
func outcomesOf(n int, r *rand.Rand, spread func(mean float64) float64) []outcome {
	out := make([]outcome, n)
	for i := range out {
		m := 10 + 990*r.Float64()
		out[i] = outcome{m, max(0, m+spread(m)*r.NormFloat64()), 500, 1, i}
	}
	return out
}

// Intervals contain 90 % of the actual values, for low and for high loads, whether errors grow with
// the load or not.
func TestIntervalsCover(t *testing.T) {
	for name, spread := range map[string]func(float64) float64{
		"absolute": func(float64) float64 { return 5 },
		"relative": func(m float64) float64 { return 0.2 * m },
		"roots":    func(m float64) float64 { return 2 * math.Sqrt(m) },
	} {
		r := rand.New(rand.NewPCG(1, 5))
		c, ok := calibrate(outcomesOf(2000, r, spread))
		if !ok {
			t.Fatal("2000 outcomes are too few")
		}
		var in, all [2]float64
		for _, o := range outcomesOf(4000, r, spread) {
			half := 0
			if o.mean > 500 {
				half = 1
			}
			all[half]++
			if lo, hi := c.interval(o.mean, o.dayMean); lo <= o.actual && o.actual <= hi {
				in[half]++
			}
		}
		for half := range in {
			if share := in[half] / all[half]; math.Abs(share-0.9) > 0.04 {
				t.Errorf("%s errors: covers %.3f of half %d", name, share, half)
			}
		}
	}
}

// When bursts grow with the mean of the day before, intervals contain 90 % of the actual values on quiet and
// on busy days, although the forecasts are the same.
func TestIntervalsNarrowOnQuietDays(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	draws := 0
	draw := func(dayMean float64) outcome {
		draws++
		m := 400 + 200*r.Float64()
		return outcome{m, max(0, m+2*math.Sqrt(dayMean)*r.NormFloat64()), dayMean, 1, draws}
	}
	var past []outcome
	for i := range 4000 {
		past = append(past, draw([]float64{100, 2500}[i/100%2]))
	}
	c, _ := calibrate(past)
	for _, dayMean := range []float64{100, 2500} {
		var in float64
		for range 2000 {
			o := draw(dayMean)
			if lo, hi := c.interval(o.mean, dayMean); lo <= o.actual && o.actual <= hi {
				in++
			}
		}
		if math.Abs(in/2000-0.9) > 0.03 {
			t.Errorf("covers %.3f after days of %g", in/2000, dayMean)
		}
	}
}

// The mean is that of the day before, or of all values before where that day is unknown.
func TestDayMeans(t *testing.T) {
	s := Series{Step: 12 * time.Hour, Values: []float64{2, 4, 8, math.NaN(), math.NaN(), 6}}
	if got := fmt.Sprint(dayMeansOf(s)); got != "[0 2 3 6 8 4.666666666666667 6]" {
		t.Errorf("means %s", got)
	}
}

// A quantile with equal weights is that of the sorted values, rounded away from the median.
func TestSampleQuantile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(-100, 100), 1, 60).Draw(t, "values")
		q := rapid.Float64Range(0.01, 0.99).Draw(t, "q")
		slices.Sort(values)
		e := errorSample{count: float64(len(values))}
		for _, v := range values {
			e.values = append(e.values, weighted{v, 1 / float64(len(values))})
		}
		rank := q * float64(len(values)+1) // from 1
		low, high := int(math.Floor(rank-1e-6)), int(math.Ceil(rank+1e-6))
		clamp := func(i int) float64 { return values[min(max(i-1, 0), len(values)-1)] }
		if got := e.quantile(q); got < clamp(low) || got > clamp(high) {
			t.Fatalf("quantile %g of %v: %g, want %g to %g", q, values, got, clamp(low), clamp(high))
		}
	})
}

// Recent errors weigh more than old ones.
func TestIntervalsForgetOldErrors(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 5))
	var past []outcome
	for i := range 1000 {
		noise := 100.0
		if i >= 500 {
			noise = 1
		}
		past = append(past, outcome{500 + r.Float64(), 500 + noise*r.NormFloat64(), 500, math.Exp(float64(i-1000) / 100), i})
	}
	c, _ := calibrate(past)
	if lo, hi := c.interval(500, 500); hi-lo > 20 {
		t.Errorf("the past is over, yet %g to %g", lo, hi)
	}
	if _, ok := calibrate(past[:minErrors-1]); ok {
		t.Error("too few outcomes make an interval")
	}
}

// The peak of noise is above its mean; the distance is learned.
func TestPeaks(t *testing.T) {
	s := noise(4, 3)
	f, err := MovingAverage().Forecast(s, 60)
	if err != nil {
		t.Fatal(err)
	}
	// The mean of the greatest of 60 values of N(1000, 300²) is 1000 + 2.32 * 300.
	if p := f.Peaks; math.Abs(p.Mean-1696) > 60 || math.Abs(p.P50-1680) > 60 || p.P95 < p.P90 || p.P95 > 2200 {
		t.Errorf("peaks %+v", p)
	}
	if mean, hi := f.ExpectedPeak(); mean != f.Peaks.Mean || hi != f.Peaks.P95 {
		t.Errorf("peak %g, %g", mean, hi)
	}
	short, err := MovingAverage().Forecast(constant(3, 10), 5)
	if err != nil || short.Peaks != (Peaks{10, 10, 10, 10, 10, 10}) {
		t.Errorf("without a past: %+v, %v", short.Peaks, err)
	}
	tick, err := compareAll(s, []Forecaster{MovingAverage()}, 60, 120, nil)
	if err != nil || math.Abs(*tick.Rows[0].PeakCoverage90-0.9) > 0.08 || math.Abs(*tick.Rows[0].Coverage90-0.9) > 0.02 {
		t.Errorf("covers %g of the peaks and %g of the steps", *tick.Rows[0].PeakCoverage90, *tick.Rows[0].Coverage90)
	}
}

// scoreInterval counts the values inside the interval and sums its score (Gneiting and Raftery
// 2007, eq. 43): its width, and 20 times the distance of a value outside.
func scoreInterval(actual []float64, f Forecast) (inside, score float64) {
	for h, v := range actual {
		if math.IsNaN(v) {
			continue
		}
		below, above := max(0, f.Lo90[h]-v), max(0, v-f.Hi90[h])
		if below+above == 0 {
			inside++
		}
		score += f.Hi90[h] - f.Lo90[h] + 20*(below+above)
	}
	return inside, score
}
