package forecast

import "testing"

// The errors of peaks of overlapping horizons are about as much evidence as those of the horizons that do not overlap:
// the highest step of one is often that of its neighbours.
func TestOverlappingPeaksCountOnce(t *testing.T) {
	const horizon = 24
	for seed := range uint64(10) {
		s := wander(8, seed)
		independent := func(distance int) float64 {
			track := pastTrack{}
			for o := 96; o+horizon <= len(s.Values); o += distance {
				track.origins, track.means = append(track.origins, o), append(track.means, flat(s.UpTo(o).lastMean(), horizon))
			}
			c, ok := calibratePeaks(track.peaks(s, dayMeansOf(s)))
			if !ok {
				t.Fatal("too few peaks")
			}
			c.similar = len(c.outcomes)
			return c.errors(s.lastMean()).count
		}
		apart, overlapping := independent(horizon), independent(1)
		if overlapping > 1.25*apart || overlapping < 0.8*apart {
			t.Errorf("seed %d: origins at every step count as %.1f errors, those that do not overlap as %.1f", seed, overlapping, apart)
		}
	}
}

// Six hours ahead, where a load wanders and one burst is in the errors of several forecasts, the range from P05 to P95
// contains about 90 % of the peaks, after two days and after a week, at any time of day; half of the peaks are below P50.
func TestPeaksCoverSixHours(t *testing.T) {
	const horizon = 24
	for _, days := range []int{2, 7} {
		var in, below, all float64
		for seed := range uint64(400) {
			whole := wander(9, seed)
			end := days*96 + int(29*seed)%96
			fc, err := MovingAverage().Forecast(whole.UpTo(end), horizon)
			if err != nil {
				t.Fatal(err)
			}
			top, _ := maxOf(whole.Values[end : end+horizon])
			all++
			if fc.Peaks.P05 <= top && top <= fc.Peaks.P95 {
				in++
			}
			if top <= fc.Peaks.P50 {
				below++
			}
		}
		// Standard deviations of the two shares: 0.015 and 0.025.
		if share := in / all; share < 0.86 || share > 0.94 {
			t.Errorf("after %d days: P05 to P95 covers %.3f of the peaks of the next six hours", days, share)
		}
		if share := below / all; share < 0.43 || share > 0.57 {
			t.Errorf("after %d days: %.3f of the peaks are below P50", days, share)
		}
	}
}
