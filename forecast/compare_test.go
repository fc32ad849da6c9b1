//go:build compare

package forecast

import (
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"skyserve/internal/sim/workload"
)

var (
	weekFile  = flag.String("forecast.week", "", "a week by the minute: CSV.gz with minute, model, tier and prompt_tokens")
	ratesFile = flag.String("forecast.rates", "", "ServeGen's request rates by client: CSV.gz")
)

const (
	// comparedTenants is the number of tenants with the most windows; every second one is for
	// tuning, and the others are held back.
	comparedTenants = 40
	// tenantStep is the time between two origins; it covers all hours of the day. With
	// fewer windows luck has more effect on the choice of the best single model in
	// hindsight.
	tenantStep = 5 * time.Hour
	// watchStep is the time between two forecasts that are checked.
	watchStep = 3 * time.Hour
)

// Auto compared with each single model on the public weeks, where R's auto.arima had the same
// windows, and with rare origins.
func TestCompareWeeks(t *testing.T) {
	fromR, err := readR()
	if err != nil {
		t.Fatal(err)
	}
	_, totals := readRates(t)
	all := Forecasters()
	weeks := judgeAll(t, "series", append(readWeek(t), totals...), all[:len(all)-1], time.Hour)
	var hourly, sixth strings.Builder
	for _, j := range weeks {
		hourly.WriteString(j.report(fromR))
		sixth.WriteString(j.offsets(6))
	}
	t.Logf("every hour:\n%s%s", hourly.String(), summary(weeks))
	t.Logf("every 6 hours from each of the first 6: auto over the best single one of those windows (days drawn anew):\n%s", sixth.String())
}

// Auto compared with each single model on the tenants of a public trace, separately for those used
// for tuning and those held back.
func TestCompareTenants(t *testing.T) {
	tenants, _ := readRates(t)
	var halves [2][]Series
	for i, s := range tenants {
		halves[i%2] = append(halves[i%2], s)
	}
	for i, name := range []string{"tuning", "held back"} {
		t.Logf("tenants, %s:\n%s", name, summary(judgeAll(t, name, halves[i], candidates(), tenantStep)))
	}
}

// judgeAll evaluates series in parallel.
func judgeAll(t *testing.T, name string, series []Series, singles []Forecaster, step time.Duration) []judged {
	t.Helper()
	out := make([]judged, len(series))
	ok := t.Run(name, func(t *testing.T) {
		for i, s := range series {
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel()
				var err error
				if out[i], err = judge(s, singles, step); err != nil {
					t.Error(err)
				}
			})
		}
	})
	if !ok {
		t.FailNow()
	}
	return out
}

// summary is the mean excess of auto and each single forecaster over the best single one of each
// series, and the results of auto's intervals.
func summary(all []judged) string {
	n := float64(len(all))
	names := all[0].names
	logs := make([]float64, len(names))
	var coverage, off, peaks, score float64
	for _, j := range all {
		_, over := j.best(every)
		for f := range names {
			logs[f] += math.Log(over / j.over(f, every)) // auto over the best, over auto over this
		}
		share := sum(j.inside) / sum(j.steps)
		coverage, off, peaks, score = coverage+share, off+math.Abs(share-0.9), peaks+j.peaks, score+math.Log(sum(j.score)/sum(j.actual))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "auto covers %.1f%% of steps (off 90%% by %.1f points in the mean) and %.1f%% of peaks; interval score %.4f of the load, geometric mean\n",
		100*coverage/n, 100*off/n, 100*peaks/n, math.Exp(score/n))
	for f, name := range names {
		fmt.Fprintf(&b, "%-16s %+6.2f%% above the best of each series, geometric mean\n", name, 100*(math.Exp(logs[f]/n)-1))
	}
	return b.String()
}

// How often DetectDeviation reports a deviation from a forecast by auto when the load is unchanged, and when
// its last 20 minutes are multiplied.
func TestCompareWatch(t *testing.T) {
	_, totals := readRates(t)
	factors := []float64{1, 1.5, 2, 3, 5, 8, 0.5, 0.25, 0}
	series := append(readWeek(t), totals...)
	lines := make([]string, len(series))
	t.Run("series", func(t *testing.T) {
		for i, s := range series {
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel()
				lines[i] = watched(t, s, factors)
			})
		}
	})
	t.Logf("share of half hours in which a deviation is reported, by the factor on their last 20 minutes:\n%-10s %s\n%s", "", fmt.Sprint(factors), strings.Join(lines, "\n"))
}

func watched(t *testing.T, s Series, factors []float64) string {
	steps := max(2*watchMinKnown, s.steps(watchWindow+watchWindow/2))
	reported := make([]int, len(factors))
	var n int
	for o := s.steps(2 * day); o+steps <= len(s.Values); o += s.steps(watchStep) {
		f, err := Auto().Forecast(s.UpTo(o), steps)
		if err != nil {
			t.Error(err)
			return ""
		}
		n++
		for k, factor := range factors {
			actual := slices.Clone(s.Values[o : o+steps])
			for i := steps - s.steps(watchWindow); i < steps; i++ {
				actual[i] *= factor
			}
			if DetectDeviation(f, actual, s.Step).Kind != NoDeviation {
				reported[k]++
			}
		}
	}
	line := fmt.Sprintf("%-10s", s.Name)
	for _, k := range reported {
		line += fmt.Sprintf(" %4.0f%%", 100*float64(k)/float64(n))
	}
	return fmt.Sprintf("%s of %d", line, n)
}

// readWeek reads the series of a week; a minute without a row had no traffic.
func readWeek(t *testing.T) []Series {
	t.Helper()
	f := open(t, "-forecast.week", *weekFile)
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(z).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string][]float64{}
	for _, r := range rows[1:] {
		name := r[1] + " " + r[2]
		if byName[name] == nil {
			byName[name] = make([]float64, 7*24*60)
		}
		minute, errMinute := strconv.Atoi(r[0])
		tokens, errTokens := strconv.ParseFloat(r[3], 64)
		if err := cmp.Or(errMinute, errTokens); err != nil {
			t.Fatal(err)
		}
		byName[name][minute] = tokens
	}
	var out []Series
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		out = append(out, Series{Name: name, Step: time.Minute, Values: byName[name]})
	}
	return out
}

// readRates reads the tenants with the most windows, from each one's first to its
// last, and the sums of all tenants by model.
func readRates(t *testing.T) (tenants, totals []Series) {
	t.Helper()
	f := open(t, "-forecast.rates", *ratesFile)
	defer f.Close()
	rates, window, err := workload.ReadRates(*ratesFile, f)
	if err != nil {
		t.Fatal(err)
	}
	var end int
	for _, r := range rates {
		end = max(end, int(r.Start/window)+1)
	}
	own, all := map[string][]float64{}, map[string][]float64{}
	var names []string // in the table's order, which decides between equals
	for _, r := range rates {
		name := r.Model + " " + r.Client
		if own[name] == nil {
			own[name] = make([]float64, end)
			names = append(names, name)
		}
		if all[r.Model] == nil {
			all[r.Model] = make([]float64, end)
		}
		own[name][r.Start/window] = r.PerSecond
		all[r.Model][r.Start/window] += r.PerSecond
	}
	for _, name := range names {
		tenants = append(tenants, Series{Name: name, Step: window, Values: own[name]})
	}
	slices.SortStableFunc(tenants, func(a, b Series) int { return cmp.Compare(busy(b), busy(a)) })
	tenants = tenants[:min(len(tenants), comparedTenants)]
	for i, s := range tenants {
		first := slices.IndexFunc(s.Values, func(v float64) bool { return v > 0 })
		last := len(s.Values)
		for s.Values[last-1] == 0 {
			last--
		}
		tenants[i].Values = s.Values[first:last]
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		totals = append(totals, Series{Name: name, Step: window, Values: all[name]})
	}
	return tenants, totals
}

// busy counts the steps with traffic.
func busy(s Series) (n int) {
	for _, v := range s.Values {
		if v > 0 {
			n++
		}
	}
	return n
}

func open(t *testing.T, name, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return f
}
