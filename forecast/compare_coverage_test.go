//go:build compare

package forecast

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The share of actual values in 90 % intervals, and of peaks between P05 and P95, with the width of these, one hour and six
// hours ahead with origins every hour, on the public weeks.
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
	t.Logf("by series, horizon and forecaster: share of actual values in the interval, its mean width and its interval score as shares of the mean load; the same of peaks, as shares of the mean peak\n%s", strings.Join(lines, ""))
}

func coverage(s Series, f Forecaster, horizon time.Duration) (string, error) {
	steps := s.steps(horizon)
	var inside, scores, widths, actual, known float64
	var peaksInside, peakScores, peakWidths, peakSum, peaks float64
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
		if top, ok := maxOf(window(s, o, steps)); ok {
			in, score := scoreInterval([]float64{top}, Forecast{Lo90: []float64{fc.Peaks.P05}, Hi90: []float64{fc.Peaks.P95}})
			peaksInside, peakScores, peakWidths = peaksInside+in, peakScores+score, peakWidths+fc.Peaks.P95-fc.Peaks.P05
			peakSum, peaks = peakSum+top, peaks+1
		}
	}
	return fmt.Sprintf("%-8s %3s  %-18s %5.1f%%  width %.3f  score %.3f  peaks %5.1f%%  width %.3f  score %.3f\n",
		s.Name, ShortDuration(horizon), f.Name(), 100*inside/known, widths/actual, scores/actual, 100*peaksInside/peaks, peakWidths/peakSum, peakScores/peakSum), nil
}
