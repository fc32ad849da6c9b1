//go:build compare && linux

package eval

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
	"skyserve/internal/sim"
	"skyserve/internal/sim/engine"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/plan"
)

var (
	dayLength     = flag.Duration("day.length", 20*time.Minute, "length of the day, in whole minutes")
	dayStrategies = flag.String("day.strategies", "reactive,lt-ua,auto", "strategies, comma-separated")
	daySeed       = flag.Uint64("day.seed", 1, "seed of the day's load")
	dayPhases     = flag.Int("day.phases", 20, "number of simulations, each with the control loop at another phase")
)

const (
	// dayPeakReplicas is the number of replicas that serve the day's busiest minute.
	dayPeakReplicas = 5
	dayMaxReplicas  = 8
	// dayStart is the time from the launch of a local replica until it serves.
	dayStart = 2 * time.Second
	// dayAttach is the time from the delivery of a reclaim to its balancer until the donated replica serves.
	dayAttach = time.Second / 2 // a round of the controller and a probe
	// dayPlanned is the second of a minute in which the controller plans: the first plan with load needs 15 s of the
	// day's first minute, and the history is read every 10 s until then.
	dayPlanned = 20 * time.Second
	// daySettled is the time after the end of a minute at which the controller counts it.
	daySettled = 15 * time.Second
	// dayPlanEvery is the time between two plans: about the day's hour.
	dayPlanEvery = time.Minute
	// dayTolerance is the share by which two figures may differ without a mark.
	dayTolerance = 0.05
)

// dayUse is what a strategy used and missed in a day. Hours are those of replicas that are not donated.
type dayUse struct {
	hours, late, overload       float64
	requests                    int64
	started, donated, reclaimed int
	changes                     []time.Duration // the times of the strategy's changes, in any order
}

// between returns the median time between two changes, in seconds; 0 = there are fewer than two.
func (u dayUse) between() float64 {
	at := slices.Sorted(slices.Values(u.changes))
	var gaps []float64
	for i := 1; i < len(at); i++ {
		gaps = append(gaps, (at[i] - at[i-1]).Seconds())
	}
	slices.Sort(gaps)
	if len(gaps) == 0 {
		return 0
	}
	return gaps[len(gaps)/2]
}

// TestCompareDay runs a working day's load, compressed to a few minutes, on a local service with real processes, and
// in the simulator with the same requests, balancer, planner, strategy, engine and times. The simulator runs it many times,
// each with another phase of the control loop, which is unknown of the service. Figures that differ from the median of
// these simulations by more than dayTolerance are compared with their range, and with the range for the start-up times that
// the service had. At the end of the day, an operator applies a plan.
func TestCompareDay(t *testing.T) {
	s := dayFleet(t)
	tps, err := replicaTPS(s)
	if err != nil {
		t.Fatal(err)
	}
	s.Demand = dayDemand(tps[0])
	s.Requests = dayRequests(s)
	var table strings.Builder
	for _, strategy := range strings.Split(*dayStrategies, ",") {
		predicted := simulateDays(t, s, strategy, tps)
		served, starts := serveDay(t, s, strategy, tps[0])
		measured := *s
		measured.Starts = starts.times()
		again := simulateDays(t, &measured, strategy, tps)
		writeDay(&table, strategy, served, predicted, again, starts)
		if n := predicted.median(func(u dayUse) float64 { return float64(u.requests) }); served.hours <= 0 || math.Abs(float64(served.requests)-n) > 0.1*n {
			t.Errorf("%s: served %+v, predicted %v requests", strategy, served, n)
		}
		if donated, _ := predicted.extent(func(u dayUse) float64 { return float64(u.reclaimed) }); donated > 1 && (served.donated == 0 || served.reclaimed == 0) {
			t.Errorf("%s: %d replicas donated, %d reclaimed in a day", strategy, served.donated, served.reclaimed)
		}
	}
	t.Logf("a day in %s, capacity of a replica %.0f prompt tokens/s, at most %d replicas; the simulator: median (lowest to highest) of %d days\n%-10s %-32s %9s  %-28s %-28s\n%s",
		*dayLength, tps[0], dayMaxReplicas, *dayPhases, "strategy", "", "service", "simulator", "with measured start-up times", table.String())
}

// dayUses are the figures of simulated days with different phases of the control loop.
type dayUses []dayUse

// simulateDays predicts the day with different phases of the control loop.
func simulateDays(t *testing.T, s *sim.FleetScenario, strategy string, tps []float64) (out dayUses) {
	t.Helper()
	for i := range *dayPhases {
		out = append(out, simulateDay(t, s, strategy, tps, dayInterval*time.Duration(i)/time.Duration(*dayPhases)))
	}
	return out
}

func (d dayUses) sorted(figure func(dayUse) float64) (all []float64) {
	for _, u := range d {
		all = append(all, figure(u))
	}
	slices.Sort(all)
	return all
}

func (d dayUses) median(figure func(dayUse) float64) float64 { return d.sorted(figure)[len(d)/2] }

func (d dayUses) extent(figure func(dayUse) float64) (lowest, highest float64) {
	all := d.sorted(figure)
	return all[0], all[len(all)-1]
}

// writeDay writes the figures of a strategy: the service's, the prediction, and the prediction for the measured
// start-up times.
func writeDay(out *strings.Builder, strategy string, served dayUse, predicted, again dayUses, starts *dayStarts) {
	usd, _ := catalogue.ListPrice("aws", "L4", 1)
	for _, row := range []struct {
		name   string
		judged bool
		figure func(dayUse) float64
	}{
		{"replica-hours", true, func(u dayUse) float64 { return u.hours }},
		{"list price of L4 machines, USD", true, func(u dayUse) float64 { return usd * u.hours }},
		{"IW-F first tokens late, %", true, func(u dayUse) float64 { return 100 * u.late }},
		{"load above ready capacity, %", true, func(u dayUse) float64 { return 100 * u.overload }},
		{"first tokens", false, func(u dayUse) float64 { return float64(u.requests) }},
		{"replicas started", false, func(u dayUse) float64 { return float64(u.started) }},
		{"donated", false, func(u dayUse) float64 { return float64(u.donated) }},
		{"reclaimed", false, func(u dayUse) float64 { return float64(u.reclaimed) }},
		{"between two changes, s (median)", false, func(u dayUse) float64 { return u.between() }},
	} {
		value := row.figure(served)
		cell := func(d dayUses) string {
			lowest, highest := d.extent(row.figure)
			return fmt.Sprintf("%.3f (%.3f to %.3f)", d.median(row.figure), lowest, highest)
		}
		within := func(d dayUses) bool {
			lowest, highest := d.extent(row.figure)
			return lowest <= value && value <= highest
		}
		mark := ""
		if row.judged && apart(value, predicted.median(row.figure)) {
			switch {
			case within(predicted):
				mark = "more than 5 % apart: within the range"
			case within(again) || !apart(value, again.median(row.figure)):
				mark = "more than 5 % apart: by start-up times"
			default:
				mark = "more than 5 % apart: outside the range"
			}
		}
		fmt.Fprintf(out, "%-10s %-32s %9.3f  %-28s %-28s %s\n", strategy, row.name, value, cell(predicted), cell(again), mark)
	}
	fmt.Fprintf(out, "%-10s start-up: %d replicas launched, ready after %s on average (simulator %s), %d reclaimed after %s (%s); a process waited for a processor in %.0f %% of the day (simulator 0)\n",
		strategy, starts.n, starts.mean().Round(10*time.Millisecond), dayStart, len(starts.reclaims), starts.meanReclaim().Round(10*time.Millisecond), dayDelivery()+dayAttach, 100*starts.waited.Seconds()/dayLength.Seconds())
}

// apart reports whether two figures differ by more than dayTolerance.
func apart(a, b float64) bool { return math.Abs(a-b) > dayTolerance*math.Max(a, b) }

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
	s.Starts, s.ReclaimDraining = dayTimes(dayStart, dayDelivery()+dayAttach), true
	s.Duration, s.SampleInterval = *dayLength, time.Second
	s.Balancer = func() core.Config { return core.DefaultConfig(policy.NewCost()) }
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

// simulateDay predicts the day for a phase of the control loop. The service runs a minute before it: its balancers count
// from some second of that minute on.
func simulateDay(t *testing.T, day *sim.FleetScenario, strategy string, tps []float64, phase time.Duration) dayUse {
	t.Helper()
	s := new(sim.FleetScenario)
	*s = *day
	s.From, s.Period, s.Demand = time.Minute, dayBeat, sim.NewDemand(1, 1, day.Demand.Minutes()+1)
	copy(s.Demand.PromptTPS[0][0][0][1:], day.Demand.PromptTPS[0][0][0])
	spec := fleetService(s, tps)
	spec.Autoscale.Every = dayPlanEvery
	setup, err := newFleetSetup(s, strategy, plan.StrategyOptions{}, 1, spec, newSharedInputs(plan.ReviewOptions{StartUp: dayStart}))
	if err != nil {
		t.Fatal(err)
	}
	scaler := setup.Scaler.(*fleetScaler)
	setup.Scaler = &dayLoop{inner: scaler, next: phase}
	scaler.nextPlan = dayPlanned
	scaler.loads = func(v *sim.FleetView, i int, now time.Duration) (recent, lastMinute *float64) {
		h, at := scaler.history(v), (s.From + now - daySettled).Truncate(time.Minute)
		load := func(minutes int) *float64 {
			for _, tps := range plan.ObservedLoads(h, 0, weekStartMinute+int64(at/time.Minute), minutes) {
				return &tps
			}
			return nil
		}
		return load(plan.ObservedMinutes), load(1)
	}
	ready, since, donated := map[int]bool{}, time.Duration(0), 0
	var changes []time.Duration
	meter := overloadMeter{demand: day.Demand, tps: tps[0]}
	setup.OnVMChange = func(c sim.VMChange) {
		meter.add(since, c.At, len(ready))
		since = c.At
		delete(ready, c.VM)
		switch c.State {
		case sim.VMReady:
			ready[c.VM] = true
		case sim.VMDonated:
			donated++
		case sim.VMStarting, sim.VMDraining:
			changes = append(changes, c.At)
		}
	}
	result, err := sim.RunFleet(t.Context(), s, setup)
	if err != nil {
		t.Fatal(err)
	}
	meter.add(since, s.Duration, len(ready))
	fast, use := result.Tiers[0], result.Endpoints[0]
	return dayUse{
		changes: changes, started: use.Launched, donated: donated, reclaimed: use.Starts - use.Launched - use.Redeployed, hours: use.InstanceHours(), overload: meter.share(), requests: int64(fast.Issued),
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

// dayStarts is what differs between a host and the simulator: the start-up times of the replicas that a service
// launched, and the time in which a process waited for a processor.
type dayStarts struct {
	waited   time.Duration
	launched map[string]time.Duration // when the process of a replica was first seen
	n        int
	total    time.Duration
	ready    map[string][]time.Duration // when a replica became ready
	serving  map[string]bool            // those that were ready at the last look
	reclaims []time.Duration            // from the decision to reclaim a replica until it was ready
}

// add adds the replicas that have become ready.
func (d *dayStarts) add(now time.Duration, machines map[string][]int, ready map[string]bool) {
	for name := range ready {
		if !d.serving[name] {
			d.ready[name] = append(d.ready[name], now)
		}
	}
	d.serving = ready
	for name := range machines {
		at, known := d.launched[name]
		if !known {
			d.launched[name], at = now, now
		}
		if at > 0 && ready[name] {
			d.n, d.total, d.launched[name] = d.n+1, d.total+now-at, 0
		}
	}
}

// cpuWait returns the time since boot in which a process of the host waited for a processor; 0 if the kernel does not
// report it.
func cpuWait() time.Duration {
	text, _ := os.ReadFile("/proc/pressure/cpu")
	var us int64
	if _, total, ok := strings.Cut(string(text), "total="); ok {
		_, _ = fmt.Sscan(total, &us)
	}
	return time.Duration(us) * time.Microsecond
}

func (d *dayStarts) mean() time.Duration { return d.total / time.Duration(max(1, d.n)) }

// addReclaim adds a decision to reclaim a replica.
func (d *dayStarts) addReclaim(name string, at time.Duration) {
	for _, ready := range d.ready[name] {
		if ready > at {
			d.reclaims = append(d.reclaims, ready-at)
			return
		}
	}
}

// meanReclaim returns the mean time of a reclaim; 0 without one.
func (d *dayStarts) meanReclaim() (mean time.Duration) {
	for _, r := range d.reclaims {
		mean += r / time.Duration(len(d.reclaims))
	}
	return mean
}

// times returns the start-up times for a simulation.
func (d *dayStarts) times() sim.StartTimes {
	return dayTimes(cmp.Or(d.mean(), dayStart), cmp.Or(d.meanReclaim(), dayDelivery()+dayAttach))
}

// dayTimes returns the times of a local service: a donated replica runs.
func dayTimes(start, reclaim time.Duration) sim.StartTimes {
	return sim.StartTimes{Reclaim: reclaim, ReclaimMax: reclaim, Launch: start}
}

// serveDay serves the day on a local service and measures it. At its end, an operator applies a plan.
func serveDay(t *testing.T, s *sim.FleetScenario, strategy string, tps float64) (dayUse, *dayStarts) {
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
autoscale: {strategy: %s, every: %s, donate: true}
local: {port: %%d}
`, strategy, tps, s.Deadlines.For("IW-F"), dayMaxReplicas, strategy, dayPlanEvery))
	// The day starts with a minute, as in the simulator, and the service within the minute before it.
	if second := time.Now().Second(); second > 15 {
		time.Sleep(time.Duration(60-second) * time.Second)
	}
	live.Run("up", live.Document)
	time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
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
	starts := &dayStarts{launched: map[string]time.Duration{}, ready: map[string][]time.Duration{}, waited: cpuWait()}
	for name := range live.Processes() {
		starts.launched[name] = 0
	}
	meter := overloadMeter{demand: s.Demand, tps: tps}
	last := time.Duration(0)
	tick := time.NewTicker(time.Second / 2)
	defer tick.Stop()
	for now := last; now < s.Duration; {
		<-tick.C
		now = min(time.Since(start), s.Duration)
		replicas := readSnapshot(live, &use)
		machines := live.Processes()
		starts.add(now, machines, replicas.ready)
		use.hours += float64(len(machines)-base-replicas.donated) * (now - last).Hours()
		meter.add(last, now, len(replicas.ready))
		last = now
	}
	starts.waited = cpuWait() - starts.waited
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
	for kind, n := range map[string]*int{"launch": &use.started, "donate": &use.donated, "reclaim": &use.reclaimed} {
		events := eventsOf(t, live, kind, "autoscaler")
		*n = len(events)
		for _, e := range events {
			use.changes = append(use.changes, e.At.Sub(start))
			if kind == "reclaim" {
				starts.addReclaim(e.Object, e.At.Sub(start))
			}
		}
	}
	out, err := live.Command("plan", live.Name, "--apply", "--yes").CombinedOutput()
	if err != nil {
		t.Fatalf("%s: applying a plan: %v: %s", strategy, err, out)
	}
	changed := !strings.Contains(string(out), ": no change")
	if applied := len(eventsOf(t, live, "apply", "operator:")) == 1; applied != changed {
		t.Errorf("%s: the plan changes replicas: %v, event of an applied plan: %v", strategy, changed, applied)
	}
	return use, starts
}

// dayEvent is an event of a service.
type dayEvent struct {
	At     time.Time `json:"at"`
	Actor  string    `json:"actor"`
	Object string    `json:"object"`
}

// eventsOf returns a service's events of a kind by an actor.
func eventsOf(t *testing.T, live *testkit.LiveService, kind, actor string) (events []dayEvent) {
	t.Helper()
	for line := range strings.Lines(string(live.Run("events", live.Name, "--kind", kind, "--limit", "10000", "-o", "json"))) {
		var e dayEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("events: %v: %s", err, line)
		}
		if strings.HasPrefix(e.Actor, actor) {
			events = append(events, e)
		}
	}
	return events
}

// dayReplicas is the replicas of a snapshot.
type dayReplicas struct {
	ready   map[string]bool
	donated int
}

// readSnapshot sets the first tokens of a day so far, and returns the replicas.
func readSnapshot(live *testkit.LiveService, use *dayUse) dayReplicas {
	out := dayReplicas{ready: map[string]bool{}}
	res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/v1/snapshot", live.Port+100))
	if err != nil {
		return out
	}
	defer res.Body.Close()
	var snapshot struct {
		Regions []struct {
			Replicas []struct {
				ID    string `json:"id"`
				State string `json:"state"`
			} `json:"replicas"`
			Models []struct {
				FirstTokens int64 `json:"first_tokens"`
				Late        int64 `json:"slo_misses"`
			} `json:"models"`
		} `json:"regions"`
	}
	if json.NewDecoder(res.Body).Decode(&snapshot) != nil {
		return out
	}
	for _, region := range snapshot.Regions {
		for _, r := range region.Replicas {
			switch {
			case r.State == string(service.StateReady):
				out.ready[r.ID] = true
			case r.State == string(service.StateDonated): // a replica that drains is not donated yet
				out.donated++
			}
		}
		for _, m := range region.Models {
			use.requests, use.late = m.FirstTokens, float64(m.Late)/math.Max(1, float64(m.FirstTokens))
		}
	}
	return out
}

// dayTemplate is the number of tokens that the engine adds to a prompt for the chat template.
var dayTemplate = engine.CountTokens("<|user|>\n\n<|assistant|>\n")

// dayRequests draws the requests of the demand, as the engine receives them.
func dayRequests(s *sim.FleetScenario) (out []sim.FleetRequest) {
	random := rand.New(rand.NewPCG(*daySeed, 0x646179))
	lengths := s.Models[0].Lengths
	mean := lengths.Prompt.Mean()
	draw := func(l sim.LogNormal) int {
		return min(max(int(l.Median*math.Exp(l.Sigma*random.NormFloat64())+0.5), 1), l.Max)
	}
	for at := 0.0; ; {
		minute := int(at / 60)
		if minute >= s.Demand.Minutes() {
			return out
		}
		rate := s.Demand.Interactive(0, 0, minute) / 60 / mean
		wait := random.ExpFloat64() / math.Max(rate, 1e-9)
		if at+wait >= float64(minute+1)*60 {
			at = float64(minute+1) * 60 // a Poisson process has no memory
			continue
		}
		at += wait
		q := sim.FleetRequest{At: time.Duration(at * 1e9), Tier: service.TierFast, Prompt: draw(lengths.Prompt) + dayTemplate}
		q.Output = draw(lengths.Output)
		out = append(out, q)
	}
}

// dayTrace returns the requests, without the chat template, as a trace of Azure's format.
func dayTrace(s *sim.FleetScenario) []byte {
	var out strings.Builder
	out.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\n")
	start := time.Date(2023, 11, 16, 18, 0, 0, 0, time.UTC)
	for _, q := range s.Requests {
		fmt.Fprintf(&out, "%s,%d,%d\n", start.Add(q.At).Format("2006-01-02 15:04:05.0000000"), q.Prompt-dayTemplate, q.Output)
	}
	return []byte(out.String())
}
