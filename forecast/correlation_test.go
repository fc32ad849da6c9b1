package forecast

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Intervals contain 90 % of the actual values after a few periods whose values err together: a
// hundred errors of one period prove little about the next period.
func TestIntervalsCoverErrorsOfAPeriod(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 5))
	draw := func(period int) (out []outcome) {
		common := 100 * r.NormFloat64()
		for range 40 {
			m := 900 + 200*r.Float64()
			out = append(out, outcome{m, max(0, m+common+5*r.NormFloat64()), 1000, 1, period})
		}
		return out
	}
	var in, all float64
	for range 300 {
		var past []outcome
		for n := range 22 {
			past = append(past, draw(n)...)
		}
		c, _ := calibrate(past)
		for _, o := range draw(22)[:5] {
			all++
			if lo, hi := c.interval(o.mean, o.dayMean); lo <= o.actual && o.actual <= hi {
				in++
			}
		}
	}
	if share := in / all; math.Abs(share-0.9) > 0.03 {
		t.Errorf("covers %.3f", share)
	}
}

// Six hours ahead, where a load wanders and its errors last for hours, intervals learned from a week
// contain about 90 % of the actual values.
func TestIntervalsCoverSixHours(t *testing.T) {
	const end, horizon = 8 * 96, 24
	var in, all float64
	for seed := range uint64(160) {
		whole := wander(9, seed)
		fc, err := MovingAverage().Forecast(whole.UpTo(end), horizon)
		if err != nil {
			t.Fatal(err)
		}
		inside, _ := scoreInterval(whole.Values[end:end+horizon], fc)
		in, all = in+inside, all+horizon
	}
	if share := in / all; math.Abs(share-0.9) > 0.06 {
		t.Errorf("covers %.3f of the next six hours", share)
	}
}
