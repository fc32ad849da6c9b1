package forecast

import (
	"slices"
	"strings"
	"testing"
)

// In the first hours after an idle day, no forecast of the hidden Markov model or of auto is several times the
// load of these hours.
func TestLoadAfterIdleDay(t *testing.T) {
	for _, idle := range []float64{0, 0.01} {
		for hours := 3; hours <= 6; hours++ {
			s := tens(2, 300, func(i int) float64 { return 1000 }).UpTo(144 + 6*hours)
			s.Values = slices.Clone(s.Values)
			for i := range 144 {
				s.Values[i] = idle
			}
			for _, f := range []Forecaster{HMM(), Auto()} {
				fc, err := f.Forecast(s, 6)
				if err != nil {
					t.Fatal(err)
				}
				if lo, hi := slices.Min(fc.Mean), slices.Max(fc.Mean); lo < 500 || hi > 1500 {
					t.Errorf("%s: %.0f to %.0f after a day of %g and %d hours of 1000", f.Name(), lo, hi, idle, hours)
				}
			}
		}
	}
}

// On an idle series no candidate has an error. Auto combines the first maxCombined of these equal ones.
func TestAutoCombinesAFewOfEqualModels(t *testing.T) {
	fc, err := Auto().Forecast(constant(2*1440, 0), 60)
	const want = "combined by past errors: 25 % moving-average, 25 % seasonal-naive, 25 % seasonal-profile, 25 % damped-trend"
	if got := strings.Join(fc.Assumed, "; "); err != nil || got != want {
		t.Errorf("%v: %s\nwant: %s", err, got, want)
	}
}
