package forecast

import (
	"math"
	"strings"
	"testing"
	"time"
)

// level forecasts a mean with an interval of a given half width.
func level(mean, half float64, steps int) Forecast {
	return Forecast{Mean: flat(mean, steps), Lo90: flat(max(0, mean-half), steps), Hi90: flat(mean+half, steps)}
}

// seen is a forecast after many with the same deviation as near.
func (f Forecast) seen(near func(v float64, steps int) []float64) Forecast {
	for range minPastForecasts {
		f.earlier = append(f.earlier, pastForecast{f.Mean, near(f.Mean[0], len(f.Mean)), f.Mean[0]})
	}
	f.dayMean = f.Mean[0]
	return f
}

func TestWatch(t *testing.T) {
	near := func(v float64, steps int) []float64 {
		out := flat(v, steps)
		for i := range out {
			out[i] *= 1 + 0.1*math.Sin(float64(i))
		}
		return out
	}
	late := append(near(100, 15), near(180, 15)...)
	spike := near(100, 30)
	spike[20] = 1000
	holes := near(300, 30)
	for i := 0; i < 30; i += 2 {
		holes[i] = math.NaN()
	}
	wild := func(v float64, steps int) []float64 { // all of it in a third of the time
		out := flat(0, steps)
		for i := steps / 3; i < 2*steps/3; i++ {
			out[i] = 9 * v
		}
		return out
	}
	calm := level(100, 30, 30).seen(near)
	for name, c := range map[string]struct {
		f           Forecast
		actual      []float64
		kind        DeviationKind
		since       time.Duration // at most
		description string
	}{
		"as forecast":              {calm, near(100, 30), NoDeviation, 0, ""},
		"one spike":                {calm, spike, NoDeviation, 0, ""},
		"twice as much":            {calm, near(220, 10), Burst, 10 * time.Minute, "2.2x the forecast, for 10m (burst)"},
		"more for 15 minutes":      {calm, late, Above, 15 * time.Minute, "1.8x the forecast, for 15m (above)"},
		"half, calm":               {calm, near(60, 30), Below, 20 * time.Minute, "0.6x the forecast, for 20m (below)"},
		"a little more":            {level(100, 0, 30).seen(flat), flat(109, 30), NoDeviation, 0, ""},
		"as wild as ever":          {level(100, 0, 30).seen(wild), wild(100, 30), NoDeviation, 0, ""},
		"a wild one rests":         {level(100, 0, 30).seen(wild), flat(0, 10), NoDeviation, 0, ""},
		"burst of the wild":        {level(100, 0, 30).seen(wild), near(2000, 30), Burst, 20 * time.Minute, "19.9x"},
		"half is unknown":          {calm, holes, Burst, 20 * time.Minute, "3.0x"},
		"nothing learned":          {level(100, 30, 30), near(450, 30), NoDeviation, 0, ""},
		"five times, unlearned":    {level(100, 2000, 30), near(520, 30), Burst, 20 * time.Minute, "5.2x the forecast, for 20m"},
		"half, unlearned":          {level(100, 100, 30), near(45, 30), Below, 20 * time.Minute, "0.4x"},
		"load where none was":      {level(0, 0, 30), near(10, 30), Burst, 20 * time.Minute, "load where none was forecast"},
		"nothing is known":         {calm, flat(math.NaN(), 30), NoDeviation, 0, ""},
		"two steps say nothing":    {calm, []float64{900, 900}, NoDeviation, 0, ""},
		"none forecast, none came": {level(0, 0, 30), flat(0, 30), NoDeviation, 0, ""},
	} {
		d := DetectDeviation(c.f, c.actual, time.Minute)
		if d.Kind != c.kind || d.Since > c.since || !strings.Contains(d.Message, c.description) {
			t.Errorf("%s: %+v, want %q within %s and %q", name, d, c.kind, c.since, c.description)
		}
		if d.Kind != NoDeviation && d.Since == 0 {
			t.Errorf("%s: the start is not reported: %+v", name, d)
		}
	}
}

// A load with its usual deviations stays within its forecast; one that trebles is reported within
// minutes, long before it reaches five times the forecast over 20.
func TestDeparted(t *testing.T) {
	s := daily(3, 100, 21)
	if d := RecentDeviation(SeasonalNaive(), s); d.Kind != NoDeviation {
		t.Errorf("as ever: %+v", d)
	}
	for i := len(s.Values) - 8; i < len(s.Values); i++ {
		s.Values[i] *= 3
	}
	if d := RecentDeviation(SeasonalNaive(), s); d.Kind != Burst || d.Since > 10*time.Minute || math.Abs(d.Ratio-3) > 0.5 {
		t.Errorf("three times as much for 8 minutes: %+v", d)
	}
	if d := RecentDeviation(SeasonalNaive(), series(1, 2, 3)); d.Kind != NoDeviation {
		t.Errorf("too short to decide: %+v", d)
	}
}
