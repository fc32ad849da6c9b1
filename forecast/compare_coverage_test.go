//go:build compare

package forecast

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The share of actual values in 90 % intervals, and the width of these, one hour and six hours ahead with
// origins every hour, on the public weeks.
func TestCompareCoverage(t *testing.T) {
	_, totals := readRates(t)
	series := append(readWeek(t), totals...)
	forecasters := []Forecaster{MovingAverage(), SeasonalProfile(), DampedTrend(), HAR()}
	lines := make([]string, len(series))
	t.Run("series", func(t *testing.T) {
		for i, s := range series {
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel()
				for _, horizon := range []time.Duration{time.Hour, 6 * time.Hour} {
					for _, f := range forecasters {
						line, err := coverage(s, f, horizon)
						if err != nil {
							t.Error(err)
						}
						lines[i] += line
					}
				}
			})
		}
	})
	t.Logf("by series, horizon and forecaster: share of actual values in the interval, its mean width and its interval score as shares of the mean load\n%s", strings.Join(lines, ""))
}

func coverage(s Series, f Forecaster, horizon time.Duration) (string, error) {
	steps := s.steps(horizon)
	var inside, scores, widths, actual, known float64
	for o := s.steps(day); o+steps <= len(s.Values); o += s.steps(time.Hour) {
		fc, err := f.Forecast(s.UpTo(o), steps)
		if err != nil {
			continue // it requires more history
		}
		in, score := scoreInterval(window(s, o, steps), fc)
		_, sum, n := absoluteError(window(s, o, steps), fc.Mean)
		inside, scores, actual, known = inside+in, scores+score, actual+sum, known+float64(n)
		for h := range fc.Mean {
			widths += fc.Hi90[h] - fc.Lo90[h]
		}
	}
	return fmt.Sprintf("%-8s %3s  %-18s %5.1f%%  width %.3f  score %.3f\n", s.Name, ShortDuration(horizon), f.Name(), 100*inside/known, widths/actual, scores/actual), nil
}
