package forecast

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// wander is days of a load by the quarter of an hour with a daily cycle and a drift.
func wander(days int, seed uint64) Series {
	r := rand.New(rand.NewPCG(seed, 11))
	s := Series{Name: "us m IW-F", Step: 15 * time.Minute, Values: make([]float64, days*96)}
	drift := 0.0
	for i := range s.Values {
		drift = 0.98*drift + 0.06*r.NormFloat64()
		s.Values[i] = 1000 * math.Exp(0.5*math.Sin(2*math.Pi*float64(i)/96)+drift+0.05*r.NormFloat64())
	}
	return s
}

// unknownEnd is a series whose last steps are unknown.
func unknownEnd(s Series, steps int) Series {
	s.Values = slices.Clone(s.Values)
	for i := len(s.Values) - steps; i < len(s.Values); i++ {
		s.Values[i] = math.NaN()
	}
	return s
}

// After an unknown day no model forecasts more than the highest known value, and it reports the
// unknown day; with too little history before it the error reports that.
func TestUnknownDayExtrapolatesNoTrend(t *testing.T) {
	for seed := range uint64(2) {
		minutes := unknownEnd(daily(3, 200, seed), 1440)
		for name, s := range map[string]Series{
			"a level that wanders":        unknownEnd(wander(3, seed), 96),
			"a day of noise":              {Name: minutes.Name, Step: 15 * time.Minute, Values: blocks(minutes.Values, 15)},
			"steep growth until it stops": unknownEnd(tens(3, 5, func(i int) float64 { return 100 * math.Exp(float64(i)/100) }), 144),
		} {
			for _, f := range Forecasters() {
				horizon := s.steps(time.Hour)
				fc, err := f.Forecast(s, horizon)
				if err != nil {
					if !strings.Contains(err.Error(), s.Name) || !strings.Contains(err.Error(), "of history") {
						t.Errorf("%s: %s: %v", name, f.Name(), err)
					}
					continue
				}
				sound(t, name+": "+f.Name(), fc, horizon)
				if top := slices.Max(fc.Mean); top > s.maxKnown() {
					t.Errorf("%s: %s forecasts %.4g after a day of nothing, the greatest known value is %.4g", name, f.Name(), top, s.maxKnown())
				}
				if description := strings.Join(fc.Assumed, "; "); !strings.Contains(description, "no data yet for the most recent day") {
					t.Errorf("%s: %s does not report that a day is unknown: %q", name, f.Name(), description)
				}
			}
		}
	}
}

// ARIMA on minutes of two days with an unknown third day, or only its last minute known, stays
// within the past range: the load varies between 400 and 1600 and ended at 1000.
func TestARIMAKeepsTheLevelOverAnUnknownDay(t *testing.T) {
	for _, seed := range []uint64{3, 12, 18} {
		s := unknownEnd(daily(3, 200, seed), 1440)
		lastMinute := unknownEnd(s, 0)
		lastMinute.Values[len(s.Values)-1] = 1000
		for name, s := range map[string]Series{"nothing": s, "its last minute": lastMinute} {
			fc, err := ARIMAForecaster().Forecast(s, 60)
			if err != nil {
				t.Fatal(err)
			}
			means, err := meansOf(ARIMAForecaster(), s, 60)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range append(means, fc.Mean...) {
				if m < 400 || m > 1600 {
					t.Fatalf("seed %d, of the third day %s: forecasts %.0f, want 400 to 1600", seed, name, m)
				}
			}
		}
	}
}

// Intervals of a series with an unknown end reflect past forecasts with the same gap, so they are
// wider than those of a fully known series.
func TestIntervalsWidenWithUnknownEnd(t *testing.T) {
	const end = 5 * 96
	for _, c := range []struct {
		f     Forecaster
		seeds uint64
	}{{MovingAverage(), 40}, {SeasonalProfile(), 20}, {ARIMAForecaster(), 3}, {Auto(), 1}} {
		var width [2]float64
		var in, all float64
		for seed := range c.seeds {
			whole := wander(6, seed)
			for k, late := range []int{0, 24} {
				fc, err := c.f.Forecast(unknownEnd(whole.UpTo(end), late), 4)
				if err != nil {
					t.Fatal(err)
				}
				for h := range fc.Mean {
					width[k] += fc.Hi90[h] - fc.Lo90[h]
				}
				inside, _ := scoreInterval(whole.Values[end:end+4], fc)
				in, all = in+float64(k)*inside, all+float64(k*4)
			}
		}
		if width[1] < 1.3*width[0] {
			t.Errorf("%s: the interval after six unknown hours is %.2f times that after none", c.f.Name(), width[1]/width[0])
		}
		if c.seeds >= 20 && math.Abs(in/all-0.9) > 0.1 {
			t.Errorf("%s: the interval after six unknown hours holds %.2f of what came", c.f.Name(), in/all)
		}
	}
}
