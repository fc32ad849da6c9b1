package forecast

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"
)

// goldenSeries is a series of testdata/golden/arima.json.
type goldenSeries struct {
	Y      []*float64
	Season int
	X      [][]float64
}

// goldenFit is R's fit of a model.
type goldenFit struct {
	Series          string
	Order, Seasonal [3]int
	Season          int
	Constant        bool
	Coef            map[string]float64
	Sigma2, LogLik  float64
	AIC, BIC        float64
	Mean, SE        []float64
}

func (s goldenSeries) values() []float64 {
	out := make([]float64, len(s.Y))
	for i, v := range s.Y {
		out[i] = math.NaN()
		if v != nil {
			out[i] = *v
		}
	}
	return out
}

func (f goldenFit) spec(s goldenSeries) ARIMASpec {
	return ARIMASpec{
		ARIMAOrder: ARIMAOrder{P: f.Order[0], D: f.Order[1], Q: f.Order[2], SP: f.Seasonal[0], SD: f.Seasonal[1], SQ: f.Seasonal[2], Season: f.Season},
		Constant:   f.Constant, X: s.X,
	}
}

func readGolden(t testing.TB, name string, into any) {
	t.Helper()
	b, err := os.ReadFile("testdata/golden/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// near reports whether two values agree within 1 in 1,000, or within an absolute slack where they
// are about 0.
func near(got, want, slack float64) bool {
	return math.Abs(got-want) <= 1e-3*math.Abs(want)+slack
}

// coefficients returns a model's coefficients with R's names.
func (m *ARIMA) coefficients() map[string]float64 {
	out := map[string]float64{}
	for name, values := range map[string][]float64{"ar": m.AR, "ma": m.MA, "sar": m.SAR, "sma": m.SMA} {
		for i, v := range values {
			out[fmt.Sprintf("%s%d", name, i+1)] = v
		}
	}
	for i, v := range m.Beta {
		out[fmt.Sprintf("x%d", i+1)] = v
	}
	if m.HasConstant {
		name := "intercept"
		if m.differenced() > 0 {
			name = "drift"
		}
		out[name] = m.Constant
	}
	return out
}

// Coefficients, likelihood, variance, forecasts and standard errors equal R's and statsmodels'
// within 1 in 1,000.
func TestARIMAEqualsRAndStatsmodels(t *testing.T) {
	var golden struct {
		Series map[string]goldenSeries
		Fits   []goldenFit
	}
	readGolden(t, "arima.json", &golden)
	var others []struct{ LogLik, Sigma2 float64 }
	readGolden(t, "statsmodels.json", &others)
	for i, want := range golden.Fits {
		s := golden.Series[want.Series]
		spec := want.spec(s)
		t.Run(fmt.Sprintf("%s%s", want.Series, spec.ARIMAOrder), func(t *testing.T) {
			m, err := FitARIMA(s.values(), spec)
			if err != nil {
				t.Fatal(err)
			}
			compareFit(t, m, want)
			if !near(m.LogLik, others[i].LogLik, 0) || !near(m.Sigma2, others[i].Sigma2, 0) {
				t.Errorf("loglik %g, sigma2 %g; statsmodels has %g, %g", m.LogLik, m.Sigma2, others[i].LogLik, others[i].Sigma2)
			}
			x := make([][]float64, len(s.X))
			for j := range x {
				x[j] = s.X[j][:len(want.Mean)]
			}
			mean, se, err := m.Predict(len(want.Mean), x)
			if err != nil {
				t.Fatal(err)
			}
			for h := range mean {
				if !near(mean[h], want.Mean[h], 1e-3*want.SE[h]) || !near(se[h], want.SE[h], 0) {
					t.Errorf("step %d: %g +- %g, R has %g +- %g", h, mean[h], se[h], want.Mean[h], want.SE[h])
				}
			}
		})
	}
}

func compareFit(t *testing.T, m *ARIMA, want goldenFit) {
	t.Helper()
	for name, got := range map[string][2]float64{"loglik": {m.LogLik, want.LogLik}, "sigma2": {m.Sigma2, want.Sigma2}, "aic": {m.AIC, want.AIC}, "bic": {m.BIC, want.BIC}} {
		if !near(got[0], got[1], 0) {
			t.Errorf("%s: %g, R has %g", name, got[0], got[1])
		}
	}
	coef := m.coefficients()
	if len(coef) != len(want.Coef) {
		t.Errorf("%d coefficients, R has %d", len(coef), len(want.Coef))
	}
	for name, v := range want.Coef {
		if !near(coef[name], v, 1e-4) {
			t.Errorf("%s: %g, R has %g", name, coef[name], v)
		}
	}
}
