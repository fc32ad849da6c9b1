package forecast

import (
	"encoding/json"
	"math"
	"os"
	"testing"
)

// The values, the constants and the forecasts are R's: see make_hw.R beside them.
func TestHoltWintersIsRs(t *testing.T) {
	text, err := os.ReadFile("testdata/golden/holtwinters.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name, Seasonal     string
		Period             int
		Values, Forecast   []float64
		Alpha, Beta, Gamma float64
		SSE, Level, Trend  float64
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		multiplicative := c.Seasonal == "multiplicative"
		given := runHoltWinters(c.Values, c.Period, multiplicative, hwConstants{c.Alpha, c.Beta, c.Gamma})
		isR(t, c.Name+": squared error with R's constants", given.sse, c.SSE, 1e-6)
		fitted := fitHoltWinters(c.Values, c.Period, multiplicative)
		isR(t, c.Name+": squared error", fitted.sse, c.SSE, 1e-4)
		isR(t, c.Name+": alpha", fitted.alpha, c.Alpha, 1e-3)
		isR(t, c.Name+": beta", fitted.beta, c.Beta, 1e-3)
		isR(t, c.Name+": gamma", fitted.gamma, c.Gamma, 1e-3)
		isR(t, c.Name+": level", fitted.level, c.Level, 1e-3)
		isR(t, c.Name+": trend", fitted.trend, c.Trend, 1e-3)
		for h, m := range fitted.forecast(len(c.Forecast)) {
			isR(t, c.Name+": forecast", m, c.Forecast[h], 1e-3)
		}
	}
}

// isR wants two figures to agree within a relative error.
func isR(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if !(math.Abs(got-want) <= within*math.Abs(want)) {
		t.Errorf("%s: %.8g, want %.8g", what, got, want)
	}
}
