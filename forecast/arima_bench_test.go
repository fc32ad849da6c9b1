package forecast

import (
	"math"
	"math/rand/v2"
	"testing"
)

// minutes is a day of traffic-like minutes: a slow ARMA process around a level.
func minutes(n int, seed uint64) []float64 {
	r := rand.New(rand.NewPCG(seed, 9))
	out := make([]float64, n)
	level, last := 0.0, 0.0
	for i := range out {
		e := r.NormFloat64()
		level = 0.95*level + e - 0.4*last
		last = e
		out[i] = 5000 + 800*level + 1500*math.Sin(2*math.Pi*float64(i)/1440)
	}
	return out
}

func BenchmarkARIMAFitAndPredict(b *testing.B) {
	y := minutes(1440, 1)
	for _, o := range []ARIMAOrder{{P: 1, D: 1, Q: 1}, {P: 2, D: 1, Q: 2}, {P: 3, D: 0, Q: 2}} {
		b.Run(o.String(), func(b *testing.B) {
			for b.Loop() {
				m, err := FitARIMA(y, ARIMASpec{ARIMAOrder: o, Constant: o.D == 0})
				if err != nil {
					b.Fatal(err)
				}
				if _, _, err := m.Predict(60, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAutoARIMA(b *testing.B) {
	y := minutes(1440, 1)
	for b.Loop() {
		if _, err := AutoARIMA(y, 0, 2, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// A week of minutes, and the hour after it.
func BenchmarkARIMAForecasters(b *testing.B) {
	s := daily(7, 200, 3)
	for _, f := range []Forecaster{ARIMAForecaster()} {
		b.Run(f.Name(), func(b *testing.B) {
			for b.Loop() {
				if _, err := f.Forecast(s, 60); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
