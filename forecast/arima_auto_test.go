package forecast

import "testing"

// goldenOrder is R's differences and orders.
type goldenOrder struct {
	Series          string
	KPSS, Strength  float64
	NDiffs, NSDiffs int
	Order           []int
	AICc            float64
}

// Differences equal R's, and the selected order is no worse by AICc than the one of R's search
// without approximations.
func TestAutoARIMAIsNoWorseThanR(t *testing.T) {
	var golden struct{ Series map[string]goldenSeries }
	readGolden(t, "arima.json", &golden)
	var orders []goldenOrder
	readGolden(t, "order.json", &orders)
	for _, want := range orders {
		t.Run(want.Series, func(t *testing.T) {
			s := golden.Series[want.Series]
			y := s.values()
			if got := kpss(y); !near(got, want.KPSS, 1e-6) {
				t.Errorf("KPSS %g, R has %g", got, want.KPSS)
			}
			if got := differences(y, 2); got != want.NDiffs {
				t.Errorf("%d differences, R has %d", got, want.NDiffs)
			}
			if got := seasonStrength(y, s.Season); !near(got, want.Strength, 0.005) {
				t.Errorf("strength %g, R has %g", got, want.Strength)
			}
			m, err := AutoARIMA(y, s.Season, 2, s.X)
			if err != nil {
				t.Fatal(err)
			}
			if m.AICc > want.AICc+0.01 { // R treats a start of finite variance as a diffuse one
				t.Errorf("%s with AICc %g, R has %v with %g", m, m.AICc, want.Order, want.AICc)
			}
		})
	}
}
