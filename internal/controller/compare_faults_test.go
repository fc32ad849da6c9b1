//go:build compare && linux

package controller_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/telemetry"
)

// Flags of TestCompareFaults: make chaos-control sets them.
var (
	controlSeeds = flag.Int("control.seeds", 1, "number of seeds, one fault each")
	controlFirst = flag.Uint64("control.seed", 1, "first seed")
	controlKills = flag.Int("control.kills", 0, "number of kills after the faults")
	controlFault = flag.String("control.faults", "", "regular expression for the names of the faults; empty = all")
	controlRTT   = flag.String("control.rtt", "", "round-trip time between regions, as 150ms or us-eu=90ms,us-asia=150ms,eu-asia=230ms; empty = no proxies between machines")
)

const (
	// beforeFault is how long clients are measured before a fault.
	beforeFault = 2 * time.Second
	// A fault lasts longer than the bound for another leader: 5 s in one region, 15 s across regions.
	faultLasts, faultLastsAcross = 12 * time.Second, 20 * time.Second
)

// fault is a fault of the control plane.
type fault struct {
	name string
	// inject returns the machines of the balancers that clients cannot use meanwhile, and the repair.
	inject  func(w *controlWorld, rng *rand.Rand) (hit []string, repair func())
	needs   func(w *controlWorld) string // why it cannot be injected here; nil = everywhere
	prepare func(w *controlWorld)        // before clients start; nil = nothing
	// byRepair means that no leader is possible before the repair: times count from there.
	byRepair bool
}

// faults are injected in turn. A machine of a local service is one process, with the agent and its units: on a
// control machine a balancer, a controller and a member of the store.
var faults = []fault{
	{name: "leader's machine killed", inject: func(w *controlWorld, _ *rand.Rand) ([]string, func()) {
		return w.killMachines(w.status().Leadership.Leader)
	}},
	{name: "store leader's machine killed", inject: func(w *controlWorld, _ *rand.Rand) ([]string, func()) {
		return w.killMachines(w.status().StoreState.Leader)
	}},
	{name: "replica's machine killed", inject: func(w *controlWorld, rng *rand.Rand) ([]string, func()) {
		return w.killMachines(w.replicas[rng.IntN(len(w.replicas))])
	}},
	{name: "two of three machines killed", byRepair: true, inject: func(w *controlWorld, rng *rand.Rand) ([]string, func()) {
		leader := w.status().Leadership.Leader
		return w.killMachines(leader, w.others(leader)[rng.IntN(2)])
	}},
	{name: "leader's machine and disk lost", inject: func(w *controlWorld, _ *rand.Rand) ([]string, func()) {
		leader := w.status().Leadership.Leader
		hit, repair := w.killMachines(leader)
		w.eraseStore(leader)
		return hit, repair
	}},
	{name: "leader's network cut", needs: (*controlWorld).needsCuts, prepare: (*controlWorld).place, inject: func(w *controlWorld, _ *rand.Rand) ([]string, func()) {
		leader := w.status().Leadership.Leader
		return nil, w.cut(leader, w.others(leader))
	}},
	{name: "leader's disk full, replica killed", needs: (*controlWorld).needsDisks, prepare: (*controlWorld).mountStores, inject: func(w *controlWorld, rng *rand.Rand) ([]string, func()) {
		empty := w.fillDisk(w.status().Leadership.Leader)
		_, repair := w.killMachines(w.replicas[rng.IntN(len(w.replicas))])
		return nil, func() { empty(); repair() }
	}},
	{name: "leader hangs", inject: func(w *controlWorld, _ *rand.Rand) ([]string, func()) {
		leader := w.status().Leadership.Leader
		return []string{leader}, w.stop(leader)
	}},
}

// faultResult is what the seeds of a fault observed.
type faultResult struct {
	runs              int
	requests, failed  int // of clients of balancers that the fault did not hit
	hit, hitFailed    int // of the others
	leaders, actions  []time.Duration
	unled, idle       int // runs in which no other controller led, or acted
	markers, lost     int
	twice             []string
	leadershipChanges int
}

// TestCompareFaults injects faults into the control plane of a local service of real processes under load, and compares
// what clients see during each of them. No acknowledged write is lost, and no machine runs twice.
func TestCompareFaults(t *testing.T) {
	chosen := chosenFaults(t, *controlFault)
	w := newControlWorld(t)
	results := map[string]*faultResult{}
	defer func() { t.Log(faultTable(results)) }()
	for seed := *controlFirst; seed < *controlFirst+uint64(*controlSeeds); seed++ {
		f := chosen[(seed-1)%uint64(len(chosen))]
		if f.needs != nil {
			if why := f.needs(w); why != "" {
				t.Logf("SKIPPED, seed %d: %s: %s", seed, f.name, why)
				continue
			}
		}
		if results[f.name] == nil {
			results[f.name] = &faultResult{}
		}
		w.runFault(f, rand.New(rand.NewPCG(seed, 0)), results[f.name])
		t.Logf("seed %d: %s: %+v", seed, f.name, *results[f.name])
	}
	if *controlKills > 0 {
		w.runKills(rand.New(rand.NewPCG(*controlFirst, 1)), *controlKills)
	}
}

// chosenFaults returns the faults whose names match.
func chosenFaults(t *testing.T, pattern string) []fault {
	t.Helper()
	names, err := regexp.Compile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	chosen := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !names.MatchString(f.name) })
	if len(chosen) == 0 {
		t.Fatalf("no fault matches %q", pattern)
	}
	return chosen
}

// runFault runs a fault under load and adds what it observed to r.
func (w *controlWorld) runFault(f fault, rng *rand.Rand, r *faultResult) {
	w.t.Helper()
	if f.prepare != nil {
		f.prepare(w)
	}
	before := w.settle()
	load := w.startLoad()
	stopMarkers, stopSampling := w.writeMarkers(markerInterval), w.sampleProcesses()
	time.Sleep(beforeFault)
	since := time.Now()
	hit, repair := f.inject(w, rng)
	time.Sleep(w.faultLasts())
	if f.byRepair {
		since = time.Now()
	}
	repair()
	after := w.settle()
	markers, lost := w.checkMarkers(stopMarkers())
	if len(lost) > 0 {
		w.t.Errorf("%s: %d of %d acknowledged writes are lost: %v", f.name, len(lost), markers, lost)
	}
	twice := stopSampling()
	if len(twice) > 0 {
		w.t.Errorf("%s: machines ran twice: %v", f.name, twice)
	}
	if after.Leadership.Term < before.Leadership.Term {
		w.t.Errorf("%s: term %d after term %d", f.name, after.Leadership.Term, before.Leadership.Term)
	}
	r.runs, r.markers, r.lost, r.twice = r.runs+1, r.markers+markers, r.lost+len(lost), append(r.twice, twice...)
	r.leadershipChanges += int(after.Leadership.Term - before.Leadership.Term)
	report := load()
	for region, figures := range report.ByRegion {
		failed := figures.Failed + figures.Rejected
		if slices.Contains(hit, "lb-"+region+"-0") {
			r.hit, r.hitFailed = r.hit+figures.Requests, r.hitFailed+failed
		} else {
			r.requests, r.failed = r.requests+figures.Requests, r.failed+failed
		}
	}
	led, acted := w.firstEvents(since)
	if led > 0 {
		r.leaders = append(r.leaders, led)
	} else {
		r.unled++
	}
	if acted > 0 {
		r.actions = append(r.actions, acted)
	} else {
		r.idle++
	}
}

// firstEvents returns the times until another controller led, and until a controller repaired something; zero if
// none did.
func (w *controlWorld) firstEvents(since time.Time) (led, acted time.Duration) {
	w.t.Helper()
	repairs := []telemetry.EventKind{telemetry.EventAdoption, telemetry.EventLaunch, telemetry.EventReplace}
	for _, e := range w.events(since) {
		after := e.At.Sub(since)
		if e.Kind == telemetry.EventLeader && (led == 0 || after < led) {
			led = after
		}
		if e.Actor == telemetry.ActorController && slices.Contains(repairs, e.Kind) && (acted == 0 || after < acted) {
			acted = after
		}
	}
	return led, acted
}

// settleEvery is the number of rounds of kills after which the service must be whole again.
const settleEvery = 8

// runKills kills random machines, most often the leader's, one or two at a time. It does not wait until the service is
// whole before each kill, only until a controller leads and every machine runs.
func (w *controlWorld) runKills(rng *rand.Rand, kills int) {
	w.t.Helper()
	w.settle()
	load := w.startLoad()
	stopMarkers, stopSampling := w.writeMarkers(killMarkerInterval), w.sampleProcesses()
	killed, begin := map[string]int{}, time.Now()
	for round, left := 1, kills; left > 0; round++ {
		since := time.Now()
		leader := w.awaitLeader()
		victims := []string{leader}
		switch rng.IntN(4) {
		case 0:
			victims[0] = w.replicas[rng.IntN(len(w.replicas))]
		case 1:
			victims[0] = w.others(leader)[rng.IntN(2)]
		case 2:
			if left > 1 {
				victims = append(victims, w.others(leader)[rng.IntN(2)])
			}
		}
		led := time.Since(since)
		w.killMachines(victims...)
		for _, v := range victims {
			killed[v]++
			left--
		}
		// Mostly repaired at once, before another leads; else after another had time to replace machines.
		limit := 1500
		if rng.IntN(4) == 0 {
			limit = 7000
		}
		down := time.Duration(rng.IntN(limit)) * time.Millisecond
		time.Sleep(down)
		repair := time.Now()
		w.up("", "--wait", "none")
		w.t.Logf("%d kills left: %v; %.1f s until a controller led, %.1f s down, %.1f s up", left, victims, led.Seconds(), down.Seconds(), time.Since(repair).Seconds())
		if round%settleEvery == 0 {
			since := time.Now()
			w.settle()
			w.t.Logf("the service is whole after %.1f s", time.Since(since).Seconds())
		}
	}
	w.settle()
	took := time.Since(begin)
	markers, lost := w.checkMarkers(stopMarkers())
	twice, report := stopSampling(), load()
	w.t.Logf("%d kills %v in %s: %d acknowledged writes, %d lost; machines that ran twice: %d; %d requests, %d failed or rejected",
		kills, killed, took.Round(time.Second), markers, len(lost), len(twice), report.Requests, report.Failed+report.Rejected)
	if len(lost)+len(twice) > 0 {
		w.t.Errorf("lost %v, twice %v", lost, twice)
	}
}

// faultTable prints the results.
func faultTable(results map[string]*faultResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "times in seconds since the fault (*: since the repair), median/maximum; requests: failed or rejected of all\n")
	fmt.Fprintf(&b, "%-34s %4s %15s %15s %12s %12s %10s %6s\n", "fault", "runs", "other clients", "its clients", "led", "acted", "lost", "twice")
	for _, f := range faults {
		r := results[f.name]
		if r == nil {
			continue
		}
		name := f.name
		if f.byRepair {
			name += "*"
		}
		fmt.Fprintf(&b, "%-34s %4d %15s %15s %12s %12s %10s %6d\n", name, r.runs,
			fmt.Sprintf("%d/%d", r.failed, r.requests), fmt.Sprintf("%d/%d", r.hitFailed, r.hit),
			medianAndMax(r.leaders, r.unled), medianAndMax(r.actions, r.idle), fmt.Sprintf("%d/%d", r.lost, r.markers), len(r.twice))
	}
	return b.String()
}

// medianAndMax prints times, and the number of runs without one.
func medianAndMax(times []time.Duration, none int) string {
	text := "-"
	if slices.Sort(times); len(times) > 0 {
		text = fmt.Sprintf("%.1f/%.1f", times[len(times)/2].Seconds(), times[len(times)-1].Seconds())
	}
	if none > 0 && len(times) > 0 {
		text += fmt.Sprintf(" (%d-)", none)
	}
	return text
}
