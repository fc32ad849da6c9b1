//go:build compare

package forecast

import (
	"encoding/csv"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// rTable is the file of backtest.R's results.
const rTable = "testdata/golden/backtest.csv"

// resamples is the number of bootstrap draws of a backtest's days for the confidence of a ratio of
// errors.
const resamples = 2000

// judged is the forecasters' results on the windows of one series. By window: the sum of actual
// values, each forecaster's sum of |actual - mean|, and the results of auto's intervals. A
// forecaster that needs more history than a window has is replaced by the moving average there, as
// a user would do.
type judged struct {
	series Series
	perDay int // windows a day
	names  []string
	actual []float64
	off    [][]float64 // by forecaster and window; auto is the last
	own    []int       // by forecaster: windows that it could forecast
	steps  []float64
	inside []float64
	score  []float64 // interval score, summed over steps
	peaks  float64   // share of windows whose peak lies within its interval
}

// judge forecasts the hour after every origin, step apart, from a day on, with the single
// forecasters and with auto.
func judge(s Series, singles []Forecaster, step time.Duration) (judged, error) {
	horizon, first := s.steps(time.Hour), s.steps(day)
	all := append(slices.Clone(singles), Auto())
	j := judged{series: s, perDay: max(1, int(day/step)), off: make([][]float64, len(all)), own: make([]int, len(all))}
	for _, f := range all {
		j.names = append(j.names, f.Name())
	}
	var inPeaks float64
	for o := first; o+horizon <= len(s.Values); o += s.steps(step) {
		actual := window(s, o, horizon)
		for f, single := range singles {
			means, err := meansOf(single, s.UpTo(o), horizon)
			if err == nil {
				j.own[f]++
			} else if means, err = meansOf(MovingAverage(), s.UpTo(o), horizon); err != nil {
				return j, err
			}
			off, _, _ := absoluteError(actual, means)
			j.off[f] = append(j.off[f], off)
		}
		fc, err := Auto().Forecast(s.UpTo(o), horizon)
		if err != nil {
			return j, err
		}
		off, sum, steps := absoluteError(actual, fc.Mean)
		j.off[j.auto()] = append(j.off[j.auto()], off)
		j.actual, j.steps = append(j.actual, sum), append(j.steps, float64(steps))
		inside, score := scoreInterval(actual, fc)
		j.inside, j.score = append(j.inside, inside), append(j.score, score)
		if top, ok := maxOf(actual); ok && fc.Peaks.P05 <= top && top <= fc.Peaks.P95 {
			inPeaks++
		}
	}
	j.peaks = inPeaks / float64(len(j.actual))
	return j, nil
}

// auto is the last forecaster.
func (j judged) auto() int { return len(j.names) - 1 }

// wape is a forecaster's WAPE on the windows that take selects.
func (j judged) wape(f int, take func(w int) bool) float64 {
	var off, sum float64
	for w, e := range j.off[f] {
		if take(w) {
			off, sum = off+e, sum+j.actual[w]
		}
	}
	return off / sum
}

// over is auto's error relative to a single forecaster's.
func (j judged) over(f int, take func(w int) bool) float64 {
	return j.wape(j.auto(), take) / j.wape(f, take)
}

// best is the best single forecaster in hindsight.
func (j judged) best(take func(w int) bool) (f int, ratio float64) {
	ratio = math.Inf(-1)
	for i := range j.auto() {
		if r := j.over(i, take); r > ratio {
			f, ratio = i, r
		}
	}
	return f, ratio
}

func every(int) bool { return true }

// spreadOf is the 90 % range of auto's error relative to a single forecaster's over bootstrap draws
// of the days.
func (j judged) spreadOf(f int, take func(w int) bool) (lo, hi float64) {
	r := rand.New(rand.NewPCG(1, 2))
	days := (len(j.actual) + j.perDay - 1) / j.perDay
	ratios := make([]float64, resamples)
	for k := range ratios {
		var own, single float64
		for range days {
			d := r.IntN(days)
			for w := d * j.perDay; w < min((d+1)*j.perDay, len(j.actual)); w++ {
				if take(w) {
					own, single = own+j.off[j.auto()][w], single+j.off[f][w]
				}
			}
		}
		ratios[k] = own / single
	}
	slices.Sort(ratios)
	return ratios[resamples/20], ratios[resamples-1-resamples/20]
}

// report prints auto's results next to the single forecasters' and R's.
func (j judged) report(r map[string]float64) string {
	var b strings.Builder
	wape := j.wape(j.auto(), every)
	best, ratio := j.best(every)
	lo, hi := j.spreadOf(best, every)
	fmt.Fprintf(&b, "%s, %d windows: auto %.2f%%, over the best single one's (%s) %.3f (days drawn anew: %.3f to %.3f)\n",
		j.series.Name, len(j.actual), 100*wape, j.names[best], ratio, lo, hi)
	fmt.Fprintf(&b, "  covers %.1f%% of steps and %.1f%% of peaks; interval score %.4f of the load\n",
		100*sum(j.inside)/sum(j.steps), 100*j.peaks, sum(j.score)/sum(j.actual))
	b.WriteString("  single:")
	for f := range j.auto() {
		fmt.Fprintf(&b, " %s %.2f%%", j.names[f], 100*j.wape(f, every))
		if own := j.own[f]; own < len(j.actual) {
			fmt.Fprintf(&b, " (%d windows of its own)", own)
		}
	}
	b.WriteString("\n  R's auto.arima:")
	for _, method := range []string{"day", "ten", "fifteen"} {
		if v, ok := r[j.series.Name+" "+method]; ok {
			fmt.Fprintf(&b, " %s %.2f%% (auto over it %.3f)", method, 100*v, wape/v)
		}
	}
	return b.String() + "\n"
}

// offsets prints auto's results with an origin only every so many windows, by the index of the
// first window, and next to it the best single forecaster of all windows. That shows the
// effect of luck on the latter, which is chosen in hindsight from many.
func (j judged) offsets(each int) string {
	var b strings.Builder
	whole, _ := j.best(every)
	var autos, wholes float64
	fmt.Fprintf(&b, "%s:", j.series.Name)
	for first := range each {
		take := func(w int) bool { return w%each == first }
		best, ratio := j.best(take)
		lo, hi := j.spreadOf(best, take)
		fmt.Fprintf(&b, " %.3f (%.2f to %.2f, %s)", ratio, lo, hi, j.names[best])
		autos, wholes = autos+math.Log(ratio), wholes+math.Log(ratio/j.over(whole, take))
	}
	n := float64(each)
	fmt.Fprintf(&b, "\n  in the mean: auto %.3f; %s, the best of all windows, %.3f\n", math.Exp(autos/n), j.names[whole], math.Exp(wholes/n))
	return b.String()
}

func sum(values []float64) float64 {
	var out float64
	for _, v := range values {
		out += v
	}
	return out
}

// readR reads R's WAPE by series and method.
func readR() (map[string]float64, error) {
	f, err := os.Open(rTable)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", rTable, err)
	}
	out := map[string]float64{}
	for _, r := range rows[1:] {
		v, err := strconv.ParseFloat(r[3], 64)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %s %s: %w", rTable, r[0], r[1], err)
		}
		out[r[0]+" "+r[1]] = v
	}
	return out, nil
}
