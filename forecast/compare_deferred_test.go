//go:build compare

package forecast

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// plainARIMA is R's auto.arima, without a seasonal part, on the ten-minute means of all that came before:
// method ten of backtest.R.
type plainARIMA struct{}

func (plainARIMA) Name() string { return "auto.arima" }

func (plainARIMA) Forecast(s Series, horizon int) (Forecast, error) {
	c := coarsen(s, 10*time.Minute, len(s.Values))
	m, err := AutoARIMA(c.Values, 0, 2, nil)
	if err != nil {
		return Forecast{}, err
	}
	n := len(c.Values)
	path := m.paths(m.unexplained(c.Values, nil), []int{n}, (horizon+c.size-1)/c.size)[0]
	means := make([]float64, horizon)
	for h := range means {
		means[h] = max(0, path[h/c.size]+m.explained(n+h/c.size, nil))
	}
	return Forecast{Mean: means, Lo90: means, Hi90: means}, nil
}

// Auto compared with auto.arima on deferred loads with little history of load: single days and pairs of days
// of the public week, and generated weeks whose load is in two days, in the nights or in jobs.
func TestCompareDeferred(t *testing.T) {
	series := append(deferredDays(t), deferredWeeks()...)
	lines := make([]string, len(series))
	t.Run("series", func(t *testing.T) {
		for i, s := range series {
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel()
				hour := s.steps(time.Hour)
				both, err := compareAll(s, []Forecaster{Auto(), plainARIMA{}}, hour, hour, nil)
				if err != nil {
					t.Fatal(err)
				}
				auto, plain := *both.Rows[0].WAPE, *both.Rows[1].WAPE
				result := "not told apart"
				if both.Winner != nil {
					result = *both.Winner + " is better"
				}
				lines[i] = fmt.Sprintf("%-24s %3d windows, %3d with load: auto %.3f, auto.arima %.3f, ratio %.3f, %s\n", s.Name, both.Windows, both.WithLoad, auto, plain, auto/plain, result)
			})
		}
	})
	t.Logf("WAPE, and which is better with 95 %% confidence\n%s", strings.Join(lines, ""))
}

// deferredDays returns the deferred series of the public week, whole and with the load of two days or of one only.
func deferredDays(t *testing.T) (out []Series) {
	for _, s := range readWeek(t) {
		if !strings.HasSuffix(s.Name, "NIW") {
			continue
		}
		out = append(out, s)
		for _, d := range []int{1, 3} {
			day, two := s, s
			day.Name, two.Name = fmt.Sprintf("%s day %d", s.Name, d), fmt.Sprintf("%s days %d-%d", s.Name, d, d+1)
			day.Values = s.Values[d*1440 : (d+1)*1440]
			two.Values = slices.Concat(make([]float64, d*1440), s.Values[d*1440:(d+2)*1440], make([]float64, (5-d)*1440))
			out = append(out, day, two)
		}
	}
	return out
}

// deferredWeeks returns generated loads by ten minutes with correlated log-normal noise.
func deferredWeeks() (out []Series) {
	daily := func(h float64) float64 { return 1 + 0.8*math.Cos((h-14)*math.Pi/12) }
	middle := func(d float64) float64 { return ifElse(d >= 2 && d < 4, 1.0, 0.0) }
	for seed := range uint64(2) {
		r := rand.New(rand.NewPCG(seed, 77))
		on, until := 0.0, 0.0
		for _, shape := range []struct {
			name string
			days int
			at   func(day, hour float64) float64
		}{
			{"two days", 7, func(d, _ float64) float64 { return middle(d) }},
			{"two days apart", 7, func(d, _ float64) float64 { return ifElse(int(d) == 2 || int(d) == 5, 1.0, 0.0) }},
			{"two days, daily", 7, func(d, h float64) float64 { return middle(d) * daily(h) }},
			{"two days, decaying", 7, func(d, h float64) float64 { return middle(d) * 5 * math.Exp(-h/5) }},
			{"nights", 7, func(_, h float64) float64 { return ifElse(h < 6, 1.0, 0.0) }},
			{"jobs", 7, func(d, _ float64) float64 {
				for d >= until {
					on, until = 1-on, until+0.2*r.ExpFloat64()
				}
				return on
			}},
			{"a day", 1, func(_, _ float64) float64 { return 1 }},
			{"a day, daily", 1, func(_, h float64) float64 { return daily(h) }},
			{"a day, decaying", 1, func(_, h float64) float64 { return 5 * math.Exp(-h/5) }},
		} {
			s := Series{Name: fmt.Sprintf("%s, seed %d", shape.name, seed), Step: 10 * time.Minute, Values: make([]float64, shape.days*144)}
			log := 0.0
			for i := range s.Values {
				log = 0.6*log + 0.3*r.NormFloat64()
				s.Values[i] = 1000 * math.Exp(log) * shape.at(float64(i)/144, float64(i%144)/6)
			}
			out = append(out, s)
		}
	}
	return out
}
