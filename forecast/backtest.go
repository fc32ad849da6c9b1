package forecast

import (
	"fmt"
	"math"
	"time"
)

// BacktestRow is the accuracy of one forecaster over the common windows of a backtest. A value is nil
// where it is not defined (no window, only zeros).
type BacktestRow struct {
	Forecaster string `json:"forecaster"`
	// MAPE is the mean of |actual-mean|/actual over the steps whose actual is not 0.
	MAPE *float64 `json:"mape"`
	// WAPE is the sum of |actual-mean| over the sum of actuals. Lo95 and Hi95 are its 95 % interval
	// over bootstrap samples of the windows; nil with less than minResampled windows.
	WAPE     *float64 `json:"wape"`
	WAPELo95 *float64 `json:"wape_lo95"`
	WAPEHi95 *float64 `json:"wape_hi95"`
	// MASE is the mean absolute error relative to that of repeating the day before, in the window's
	// own past; with less than two days, to that of repeating the last step.
	MASE *float64 `json:"mase"`
	// RMSE is the root of the mean squared error, in the series' own unit.
	RMSE *float64 `json:"rmse"`
	// Coverage90 is the share of actuals inside the 90 % interval.
	Coverage90 *float64 `json:"coverage_90"`
	// FitMillis is the mean time of one forecast.
	FitMillis *float64 `json:"fit_ms"`
	// Windows is the number of windows that the row is computed from: those of the report, or 0 for
	// a forecaster that could forecast less than half of them and is not compared.
	Windows int `json:"windows"`
	// PeakCoverage90 is the share of windows whose highest value was between the forecast's P05 and
	// P95 of the peak; windows with unknown values are excluded.
	PeakCoverage90 *float64 `json:"peak_coverage_90"`
}

// BacktestReport compares forecasters on the same windows.
type BacktestReport struct {
	// Windows is the number of windows that every compared forecaster could forecast, WithLoad those
	// of them whose actual load is not 0.
	Windows  int `json:"windows"`
	WithLoad int `json:"windows_with_load"`
	// Winner is the forecaster with the lowest WAPE when the 95 % interval of every other one's excess
	// error is above 0; nil otherwise.
	Winner *string `json:"winner"`
	// Undecided lists the forecaster with the lowest WAPE and those not proven worse, when there is
	// no winner; empty without load.
	Undecided []string      `json:"undecided"`
	Rows      []BacktestRow `json:"rows"`
}

// BacktestRun is the forecasts of one forecaster at every origin of a backtest, scored.
type BacktestRun struct {
	forecaster string
	windows    []windowScore
	forecasts  int           // windows that it could forecast
	took       time.Duration // of these forecasts
	timed      bool
	overlap    int // windows that share a step
}

// Baselines returns the forecasters that a backtest compares others with: zero, which expects no
// load, and seasonal-naive.
func Baselines() []Forecaster { return []Forecaster{modelForecaster{zero{}}, SeasonalNaive()} }

// zero forecasts no load. A forecaster with a higher WAPE is of no use on a series.
type zero struct{}

func (zero) Name() string { return "zero" }

func (zero) need(Series) (steps int, description string) { return 1, "a step" }

func (zero) fit(Series, int) predictor {
	return func(_ Series, horizon int) []float64 { return flat(0, horizon) }
}

// RunBacktest evaluates a forecaster out of sample, in windows of horizon steps. Every originStep
// steps it makes a forecast from the values before and compares it with the actual values. The first
// origin is a day after the series' start. If fewer than minResampled windows fit after that day, it is the
// middle of the series, if that is earlier. now measures the forecasts; nil omits FitMillis. It fails when there
// is no window.
func RunBacktest(s Series, f Forecaster, horizon, originStep int, now func() time.Duration) (BacktestRun, error) {
	if err := s.checkHorizon(horizon); err != nil {
		return BacktestRun{}, err
	}
	if originStep < 1 {
		return BacktestRun{}, fmt.Errorf("backtesting %s: origin step: must be at least one step of %s, got %d", s.Name, s.Step, originStep)
	}
	n := len(s.Values)
	first := s.steps(day)
	if n < first+horizon+(minResampled-1)*originStep {
		first = min(first, max(1, n/2))
	}
	if n < first+horizon {
		return BacktestRun{}, fmt.Errorf("backtesting series %q: %s of history is too short for a horizon of %s", s.Name, s.formatSteps(n), s.formatSteps(horizon))
	}
	r := BacktestRun{forecaster: f.Name(), timed: now != nil, overlap: (horizon + originStep - 1) / originStep}
	scales := naiveScales(s)
	for o := first; o+horizon <= n; o += originStep {
		r.addWindow(f, s, o, horizon, scales[o], now)
	}
	return r, nil
}

// windowScore is the errors of a forecast in one window, or their sum over several.
type windowScore struct {
	made            bool // the forecaster could forecast the window
	steps           int
	abs, sq, actual float64
	ape             float64
	apeSteps        int
	scaled          float64
	scaledSteps     int
	inside          int
	peaks, inPeaks  int
}

func (r *BacktestRun) addWindow(f Forecaster, s Series, origin, horizon int, scale float64, now func() time.Duration) {
	var start time.Duration
	if now != nil {
		start = now()
	}
	fc, err := f.Forecast(s.UpTo(origin), horizon)
	if err != nil {
		r.windows = append(r.windows, windowScore{})
		return
	}
	if now != nil {
		r.took += now() - start
	}
	r.forecasts++
	sc := windowScore{made: true}
	if top, ok := maxOf(s.Values[origin : origin+horizon]); ok {
		sc.peaks++
		if fc.Peaks.P05 <= top && top <= fc.Peaks.P95 {
			sc.inPeaks++
		}
	}
	for h, m := range fc.Mean {
		if v := s.Values[origin+h]; !math.IsNaN(v) {
			sc.addStep(v, m, fc.Lo90[h], fc.Hi90[h], scale)
		}
	}
	r.windows = append(r.windows, sc)
}

func (sc *windowScore) addStep(actual, mean, lo, hi, scale float64) {
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

func (sc *windowScore) add(o windowScore) {
	sc.steps += o.steps
	sc.abs += o.abs
	sc.sq += o.sq
	sc.actual += o.actual
	sc.ape += o.ape
	sc.apeSteps += o.apeSteps
	sc.scaled += o.scaled
	sc.scaledSteps += o.scaledSteps
	sc.inside += o.inside
	sc.peaks += o.peaks
	sc.inPeaks += o.inPeaks
}

// row returns the row of the run over some windows; none for a run that is not compared.
func (r *BacktestRun) row(windows []int) BacktestRow {
	var sc windowScore
	for _, w := range windows {
		sc.add(r.windows[w])
	}
	out := BacktestRow{
		Forecaster: r.forecaster, Windows: len(windows),
		MAPE: ratio(sc.ape, float64(sc.apeSteps)), WAPE: ratio(sc.abs, sc.actual),
		MASE: ratio(sc.scaled, float64(sc.scaledSteps)), Coverage90: ratio(float64(sc.inside), float64(sc.steps)),
		PeakCoverage90: ratio(float64(sc.inPeaks), float64(sc.peaks)),
	}
	if mse := ratio(sc.sq, float64(sc.steps)); mse != nil {
		root := math.Sqrt(*mse)
		out.RMSE = &root
	}
	if r.timed {
		out.FitMillis = ratio(float64(r.took)/float64(time.Millisecond), float64(r.forecasts))
	}
	return out
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
