package deploy

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/internal/testcloud/conformance"
	"skyserve/internal/testkit"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// The rules of the simulated spot market. They are fictitious: each zone alternates between plenty and shortage;
// in a shortage it launches nothing and soon interrupts what it runs.
const (
	hedgeStep     = time.Minute
	hedgeBoot     = 8 * time.Minute // launch until ready
	hedgePlenty   = 8 * time.Hour   // mean
	hedgeShortage = 2 * time.Hour   // mean
	hedgeNotice   = 2 * time.Minute
	priceOnDemand = 0.80
	priceSpot     = 0.32
)

// hedgeMarket is a region's spot market over the in-memory cloud.
type hedgeMarket struct {
	*conformance.Memory
	random  *rand.Rand
	short   map[string]time.Time // the end of each zone's current state
	lacking map[string]bool
	ready   map[string]time.Time // by handle
	doomed  map[string]time.Time // the end of a machine with a notice, by handle
}

func newHedgeMarket(seed uint64) *hedgeMarket {
	w := &hedgeMarket{
		Memory: &conformance.Memory{RegionOfferings: map[service.Region]provision.Offerings{}}, random: rand.New(rand.NewPCG(seed, 7)),
		short: map[string]time.Time{}, lacking: map[string]bool{}, ready: map[string]time.Time{}, doomed: map[string]time.Time{},
	}
	for _, zone := range []string{"a", "b", "c"} {
		for capacity, price := range map[service.CapacityType]float64{service.CapacitySpot: priceSpot, service.CapacityOnDemand: priceOnDemand} {
			o := provision.Offering{Type: "g6.xlarge", Region: "aws/us-east-1", Zone: "us-east-1" + zone, Capacity: capacity, GPU: "L4", GPUs: 1, PricePerHour: price}
			w.RegionOfferings[o.Region] = append(w.RegionOfferings[o.Region], o)
		}
	}
	balancer := provision.Offering{Type: "c7i.large", Region: "aws/us-east-1", Zone: "us-east-1a", Capacity: service.CapacityOnDemand, PricePerHour: 0.09}
	w.RegionOfferings[balancer.Region] = append(w.RegionOfferings[balancer.Region], balancer)
	w.CapacityError = func(o provision.Offering) *provision.CapacityError {
		if o.Capacity == service.CapacitySpot && w.lacking[o.Zone] {
			return &provision.CapacityError{Offering: o, Scope: provision.ScopeZone, Code: "InsufficientInstanceCapacity"}
		}
		return nil
	}
	return w
}

// step advances the market to a time: shortages begin and end, and interrupt machines; every third without a
// notice.
func (w *hedgeMarket) step(now time.Time) {
	for _, zone := range []string{"us-east-1a", "us-east-1b", "us-east-1c"} {
		if now.Before(w.short[zone]) {
			continue
		}
		mean := hedgePlenty
		if w.lacking[zone] = !w.lacking[zone] && !w.short[zone].IsZero(); w.lacking[zone] {
			mean = hedgeShortage
		}
		w.short[zone] = now.Add(time.Duration(w.random.ExpFloat64() * float64(mean)))
	}
	for _, o := range w.Objects() {
		if o.Kind != provision.KindReplica || o.TerminatedReason != "" {
			continue
		}
		if _, known := w.ready[o.Handle]; !known {
			w.ready[o.Handle] = now.Add(hedgeBoot)
		}
		end, doomed := w.doomed[o.Handle]
		switch {
		case doomed && !now.Before(end):
			w.ChangeObject(o.ID, func(o *provision.Object) { o.TerminatedReason, o.Interrupted = "interrupted", true })
		case !doomed && o.Offering.Capacity == service.CapacitySpot && w.lacking[o.Offering.Zone] && w.random.IntN(10) == 0:
			w.doomed[o.Handle] = now.Add(hedgeNotice)
			if w.random.IntN(3) == 0 {
				w.doomed[o.Handle] = now
			}
		}
	}
}

// reports returns what the agents of the machines report.
func (w *hedgeMarket) reports(now time.Time) map[string]AgentReport {
	seen := map[string]AgentReport{}
	for _, o := range w.Objects() {
		s := agent.Status{Phase: agent.PhaseWeights}
		if ready, known := w.ready[o.Handle]; known && !now.Before(ready) {
			s.Phase = agent.PhaseReady
		}
		if end, doomed := w.doomed[o.Handle]; doomed {
			s.Phase, s.InterruptionAt = agent.PhaseInterrupted, end
		}
		if o.TerminatedReason == "" {
			seen[o.ID] = AgentReport{Status: s}
		}
	}
	return seen
}

// hedgeResult is what a simulated service got.
type hedgeResult struct {
	below       time.Duration // fewer ready replicas than replicas.min
	longest     time.Duration // of such a time since the last interruption
	most        int           // replicas at once
	costPerHour float64
	interrupted int
	crashes     int // of controllers
	launches    int
	overlap     time.Duration // the longest time of an on-demand replica beside replicas.min settled spot replicas
}

// hedgeMeter is the state of measuring a simulated service.
type hedgeMeter struct {
	handles       map[string]bool
	lost          int           // interruptions so far
	down, settled time.Duration // until now
}

// discardedRecords are records that nobody reads.
type discardedRecords struct{}

func (discardedRecords) Load(context.Context, string, any) (bool, error) { return false, nil }
func (discardedRecords) Read(context.Context, string, any) error         { return nil }
func (discardedRecords) Store(context.Context, string, any) error        { return nil }

// simulateHedge runs the reconciler's launches and removals for a region over simulated time. With crashes, its controller
// is replaced at random, every half an hour on average.
func simulateHedge(t *testing.T, region string, seed uint64, duration time.Duration, crashes bool) (r hedgeResult) {
	t.Helper()
	spec, err := service.Parse("service.yaml", []byte("name: chat\nbalancer: {auth: {keys_from: env:KEYS}, insecure: true}\nmodels: [{name: llama, engine: {kind: vllm}, gpus: [{type: L4}]}]\nregions:\n  - "+region+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		w, rc := newHedgeMarket(seed), &Reconciler{storeRecords: discardedRecords{}}
		bs := &bundleState{content: DeploymentInput{Spec: spec}, offersReadAt: map[service.Region]time.Time{}, newPrices: make(chan Prices, 1)}
		bs.deployer = &Deployer{Spec: spec, Provider: w, UserData: func(cloud.MachineInput) (string, error) { return "", nil }, offers: map[service.Region]provision.Offerings{}}
		bs.deployer.exhausted.Spot = &rc.spot
		bs.deployer.ListObserved = func(context.Context) ([]provision.Object, error) { return w.Objects(), nil }
		checkLeadership := func() error { return nil }
		meter := hedgeMeter{handles: map[string]bool{}}
		lastBalancers := func(all []provision.Object) []provision.Object {
			return slices.DeleteFunc(all, func(o provision.Object) bool { return o.Kind == provision.KindBalancer })
		}
		for elapsed := time.Duration(0); elapsed < duration; elapsed += hedgeStep {
			now := time.Now()
			w.step(now)
			s, seen := &observation{spec: spec, have: lastBalancers(w.Objects())}, w.reports(now)
			rc.settlingSpot = rc.settlingSpotReplicas(spec, s.have, seen, now)
			if crashes && w.random.IntN(30) == 0 { // another controller leads, which knows only this one's decisions
				rc.Wait()
				rc = &Reconciler{storeRecords: discardedRecords{}, storedDecisions: rc.storedDecisions}
				bs.deployer.exhausted.Spot = &rc.spot
				rc.settlingSpot = rc.settlingSpotReplicas(spec, s.have, seen, now)
				r.crashes++
			}
			if _, err := rc.launchMissing(t.Context(), bs, s, seen, seen, checkLeadership); err != nil && !strings.Contains(err.Error(), "capacity") {
				t.Fatal(err)
			}
			s.have = lastBalancers(w.Objects())
			if err := rc.removeDrained(t.Context(), bs, s, seen, nil, checkLeadership); err != nil {
				t.Fatal(err)
			}
			r.add(w, spec, seen, now, elapsed, &meter)
			time.Sleep(hedgeStep)
		}
		r.costPerHour *= hedgeStep.Hours() / duration.Hours()
		r.interrupted, r.launches = len(w.doomed), len(meter.handles)
		rc.Wait()
	})
	return r
}

// add adds one step to the result. The first start, of twice the boot time, does not count.
func (r *hedgeResult) add(w *hedgeMarket, spec *service.Spec, seen map[string]AgentReport, now time.Time, elapsed time.Duration, m *hedgeMeter) {
	ready, running, spot, onDemand := 0, 0, 0, 0
	for _, o := range w.Objects() {
		if o.Kind != provision.KindReplica || o.TerminatedReason != "" {
			continue
		}
		m.handles[o.Handle] = true
		running++
		r.costPerHour += o.CostPerHour
		_, doomed := w.doomed[o.Handle]
		if serves := seen[o.ID].Phase == agent.PhaseReady || doomed && !now.Before(w.ready[o.Handle]); serves {
			ready++
		}
		switch {
		case o.Offering.Capacity == service.CapacityOnDemand:
			onDemand++
		case seen[o.ID].Phase == agent.PhaseReady && now.Sub(w.ready[o.Handle]) > spotSettleTime:
			spot++
		}
	}
	bounds := spec.BoundsFor("llama", "aws/us-east-1")
	r.most = max(r.most, running)
	if ready < bounds.Min && elapsed >= 2*hedgeBoot {
		r.below += hedgeStep
		m.down += hedgeStep
	} else {
		m.down = 0
	}
	if m.lost != len(w.doomed) {
		m.lost, m.down = len(w.doomed), 0
	}
	if m.settled += hedgeStep; spot < bounds.Min || onDemand == 0 {
		m.settled = 0
	}
	r.longest, r.overlap = max(r.longest, m.down), max(r.overlap, m.settled)
}

// hedgeHours is the simulated time; docs/results.md has figures of two weeks.
var (
	hedgeHours = flag.Int("hedge-hours", 24, "simulated hours of TestSpotBackupOverDays and TestControllersCrash")
	hedgeSeeds = flag.Int("hedge-seeds", 1, "number of seeds of TestControllersCrash")
	hedgeFirst = flag.Uint64("hedge-seed", 1, "first seed of TestControllersCrash")
)

// hedgeStrategies are regions with the same minimum.
var hedgeStrategies = []struct{ name, region string }{
	{"on demand only", "{name: aws/us-east-1, replicas: {min: 3, max: 7}}"},
	{"spot only", "{name: aws/us-east-1, replicas: {min: 3, max: 7}, capacity: [spot]}"},
	{"spot, then on demand", "{name: aws/us-east-1, replicas: {min: 3, max: 7}, capacity: [spot, on_demand]}"},
	{"dynamic fallback", "{name: aws/us-east-1, replicas: {min: 3, max: 7}, capacity: [spot, on_demand], spot: {dynamic_fallback: true}}"},
	{"overprovision 1", "{name: aws/us-east-1, replicas: {min: 3, max: 7}, capacity: [spot, on_demand], spot: {overprovision: 1}}"},
	{"both", "{name: aws/us-east-1, replicas: {min: 3, max: 7}, capacity: [spot, on_demand], spot: {overprovision: 1, dynamic_fallback: true}}"},
}

// Over simulated days of interruptions: never more replicas than replicas.max; with dynamic fallback the minimum is
// missed for no longer than a launch after an interruption, and replicas on demand end after spot is back.
func TestSpotBackupOverDays(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	duration := time.Duration(*hedgeHours) * time.Hour
	const seed = 3
	results := map[string]hedgeResult{}
	var table strings.Builder
	fmt.Fprintf(&table, "%-22s %10s %10s %6s %9s %14s %9s\n", "region", "available", "longest", "most", "$/h", "interruptions", "launches")
	for _, c := range hedgeStrategies {
		r := simulateHedge(t, c.region, seed, duration, false)
		results[c.name] = r
		fmt.Fprintf(&table, "%-22s %8.2f %% %10s %6d %9.2f %14d %9d\n", c.name, 100*(1-r.below.Hours()/duration.Hours()), r.longest, r.most, r.costPerHour, r.interrupted, r.launches)
		if r.most > 7 {
			t.Errorf("%s: %d replicas, more than replicas.max", c.name, r.most)
		}
	}
	t.Logf("fewer than 3 ready replicas counts as unavailable; %s, seed %d\n%s", duration, seed, &table)
	for _, name := range []string{"dynamic fallback", "both"} {
		r := results[name]
		if limit := hedgeBoot + 2*hedgeStep; r.longest > limit {
			t.Errorf("%s: below replicas.min for %s, want at most %s", name, r.longest, limit)
		}
		if r.overlap > 20*time.Minute {
			t.Errorf("%s: on demand for %s after spot was back", name, r.overlap)
		}
		if r.interrupted == 0 || r.costPerHour >= results["on demand only"].costPerHour {
			t.Errorf("%s: %d interruptions, $%.2f per hour", name, r.interrupted, r.costPerHour)
		}
	}
	if results["both"].below > results["spot only"].below {
		t.Errorf("with a backup %s below replicas.min, without %s", results["both"].below, results["spot only"].below)
	}
}

// Over simulated days of interruptions and crashes of the controller: never more replicas than replicas.max, and below the
// minimum for no longer than a launch after an interruption.
func TestControllersCrash(t *testing.T) {
	duration := time.Duration(*hedgeHours) * time.Hour
	var all hedgeResult
	for seed := *hedgeFirst; seed < *hedgeFirst+uint64(*hedgeSeeds); seed++ {
		c := hedgeStrategies[3+seed%3] // those with a backup
		r := simulateHedge(t, c.region, seed, duration, true)
		all.crashes, all.interrupted, all.launches = all.crashes+r.crashes, all.interrupted+r.interrupted, all.launches+r.launches
		all.most, all.longest = max(all.most, r.most), max(all.longest, r.longest)
		if limit := hedgeBoot + 2*hedgeStep; r.most > 7 || r.longest > limit {
			t.Errorf("seed %d, %s: %d replicas, want at most 7; below replicas.min for %s, want at most %s", seed, c.name, r.most, r.longest, limit)
		}
	}
	t.Logf("%d seeds of %s: %d crashes of controllers, %d interruptions, %d launches; at most %d replicas of 7; below replicas.min for %s at most after an interruption",
		*hedgeSeeds, duration, all.crashes, all.interrupted, all.launches, all.most, all.longest)
}
