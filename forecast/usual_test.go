package forecast

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"skyserve/internal/testkit"
)

// aFew is the number of false reports allowed among the 59 of a test for a rate of 3 in 100: three.
const aFew = 0.055

// alarms is, by factor, the share of half hours that are reported when their last 20 minutes are
// multiplied by it; one is checked every 97 minutes, which covers every time of the day.
func alarms(t *testing.T, s Series, factors ...float64) []float64 {
	t.Helper()
	reported, n := make([]float64, len(factors)), 0.0
	for o := s.steps(2 * day); o+30 <= len(s.Values); o += s.steps(97 * time.Minute) {
		f, err := MovingAverage().Forecast(s.UpTo(o), 30)
		if err != nil {
			t.Fatal(err)
		}
		n++
		for k, factor := range factors {
			actual := slices.Clone(s.Values[o : o+30])
			for i := 10; i < len(actual); i++ {
				actual[i] *= factor
			}
			if DetectDeviation(f, actual, s.Step).Kind != NoDeviation {
				reported[k]++
			}
		}
	}
	for k := range reported {
		reported[k] /= n
	}
	return reported
}

// onAndOff is a load that is idle and has bursts of some minutes and of all sizes.
func onAndOff(days int) Series {
	r := rand.New(rand.NewPCG(5, 6))
	s := constant(days*1440, 0)
	for t := 0; t < len(s.Values); {
		height := 100 * (1 + r.ExpFloat64()*r.ExpFloat64())
		for until := t + 2 + r.IntN(12); t < min(until, len(s.Values)); t++ {
			s.Values[t] = height * (0.5 + r.Float64())
		}
		for until := t + 3 + r.IntN(50); t < min(until, len(s.Values)); t++ {
			s.Values[t] = 2 * r.Float64()
		}
	}
	return s
}

// A deviation that is usual for a load is not reported, and an unusual one is, whatever the ratio
// to the forecast: for a load that is on and off by itself, half and five times the forecast occur
// every hour.
func TestWatchIgnoresUsualDeviations(t *testing.T) {
	testkit.Slow(t)
	type share struct{ factor, minimum, maximum float64 }
	for name, c := range map[string]struct {
		series Series
		want   []share
	}{
		"calm":       {daily(6, 100, 9), []share{{1, 0, aFew}, {5, 1, 1}, {0.5, 1, 1}, {0, 1, 1}}},
		"on and off": {onAndOff(6), []share{{1, 0, aFew}, {50, 0.5, 1}}},
	} {
		var factors []float64
		for _, w := range c.want {
			factors = append(factors, w.factor)
		}
		for k, got := range alarms(t, c.series, factors...) {
			if w := c.want[k]; got < w.minimum || got > w.maximum {
				t.Errorf("%s, %g times: %.0f %% of half hours are reported, want %.0f to %.0f", name, w.factor, 100*got, 100*w.minimum, 100*w.maximum)
			}
		}
	}
}

// The series may change after its forecast is made.
func TestWatchCopiesPastValues(t *testing.T) {
	s := daily(3, 100, 9)
	f, err := MovingAverage().Forecast(s, 30)
	if err != nil {
		t.Fatal(err)
	}
	actual := flat(2*f.Mean[0], 30)
	before := DetectDeviation(f, actual, s.Step)
	for i := range s.Values {
		s.Values[i] *= 100
	}
	if after := DetectDeviation(f, actual, s.Step); before.Kind != Burst || after != before {
		t.Errorf("%+v, and after the series changed %+v", before, after)
	}
}
