package forecast

import (
	"math"
	"math/rand/v2"
	"slices"
)

const (
	// minResampled is the minimum number of windows for an interval of the WAPE: blocks of fewer
	// windows hardly differ.
	minResampled = 8
	// backtestResamples is the number of bootstrap samples: the ends of a 95 % interval are then
	// beyond 25 of them.
	backtestResamples = 1000
)

// CompareBacktests compares runs over the same series, horizon and origins, on the windows that all
// of them could forecast. A run with less than half of the windows is not compared: it would leave
// the others without most of theirs. The bootstrap samples are the same for every run, from a seed.
func CompareBacktests(runs []BacktestRun) BacktestReport {
	out := BacktestReport{Undecided: []string{}, Rows: []BacktestRow{}}
	compared := make([]bool, len(runs))
	for i := range runs {
		compared[i] = runs[i].forecasts > 0 && 2*runs[i].forecasts >= len(runs[i].windows)
	}
	common := commonWindows(runs, compared)
	out.Windows = len(common)
	samples := resampleWindows(runs, len(common))
	var rows []comparedRow
	for i := range runs {
		if !compared[i] {
			out.Rows = append(out.Rows, runs[i].row(nil))
			continue
		}
		row := runs[i].row(common)
		c := newComparedRow(&runs[i], common, samples)
		row.WAPELo95, row.WAPEHi95 = c.interval()
		out.Rows, rows = append(out.Rows, row), append(rows, c)
	}
	if len(rows) == 0 {
		return out
	}
	for _, v := range rows[0].actual {
		if v > 0 {
			out.WithLoad++
		}
	}
	if out.WithLoad > 0 {
		out.decide(rows)
	}
	return out
}

// commonWindows lists the windows that every compared run could forecast.
func commonWindows(runs []BacktestRun, compared []bool) []int {
	if !slices.Contains(compared, true) {
		return nil
	}
	var out []int
	for w := range runs[0].windows {
		all := true
		for i := range runs {
			all = all && (!compared[i] || runs[i].windows[w].made)
		}
		if all {
			out = append(out, w)
		}
	}
	return out
}

// resampleWindows draws bootstrap samples of n windows in circular blocks of neighbours, because
// neighbouring windows err alike (Politis and Romano 1992). A block has the cube root of the
// number of windows, and at least those that share a step. Nil with less than minResampled windows.
func resampleWindows(runs []BacktestRun, n int) [][]int {
	if n < minResampled {
		return nil
	}
	length := min(n, max(runs[0].overlap, int(math.Ceil(math.Cbrt(float64(n))))))
	random := rand.New(rand.NewPCG(1, 0x6261636b))
	out := make([][]int, backtestResamples)
	for i := range out {
		for len(out[i]) < n {
			start := random.IntN(n)
			for at := range min(length, n-len(out[i])) {
				out[i] = append(out[i], (start+at)%n)
			}
		}
	}
	return out
}

// comparedRow is the errors of a run by common window, and their sums in every bootstrap sample.
type comparedRow struct {
	name                     string
	abs, actual              []float64
	total                    float64
	sampledAbs, sampledLoads []float64
}

func newComparedRow(r *BacktestRun, common []int, samples [][]int) comparedRow {
	c := comparedRow{name: r.forecaster}
	for _, w := range common {
		c.abs, c.actual = append(c.abs, r.windows[w].abs), append(c.actual, r.windows[w].actual)
		c.total += r.windows[w].abs
	}
	for _, sample := range samples {
		var abs, actual float64
		for _, w := range sample {
			abs, actual = abs+c.abs[w], actual+c.actual[w]
		}
		c.sampledAbs, c.sampledLoads = append(c.sampledAbs, abs), append(c.sampledLoads, actual)
	}
	return c
}

// interval returns the 95 % interval of the WAPE, over the bootstrap samples with load.
func (c *comparedRow) interval() (lo, hi *float64) {
	var all []float64
	for i, load := range c.sampledLoads {
		if load > 0 {
			all = append(all, c.sampledAbs[i]/load)
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	slices.Sort(all)
	return &all[len(all)/40], &all[len(all)-1-len(all)/40]
}

// notWorse reports whether c may be as good as best: best has the lower error in less than 97.5 % of
// the bootstrap samples.
func (c *comparedRow) notWorse(best *comparedRow) bool {
	better := 0
	for i, abs := range best.sampledAbs {
		if abs < c.sampledAbs[i] {
			better++
		}
	}
	return 40*better < 39*backtestResamples
}

// decide sets the winner, or the forecasters that the windows do not tell apart.
func (b *BacktestReport) decide(rows []comparedRow) {
	best := &rows[0]
	for i := range rows {
		if rows[i].total < best.total {
			best = &rows[i]
		}
	}
	for i := range rows {
		if c := &rows[i]; c == best || c.notWorse(best) {
			b.Undecided = append(b.Undecided, c.name)
		}
	}
	if len(b.Undecided) == 1 && len(rows) > 1 && best.sampledAbs != nil {
		b.Winner, b.Undecided = &best.name, []string{}
	}
}
