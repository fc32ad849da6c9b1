//go:build compare && linux

package eval

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skyserve/internal/catalogue"
	"skyserve/internal/sim"
	"skyserve/internal/sim/engine"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
	"skyserve/plan"
)

var (
	dayLength     = flag.Duration("day.length", 20*time.Minute, "length of the day, in whole minutes")
	dayStrategies = flag.String("day.strategies", "reactive,lt-ua,auto", "strategies, comma-separated")
	daySeed       = flag.Uint64("day.seed", 1, "seed of the day's load")
)

const (
	// dayPeakReplicas is the number of replicas that serve the day's busiest minute.
	dayPeakReplicas = 5
	dayMaxReplicas  = 8
	// dayStart is the time from the launch of a local replica until it serves.
	dayStart = 2 * time.Second
	// dayPlanEvery is the time between two plans: about the day's hour.
	dayPlanEvery = time.Minute
)

// dayUse is what a strategy used and missed in a day.
type dayUse struct {
	hours, late, overload float64
	requests              int64
}

// TestCompareDay runs a working day's load, compressed to a few minutes, on a local service with real processes, and
// in the simulator with the same planner, strategy, engine and times.
func TestCompareDay(t *testing.T) {
	s := dayFleet(t)
	tps, err := replicaTPS(s)
	if err != nil {
		t.Fatal(err)
	}
	s.Demand = dayDemand(tps[0])
	usd, _ := catalogue.ListPrice("aws", "L4", 1)
	var table strings.Builder
	for _, strategy := range strings.Split(*dayStrategies, ",") {
		predicted := simulateDay(t, s, strategy, tps)
		served := serveDay(t, s, strategy, tps[0])
		for _, row := range []struct {
			name              string
			served, predicted float64
		}{
			{"replica-hours", served.hours, predicted.hours},
			{"list price of L4 machines, USD", usd * served.hours, usd * predicted.hours},
			{"IW-F first tokens late, %", 100 * served.late, 100 * predicted.late},
			{"load above ready capacity, %", 100 * served.overload, 100 * predicted.overload},
		} {
			mark := ""
			if math.Abs(row.served-row.predicted) > 0.05*math.Max(row.served, row.predicted) {
				mark = "more than 5 % apart"
			}
			fmt.Fprintf(&table, "%-10s %-32s %10.3f %10.3f  %s\n", strategy, row.name, row.served, row.predicted, mark)
		}
		if served.hours <= 0 || float64(served.requests) < 0.9*float64(predicted.requests) || float64(served.requests) > 1.1*float64(predicted.requests) {
			t.Errorf("%s: served %+v, predicted %+v", strategy, served, predicted)
		}
	}
	t.Logf("a day in %s, capacity of a replica %.0f prompt tokens/s, at most %d replicas\n%-10s %-32s %10s %10s\n%s", *dayLength, tps[0], dayMaxReplicas, "strategy", "", "service", "simulator", table.String())
}

// dayFleet is the service of the day, as the simulator sees it.
func dayFleet(t *testing.T) *sim.FleetScenario {
	t.Helper()
	profile, err := engine.FindProfile("l4-llama3.1-8b")
	if err != nil {
		t.Fatal(err)
	}
	s := sim.SageFleet()
	s.Models = []sim.FleetModel{{Name: "m", Profile: profile, GPUs: 1, Lengths: sim.Lengths{
		Prompt: sim.LogNormal{Median: 400, Sigma: 0.5, Max: 1500}, Output: sim.LogNormal{Median: 60, Sigma: 0.5, Max: 200},
	}}}
	s.Name, s.Regions, s.RTT, s.Order = "day", []string{"us"}, 0, core.OrderFCFS
	s.VMs, s.Min, s.Max, s.Spare = 1, 1, dayMaxReplicas, dayMaxReplicas-1
	s.Starts = sim.StartTimes{Reclaim: dayStart, ReclaimMax: dayStart, Launch: dayStart}
	s.Duration, s.SampleInterval = *dayLength, time.Second
	return &s
}

// dayDemand is the interactive load of a working day, all of it IW-F.
func dayDemand(tps float64) *sim.Demand {
	const day = 24 * 60
	minutes := int(*dayLength / time.Minute)
	week := sim.SageWeek(*daySeed, 1, 1, 1)
	out := sim.NewDemand(1, 1, minutes)
	load := out.PromptTPS[0][0][0]
	top := 0.0
	for i := range load {
		for m := i * day / minutes; m < (i+1)*day/minutes; m++ {
			load[i] += week.Interactive(0, 0, 3*day+m)
		}
		top = math.Max(top, load[i])
	}
	for i := range load {
		load[i] *= dayPeakReplicas * tps / top
	}
	return out
}

// simulateDay predicts the day.
func simulateDay(t *testing.T, s *sim.FleetScenario, strategy string, tps []float64) dayUse {
	t.Helper()
	spec := fleetService(s, tps)
	spec.Autoscale.Every = dayPlanEvery
	setup, err := newFleetSetup(s, strategy, plan.StrategyOptions{}, *daySeed, spec, newSharedInputs(plan.ReviewOptions{StartUp: dayStart}))
	if err != nil {
		t.Fatal(err)
	}
	ready, since := map[int]bool{}, time.Duration(0)
	meter := overloadMeter{demand: s.Demand, tps: tps[0]}
	setup.OnVMChange = func(c sim.VMChange) {
		meter.add(since, c.At, len(ready))
		since = c.At
		delete(ready, c.VM)
		if c.State == sim.VMReady {
			ready[c.VM] = true
		}
	}
	result, err := sim.RunFleet(t.Context(), s, setup)
	if err != nil {
		t.Fatal(err)
	}
	meter.add(since, s.Duration, len(ready))
	fast := result.Tiers[0]
	return dayUse{
		hours: result.Endpoints[0].InstanceHours(), overload: meter.share(), requests: int64(fast.Issued),
		late: float64(fast.Violations) / math.Max(1, float64(fast.Issued)),
	}
}

// overloadMeter adds up the load of a demand, and the part above the capacity of ready replicas.
type overloadMeter struct {
	demand      *sim.Demand
	tps         float64
	load, above float64
}

// add adds a period with a number of ready replicas.
func (m *overloadMeter) add(from, to time.Duration, ready int) {
	for from < to {
		minute := int(from / time.Minute)
		end := min(to, time.Duration(minute+1)*time.Minute)
		load := m.demand.Interactive(0, 0, minute) / 60
		m.load += load * (end - from).Seconds()
		m.above += math.Max(0, load-m.tps*float64(ready)) * (end - from).Seconds()
		from = end
	}
}

func (m *overloadMeter) share() float64 { return m.above / math.Max(1, m.load) }

// serveDay serves the day on a local service and measures it every second.
func serveDay(t *testing.T, s *sim.FleetScenario, strategy string, tps float64) dayUse {
	t.Helper()
	live := testkit.NewLiveService(t, "../../..", "day-"+strategy, fmt.Sprintf(`name: day-%s
models:
  - name: m
    engine: {kind: sim, profile: l4-llama3.1-8b}
    gpus: [{type: L4, count: 1, tps: %.0f}]
    slo: {IW-F: {ttft: %s}}
regions:
  - name: local/us
    replicas: {min: 1, max: %d}
autoscale: {strategy: %s, every: %s}
local: {port: %%d}
`, strategy, tps, s.Targets.For("IW-F"), dayMaxReplicas, strategy, dayPlanEvery))
	live.Run("up", live.Document)
	base := len(live.Processes()) - 1 // one replica
	trace := filepath.Join(t.TempDir(), "day.csv")
	if err := os.WriteFile(trace, dayTrace(s), 0o600); err != nil {
		t.Fatal(err)
	}
	load := live.Command("load", live.Name, "--workload", trace, "--tier", "IW-F", "--quiet", "-o", "json")
	var report strings.Builder
	load.Stdout, load.Stderr = &report, os.Stderr
	start := time.Now()
	if err := load.Start(); err != nil {
		t.Fatal(err)
	}
	var use dayUse
	meter := overloadMeter{demand: s.Demand, tps: tps}
	last := time.Duration(0)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for now := last; now < s.Duration; {
		<-tick.C
		now = min(time.Since(start), s.Duration)
		ready := readSnapshot(live, &use)
		use.hours += float64(len(live.Processes())-base) * (now - last).Hours()
		meter.add(last, now, ready)
		last = now
	}
	if err := load.Wait(); err != nil {
		t.Fatalf("load: %v", err)
	}
	readSnapshot(live, &use)
	use.overload = meter.share()
	var r struct {
		OK       int `json:"ok"`
		Requests int `json:"requests"`
	}
	if err := json.Unmarshal([]byte(report.String()), &r); err != nil || r.OK < r.Requests*95/100 {
		t.Errorf("%s: %d of %d requests succeeded, %v: %s", strategy, r.OK, r.Requests, err, report.String())
	}
	return use
}

// readSnapshot sets the first tokens of a day so far, and returns the number of ready replicas.
func readSnapshot(live *testkit.LiveService, use *dayUse) (ready int) {
	res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/v1/snapshot", live.Port+100))
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	var snapshot struct {
		Regions []struct {
			Replicas []struct {
				State string `json:"state"`
			} `json:"replicas"`
			Models []struct {
				FirstTokens int64 `json:"first_tokens"`
				Late        int64 `json:"late"`
			} `json:"models"`
		} `json:"regions"`
	}
	if json.NewDecoder(res.Body).Decode(&snapshot) != nil {
		return 0
	}
	for _, region := range snapshot.Regions {
		for _, r := range region.Replicas {
			if r.State == "READY" {
				ready++
			}
		}
		for _, m := range region.Models {
			use.requests, use.late = m.FirstTokens, float64(m.Late)/math.Max(1, float64(m.FirstTokens))
		}
	}
	return ready
}

// dayTrace draws the requests of the demand as a trace of Azure's format.
func dayTrace(s *sim.FleetScenario) []byte {
	var out strings.Builder
	out.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\n")
	random := rand.New(rand.NewPCG(*daySeed, 0x646179))
	lengths := s.Models[0].Lengths
	mean := lengths.Prompt.Mean()
	draw := func(l sim.LogNormal) int {
		return min(max(int(l.Median*math.Exp(l.Sigma*random.NormFloat64())+0.5), 1), l.Max)
	}
	start := time.Date(2023, 11, 16, 18, 0, 0, 0, time.UTC)
	for at := 0.0; ; {
		minute := int(at / 60)
		if minute >= s.Demand.Minutes() {
			return []byte(out.String())
		}
		rate := s.Demand.Interactive(0, 0, minute) / 60 / mean
		wait := random.ExpFloat64() / math.Max(rate, 1e-9)
		if at+wait >= float64(minute+1)*60 {
			at = float64(minute+1) * 60 // a Poisson process has no memory
			continue
		}
		at += wait
		fmt.Fprintf(&out, "%s,%d,%d\n", start.Add(time.Duration(at*1e9)).Format("2006-01-02 15:04:05.0000000"), draw(lengths.Prompt), draw(lengths.Output))
	}
}
