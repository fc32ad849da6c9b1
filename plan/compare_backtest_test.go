//go:build compare

package plan

import (
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/sim/workload"
	"skyserve/internal/telemetry/demand/demandtest"
)

var (
	weekFile   = flag.String("plan.week", "", "a week by the minute: CSV.gz with minute, model, tier and prompt_tokens")
	ratesFile  = flag.String("plan.rates", "", "ServeGen's request rates by client: CSV.gz")
	seedBase   = flag.Uint64("plan.seed", 1, "first seed of the generated weeks")
	forecaster = flag.String("plan.forecaster", "auto", "forecaster of the plans")
	hourly     = flag.Bool("plan.hourly", true, "compare hourly plans for each peak too")
	loadFactor = flag.Float64("plan.load-factor", testedLoadFactors[len(testedLoadFactors)-1], "highest multiple of the past load at which predictive must have had at most the threshold rule's overload")
	tolerance  = flag.Float64("plan.tolerance", 0, "autoscale.overload_tolerance: the share of the load that may be above the capacity beyond what the threshold rule leaves")
	tenants    = flag.Int("plan.tenants", 4, "number of ServeGen's clients, the busiest first, after the totals")
)

const (
	// meanReplicas is the number of replicas that serve a series' mean load.
	meanReplicas = 10
	// ratesDays is the part of ServeGen's two weeks that is evaluated.
	ratesDays = 7
)

// week is a load by the minute, in prompt tokens.
type week struct {
	name string
	load []float64
}

// compared is the rules of a series for one start-up time, the threshold one first, then predictive.
type compared struct {
	name  string
	rules []RuleOutcome
}

// hours is predictive's replica-hours relative to threshold's.
func (c compared) hours() float64 { return c.rules[1].ReplicaHours / c.rules[0].ReplicaHours }

// dominated reports whether predictive has at most threshold's overload and at most its hours.
func (c compared) dominated() bool {
	return c.rules[1].OverloadTokens <= c.rules[0].OverloadTokens*(1+relTolerance)+relTolerance && c.hours() <= 1+relTolerance
}

// The default of plan backtest compared with the threshold rule, and with hourly plans for each peak, on
// public weeks and on generated ones, with the start-up times of local processes and of clouds.
func TestCompareBacktests(t *testing.T) {
	testedLoadFactors[len(testedLoadFactors)-1] = *loadFactor
	weeks := slices.Concat(publicWeeks(t), rateWeeks(t), generatedWeeks())
	startUps := []time.Duration{5 * time.Second, 10 * time.Minute}
	results := make([][]compared, len(weeks))
	t.Run("weeks", func(t *testing.T) {
		for n, w := range weeks {
			t.Run(w.name, func(t *testing.T) {
				t.Parallel()
				results[n] = compareBacktest(t, w, startUps)
			})
		}
	})
	for k, startUp := range startUps {
		var table strings.Builder
		var hours []float64
		dominated, excess := 0, 0.0
		for _, row := range results {
			if row == nil {
				continue // excluded by -test.run
			}
			c := row[k]
			fmt.Fprintf(&table, "%-30s", c.name)
			for _, r := range c.rules {
				fmt.Fprintf(&table, " | %s %.4f%% %.3f", r.Name, 100**r.OverloadShare, r.ReplicaHours/c.rules[0].ReplicaHours)
			}
			mark := "more"
			if c.dominated() {
				dominated++
				mark = "at most"
			}
			fmt.Fprintf(&table, " | %s\n", mark)
			hours, excess = append(hours, c.hours()), max(excess, *c.rules[1].OverloadShare-*c.rules[0].OverloadShare)
		}
		slices.Sort(hours)
		t.Logf("start-up %s: share of load above capacity, and replica-hours relative to threshold\n%s%d series: median of predictive's hours %.3f, maximum %.3f; at most threshold's overload and hours in %d; overload at most %.4f%% of the load above threshold's",
			startUp, table.String(), len(hours), hours[len(hours)/2], hours[len(hours)-1], dominated, 100*excess)
	}
}

// The lower bound on the replica-hours of any schedule that knows the load in advance and has at most the threshold rule's
// overload, relative to the hours of that rule.
func TestCompareHindsight(t *testing.T) {
	for _, startUp := range []time.Duration{5 * time.Second, 10 * time.Minute} {
		var table strings.Builder
		var shares []float64
		minutes := startUpMinutes(startUp)
		for _, w := range slices.Concat(publicWeeks(t), rateWeeks(t), generatedWeeks()) {
			load := slices.Clone(w.load)
			mean := 0.0
			for _, v := range load {
				mean += v / float64(len(load))
			}
			for m := range load {
				load[m] *= meanReplicas / mean
			}
			threshold := simulateThreshold(load, minutes)
			overload := 0.0
			for m, v := range load {
				overload += overloadOf(v, threshold.ready[m])
			}
			share := hindsightMinutes(load, minutes, overload) / float64(threshold.replicaMinutes)
			shares = append(shares, share)
			fmt.Fprintf(&table, "%-30s | overload %.4f%% | %.3f\n", w.name, 100*overload/float64(meanReplicas*len(load)), share)
		}
		slices.Sort(shares)
		t.Logf("start-up %s: threshold's overload, and the fewest hours with hindsight relative to threshold's\n%s%d series: median %.3f, %.3f to %.3f",
			startUp, table.String(), len(shares), shares[len(shares)/2], shares[0], shares[len(shares)-1])
	}
}

// compareBacktest backtests a week for every start-up time, with one set of forecasts.
func compareBacktest(t *testing.T, w week, startUps []time.Duration) []compared {
	sum := 0.0
	for _, v := range w.load {
		sum += v
	}
	spec := demandtest.Parse(t, fmt.Sprintf("name: chat\nmodels:\n  - name: m\n    engine: {kind: sim}\n    gpus: [{type: L4, count: 1, tps: %.6f}]\nregions:\n  - name: aws/us-east-1\n    replicas: {min: 0, max: 10000}\n",
		sum/float64(60*len(w.load)*meanReplicas)))
	spec.Autoscale.OverloadTolerance = *tolerance
	h := &forecast.History{First: 28_401_120, Minutes: len(w.load)}
	key := forecast.SeriesKey{Region: "aws/us-east-1", Model: "m", Tier: service.TierNormal}
	h.Series = []forecast.TokenSeries{{KeyedSeries: forecast.KeyedSeries{SeriesKey: key, Series: forecast.Series{
		Name: w.name, Unit: forecast.PromptTokens, Start: h.First, Step: time.Minute, Values: w.load,
	}}, Cached: make([]float64, len(w.load))}}
	b, err := NewBacktest(spec, h, BacktestOptions{Review: ReviewOptions{Forecaster: *forecaster}})
	if err != nil {
		t.Fatal(err)
	}
	for n := range b.NumReviews() {
		if err := b.Forecast(n); err != nil {
			t.Fatal(err)
		}
	}
	var all []compared
	for _, startUp := range startUps {
		c := compared{name: w.name}
		for _, in := range b.inputs {
			in.options.StartUp = startUp
			past, _ := in.knownHistory(h)
			in.trackings[0][0] = in.calibratedTracking(in.groupTraffic(past, 0)[0])
		}
		levels := forecast.PeakQuantiles
		if !*hourly {
			levels = levels[:1]
		}
		for _, level := range levels {
			for _, in := range b.inputs {
				in.planFor(level)
			}
			out, err := b.Report()
			if err != nil {
				t.Fatal(err)
			}
			if c.rules == nil {
				c.rules = append(c.rules, out.Rules[3], out.Rules[0])
			}
			out.Rules[1].Name = level
			c.rules = append(c.rules, out.Rules[1])
		}
		all = append(all, c)
	}
	return all
}

// planFor replaces the planned peak of a single endpoint without another forecast.
func (in *ReviewInputs) planFor(level string) {
	if len(in.forecasts) == 0 {
		return
	}
	f := in.forecasts[0]
	factor := peakFactor(f.Forecast, level)
	for w, v := range byMinute(f.Forecast.Mean, f.step) {
		in.problem.LoadTPS[0][0][w] = factor * v
	}
}

// generatedWeeks returns weeks of several shapes and seeds, with correlated log-normal noise. The
// strong day begins and ends within two hours.
func generatedWeeks() []week {
	daily := func(h float64) float64 { return 1 + 0.8*math.Cos((h-14)*math.Pi/12) }
	shapes := []struct {
		name string
		at   func(day, hour float64) float64
	}{
		{"steady", func(_, _ float64) float64 { return 1 }},
		{"strong day", func(day, h float64) float64 {
			return 1 + 0.1*math.Cos((h-14)*math.Pi/12) + 2*min(max(0, 12*(day-4)), 1)*min(max(0, 12*(5-day)), 1)
		}},
		{"sudden strong day", func(day, _ float64) float64 {
			if day >= 4 && day < 5 {
				return 3
			}
			return 1
		}},
		{"two days", func(day, h float64) float64 {
			if day >= 2 && day < 4 {
				return daily(h)
			}
			return 0
		}},
		{"daily", func(_, h float64) float64 { return daily(h) }},
		{"daily, quiet weekend", func(day, h float64) float64 {
			if day >= 5 {
				return 0.3
			}
			return daily(h)
		}},
	}
	var out []week
	for seed := *seedBase; seed < *seedBase+2; seed++ {
		for n, s := range shapes {
			r := rand.New(rand.NewPCG(seed, uint64(n)))
			const sigma, correlation = 0.15, 0.3
			w := week{name: fmt.Sprintf("%s, seed %d", s.name, seed), load: make([]float64, 7*24*60)}
			log := 0.0
			for m := range w.load {
				log = correlation*log + sigma*math.Sqrt(1-correlation*correlation)*r.NormFloat64()
				w.load[m] = 1e6 * s.at(float64(m)/1440, float64(m%1440)/60) * math.Exp(log-sigma*sigma/2)
			}
			out = append(out, w)
		}
	}
	return out
}

// publicWeeks returns the interactive series of the week file.
func publicWeeks(t *testing.T) []week {
	if *weekFile == "" {
		return nil
	}
	f, err := os.Open(*weekFile)
	if err != nil {
		t.Fatalf("-plan.week: %v", err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatalf("-plan.week: %v", err)
	}
	rows, err := csv.NewReader(z).ReadAll()
	if err != nil {
		t.Fatalf("-plan.week: %v", err)
	}
	byName := map[string][]float64{}
	for _, r := range rows[1:] {
		if r[2] != "IW" {
			continue
		}
		if byName[r[1]] == nil {
			byName[r[1]] = make([]float64, 7*24*60)
		}
		minute, errMinute := strconv.Atoi(r[0])
		tokens, errTokens := strconv.ParseFloat(r[3], 64)
		if errMinute != nil || errTokens != nil {
			t.Fatalf("-plan.week: %v", r)
		}
		byName[r[1]][minute] = tokens
	}
	var out []week
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		out = append(out, week{"week " + name, byName[name]})
	}
	return out
}

// rateWeeks returns the first days of the totals by model and of the busiest clients of the rates
// file. A minute has the rate of its window.
func rateWeeks(t *testing.T) []week {
	if *ratesFile == "" {
		return nil
	}
	f, err := os.Open(*ratesFile)
	if err != nil {
		t.Fatalf("-plan.rates: %v", err)
	}
	defer f.Close()
	rates, window, err := workload.ReadRates(*ratesFile, f)
	if err != nil {
		t.Fatalf("-plan.rates: %v", err)
	}
	totals, clients, volume := map[string][]float64{}, map[string][]float64{}, map[string]float64{}
	for _, r := range rates {
		client := r.Model + " client " + r.Client
		if totals[r.Model] == nil {
			totals[r.Model] = make([]float64, ratesDays*24*60)
		}
		if clients[client] == nil {
			clients[client] = make([]float64, ratesDays*24*60)
		}
		for m := range int(window / time.Minute) {
			if at := int(r.Start/time.Minute) + m; at < ratesDays*24*60 {
				totals[r.Model][at] += 60e3 * r.PerSecond
				clients[client][at] += 60e3 * r.PerSecond
				volume[client] += r.PerSecond
			}
		}
	}
	var out []week
	for _, name := range slices.Sorted(maps.Keys(totals)) {
		out = append(out, week{"ServeGen " + name, totals[name]})
	}
	busiest := slices.SortedFunc(maps.Keys(clients), func(a, b string) int {
		return cmp.Or(cmp.Compare(volume[b], volume[a]), strings.Compare(a, b))
	})
	for _, name := range busiest[:min(len(busiest), *tenants)] {
		out = append(out, week{"ServeGen " + name, clients[name]})
	}
	return out
}
