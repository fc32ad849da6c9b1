package forecast

import (
	"math"
	"reflect"
	"testing"
	"time"
)

// gate is a moving average that requires more history.
type gate struct {
	movingAverage
	steps int
}

func (gate) Name() string { return "gate" }

func (g gate) need(Series) (steps int, description string) { return g.steps, "more history" }

// A forecaster that skips windows does not change the windows of the others' comparison to its
// advantage: all rows cover the same ones.
func TestBacktestCoversCommonWindows(t *testing.T) {
	s := tens(4, 60, wave)
	copy(s.Values[144:150], []float64{9000, 9000, 9000, 9000, 9000, 9000}) // the hard first window
	late := modelForecaster{gate{steps: 150}}
	r, err := compareAll(s, []Forecaster{MovingAverage(), late}, 6, 6, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Windows != 71 || r.Rows[0].Windows != 71 || r.Rows[1].Windows != 71 || *r.Rows[0].WAPE != *r.Rows[1].WAPE {
		t.Fatalf("%d windows, rows %+v", r.Windows, r.Rows)
	}
	if r.Winner != nil || !reflect.DeepEqual(r.Undecided, []string{"moving-average", "gate"}) {
		t.Errorf("equal forecasts: winner %v, undecided %v", r.Winner, r.Undecided)
	}
	// With little of the windows, it is not compared, and takes none from the others.
	r, err = compareAll(s, []Forecaster{MovingAverage(), modelForecaster{gate{steps: 400}}}, 6, 6, nil)
	if err != nil || r.Rows[0].Windows != 72 || r.Rows[1].Windows != 0 || r.Rows[1].WAPE != nil {
		t.Fatalf("%v, rows %+v", err, r.Rows)
	}
}

// A winner is named only where its lead exceeds the chance of the windows.
func TestBacktestWinner(t *testing.T) {
	r, err := compareAll(tens(7, 30, wave), append(Baselines(), MovingAverage()), 6, 6, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Winner == nil || *r.Winner != "seasonal-naive" || len(r.Undecided) != 0 {
		t.Errorf("a strong day: winner %v, undecided %v", r.Winner, r.Undecided)
	}
	for _, row := range r.Rows {
		if !(*row.WAPELo95 <= *row.WAPE && *row.WAPE <= *row.WAPEHi95) {
			t.Errorf("%s: WAPE %g outside its interval %g to %g", row.Forecaster, *row.WAPE, *row.WAPELo95, *row.WAPEHi95)
		}
	}
	if z := r.Rows[0]; z.Forecaster != "zero" || *z.WAPE != 1 || *z.WAPEHi95 != 1 {
		t.Errorf("zero has an error of the whole load, got %+v", z)
	}
	again, err := compareAll(tens(7, 30, wave), append(Baselines(), MovingAverage()), 6, 6, nil)
	if err != nil || !reflect.DeepEqual(r, again) {
		t.Errorf("a second backtest differs: %v", err)
	}
}

// The bootstrap interval of the mean error of independent windows contains the true one in about
// 95 % of series.
func TestBacktestIntervalCoversTheTrueError(t *testing.T) {
	covered, series := 0, 200
	for seed := range uint64(series) {
		s := noise(1, seed)
		run := BacktestRun{forecaster: "mean", overlap: 1}
		for w := range 100 {
			sc := windowScore{made: true}
			sc.addStep(1000, s.Values[w], 0, 0, 0)
			run.windows = append(run.windows, sc)
			run.forecasts++
		}
		row := CompareBacktests([]BacktestRun{run}).Rows[0]
		if truth := 0.3 * math.Sqrt(2/math.Pi); *row.WAPELo95 <= truth && truth <= *row.WAPEHi95 {
			covered++
		}
	}
	if share := float64(covered) / float64(series); share < 0.87 || share > 0.98 {
		t.Errorf("%.3f of the intervals contain the true error", share)
	}
}

// Series of one day, and weeks whose load is in two days, have a result or state that there is none.
func TestBacktestOfRareLoad(t *testing.T) {
	oneDay := tens(1, 30, wave)
	r, err := compareAll(oneDay, append(Forecasters(), Baselines()[0]), 6, 6, nil)
	if err != nil || r.Windows != 12 || r.WithLoad != 12 {
		t.Fatalf("one day: %v, %d of %d windows", err, r.WithLoad, r.Windows)
	}
	twoDays := func(from int) Series {
		return tens(7, 0, func(i int) float64 {
			if d := i / 144; d == from || d == from+1 {
				return 1000
			}
			return 0
		})
	}
	r, err = compareAll(twoDays(3), append(Baselines(), MovingAverage(), Auto()), 6, 18, nil)
	if err != nil || r.Windows != 48 || r.WithLoad != 16 {
		t.Fatalf("two days: %v, %d of %d windows", err, r.WithLoad, r.Windows)
	}
	if auto, zero := *r.Rows[3].WAPE, *r.Rows[0].WAPE; auto > 0.2 || zero != 1 {
		t.Errorf("two days: auto has an error of %.3f, zero of %.3f", auto, zero)
	}
	s := twoDays(0)
	copy(s.Values[144:], make([]float64, 6*144)) // all load is before the first window
	r, err = compareAll(s, append(Baselines(), MovingAverage()), 6, 6, nil)
	if err != nil || r.WithLoad != 0 || r.Winner != nil || len(r.Undecided) != 0 || r.Rows[0].WAPE != nil {
		t.Errorf("no load in any window: %v, %+v", err, r)
	}
}

// compareAll evaluates forecasters out of sample: RunBacktest for each, compared with CompareBacktests.
func compareAll(s Series, forecasters []Forecaster, horizon, originStep int, now func() time.Duration) (BacktestReport, error) {
	var runs []BacktestRun
	for _, f := range forecasters {
		r, err := RunBacktest(s, f, horizon, originStep, now)
		if err != nil {
			return BacktestReport{}, err
		}
		runs = append(runs, r)
	}
	return CompareBacktests(runs), nil
}
