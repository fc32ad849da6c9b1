package forecast

import (
	"fmt"
	"math"
	"time"
)

// BacktestRow is the accuracy of one forecaster over the windows of a backtest. A value is nil where it is
// not defined (no window, only zeros).
type BacktestRow struct {
	Forecaster string `json:"forecaster"`
	// MAPE is the mean of |actual-mean|/actual over the steps whose actual is not 0.
	MAPE *float64 `json:"mape"`
	// WAPE is the sum of |actual-mean| over the sum of actuals.
	WAPE *float64 `json:"wape"`
	// MASE is the mean absolute error relative to that of repeating the day before, in the window's
	// own past; with less than two days, to that of repeating the last step.
	MASE *float64 `json:"mase"`
	// RMSE is the root of the mean squared error, in the series' own unit.
	RMSE *float64 `json:"rmse"`
	// Coverage90 is the share of actuals inside the 90 % interval.
	Coverage90 *float64 `json:"coverage_90"`
	// FitMillis is the mean time of one forecast.
	FitMillis *float64 `json:"fit_ms"`
	// Windows is the number of windows that the forecaster could forecast.
	Windows int `json:"windows"`
	// PeakCoverage90 is the share of windows whose highest value was between the forecast's P05 and
	// P95 of the peak; windows with unknown values are excluded.
	PeakCoverage90 *float64 `json:"peak_coverage_90"`
}

// Backtest evaluates forecasters out of sample, all on the same windows of horizon steps. Every
// originStep steps it makes a forecast from the values before and compares it with the actual
// values. The first origin is a day after the series' start, or its middle when the series is
// shorter than a day and a horizon. now measures the forecasts; nil omits FitMillis. It fails when
// there is no window.
func Backtest(s Series, forecasters []Forecaster, horizon, originStep int, now func() time.Duration) ([]BacktestRow, error) {
	if err := s.checkHorizon(horizon); err != nil {
		return nil, err
	}
	if originStep < 1 {
		return nil, fmt.Errorf("backtesting %s: origin step: must be at least one step of %s, got %d", s.Name, s.Step, originStep)
	}
	n := len(s.Values)
	first := s.steps(day)
	if n < first+horizon {
		first = max(1, n/2)
	}
	if n < first+horizon {
		return nil, fmt.Errorf("backtesting %s: %s of history is too short for a horizon of %s", s.Name, s.formatSteps(n), s.formatSteps(horizon))
	}
	rows := make([]BacktestRow, 0, len(forecasters))
	for _, f := range forecasters {
		sc := score{scales: naiveScales(s)}
		for o := first; o+horizon <= n; o += originStep {
			sc.addWindow(f, s, o, horizon, now)
		}
		rows = append(rows, sc.result(f.Name(), now != nil))
	}
	return rows, nil
}

// score accumulates the errors of one forecaster.
type score struct {
	scales          []float64
	windows, steps  int
	abs, sq, actual float64
	ape             float64
	apeSteps        int
	scaled          float64
	scaledSteps     int
	inside          int
	peaks, inPeaks  int
	took            time.Duration
}

func (sc *score) addWindow(f Forecaster, s Series, origin, horizon int, now func() time.Duration) {
	var start time.Duration
	if now != nil {
		start = now()
	}
	fc, err := f.Forecast(s.UpTo(origin), horizon)
	if now != nil {
		sc.took += now() - start
	}
	if err != nil {
		return
	}
	sc.windows++
	if top, ok := maxOf(s.Values[origin : origin+horizon]); ok {
		sc.peaks++
		if fc.Peaks.P05 <= top && top <= fc.Peaks.P95 {
			sc.inPeaks++
		}
	}
	for h, m := range fc.Mean {
		if v := s.Values[origin+h]; !math.IsNaN(v) {
			sc.addStep(v, m, fc.Lo90[h], fc.Hi90[h], sc.scales[origin])
		}
	}
}

func (sc *score) addStep(actual, mean, lo, hi, scale float64) {
	e := math.Abs(actual - mean)
	sc.steps++
	sc.abs += e
	sc.sq += e * e
	sc.actual += actual
	if actual > 0 {
		sc.ape += e / actual
		sc.apeSteps++
	}
	if scale > 0 {
		sc.scaled += e / scale
		sc.scaledSteps++
	}
	if lo <= actual && actual <= hi {
		sc.inside++
	}
}

func (sc *score) result(name string, timed bool) BacktestRow {
	r := BacktestRow{
		Forecaster: name, Windows: sc.windows,
		MAPE: ratio(sc.ape, float64(sc.apeSteps)), WAPE: ratio(sc.abs, sc.actual),
		MASE: ratio(sc.scaled, float64(sc.scaledSteps)), Coverage90: ratio(float64(sc.inside), float64(sc.steps)),
		PeakCoverage90: ratio(float64(sc.inPeaks), float64(sc.peaks)),
	}
	if mse := ratio(sc.sq, float64(sc.steps)); mse != nil {
		root := math.Sqrt(*mse)
		r.RMSE = &root
	}
	if timed {
		r.FitMillis = ratio(float64(sc.took)/float64(time.Millisecond), float64(sc.windows))
	}
	return r
}

// ratio returns a/b, nil when b is 0.
func ratio(a, b float64) *float64 {
	if b == 0 {
		return nil
	}
	r := a / b
	return &r
}

// naiveScales returns, for every origin, the mean absolute error of the naive forecast in the steps
// before it: repeating the day before once there are two days, until then the previous step; 0
// where there is no error.
func naiveScales(s Series) []float64 {
	period := s.steps(day)
	daily, last := meanAbsoluteLag(s.Values, period), meanAbsoluteLag(s.Values, 1)
	for o := range last {
		if o >= 2*period {
			last[o] = daily[o]
		}
	}
	return last
}

// meanAbsoluteLag returns, for every o, the mean of |y[t]-y[t-lag]| over t < o.
func meanAbsoluteLag(values []float64, lag int) []float64 {
	out := make([]float64, len(values)+1)
	var sum float64
	var count int
	for t, v := range values {
		if t >= lag {
			if e := math.Abs(v - values[t-lag]); !math.IsNaN(e) {
				sum += e
				count++
			}
		}
		if count > 0 {
			out[t+1] = sum / float64(count)
		}
	}
	return out
}
