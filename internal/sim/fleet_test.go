package sim

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/testkit"
	"skyserve/lbd/core"
)

// smallFleet is two models in two regions on four VMs each, for half an hour.
func smallFleet(tps float64) FleetScenario {
	s := SageFleet()
	s.Name, s.Models, s.Regions = "small", s.Models[:2], s.Regions[:2]
	s.VMs, s.Min, s.Max, s.Duration, s.SampleInterval = 4, 1, 8, 30*time.Minute, time.Minute
	s.Demand = NewDemand(2, 2, 30)
	for m := range s.Demand.PromptTPS {
		for r := range s.Demand.PromptTPS[m] {
			for t := range tiers {
				for i := range s.Demand.PromptTPS[m][r][t] {
					s.Demand.PromptTPS[m][r][t][i] = tps
				}
			}
		}
	}
	return s
}

// still never scales.
type still struct{}

func (still) Step(time.Duration, *FleetView) ([]FleetChange, error) { return nil, nil }

// script applies given changes at given times.
type script map[time.Duration][]FleetChange

func (s script) Step(now time.Duration, _ *FleetView) ([]FleetChange, error) { return s[now], nil }

// restless scales VMs by a table of random draws.
type restless struct {
	draws []int
	next  int
}

func (r *restless) draw(n int) int {
	r.next++
	return r.draws[r.next%len(r.draws)] % max(1, n)
}

func (r *restless) Step(_ time.Duration, v *FleetView) (out []FleetChange, _ error) {
	donated := make([]int, len(v.Endpoints))
	for i := range v.Endpoints {
		donated[i] = v.Endpoints[i].Donated
	}
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		switch c := (FleetChange{Endpoint: i}); r.draw(6) {
		case 0:
			c.Donate = r.draw(e.Ready)
			out = append(out, c)
		case 1:
			c.Reclaim = r.draw(donated[i] + 1)
			donated[i] -= c.Reclaim
			out = append(out, c)
		case 2:
			from := (i + 2) % len(v.Endpoints) // the other model's of the region
			c.Redeploy = []DonatedVMs{{from, r.draw(donated[from] + 1)}}
			donated[from] -= c.Redeploy[0].Count
			out = append(out, c)
		}
	}
	return out, nil
}

// freely releases below half utilisation, and never by age.
var freely = core.DeferredRule{ReleaseOneBelow: 0.5, ReleaseTwoBelow: 0.5, MaxParkedShare: 1}

func runFleet(t testing.TB, s FleetScenario, setup FleetSetup) *FleetResult {
	t.Helper()
	if !setup.Deferred.Enabled() {
		setup.Deferred = freely
	}
	if setup.Scaler == nil {
		setup.Scaler = still{}
	}
	r, err := RunFleet(context.Background(), &s, setup)
	if err != nil {
		t.Fatal(err)
	}
	if r.Issued != r.Completed+r.Waiting+r.InFlight || r.Issued == 0 {
		t.Fatalf("%d requests: %d completed, %d waiting, %d in flight", r.Issued, r.Completed, r.Waiting, r.InFlight)
	}
	return r
}

// Hours by state equal the sums over a log of all changes; no VM is lost, and every request is
// accounted for.
func TestFleetHoursMatchStateChanges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := smallFleet(rapid.SampledFrom([]float64{50, 200}).Draw(rt, "load"))
		s.Duration = 4 * time.Minute
		draws := rapid.SliceOfN(rapid.IntRange(0, 1000), 5, 60).Draw(rt, "draws")
		var log []VMChange
		r := runFleet(t, s, FleetSetup{Scaler: &restless{draws: draws}, Seed: 1, OnVMChange: func(c VMChange) { log = append(log, c) }})
		twin := make([][vmStates]time.Duration, len(r.Endpoints))
		last := map[int]VMChange{}
		for _, c := range log {
			if was, ok := last[c.VM]; ok {
				twin[was.Endpoint][was.State] += c.At - was.At
			}
			last[c.VM] = c
		}
		sum := 0.0
		for vm := range len(last) {
			twin[last[vm].Endpoint][last[vm].State] += s.Duration - last[vm].At
		}
		for i := range r.Endpoints {
			for state := range vmStates {
				sum += r.Endpoints[i].Hours[state]
				if got, want := r.Endpoints[i].Hours[state], twin[i][state].Hours(); math.Abs(got-want) > 1e-9 {
					rt.Fatalf("endpoint %d: %g h %s, the log has %g", i, got, state, want)
				}
			}
		}
		if want := float64(len(last)) * s.Duration.Hours(); math.Abs(sum-want) > 1e-9 || len(last) != 16 {
			rt.Fatalf("%g VM-hours of %d VMs, want %g", sum, len(last), want)
		}
	})
}

// The same seed yields the same bytes; the requests do not depend on the scaler.
func TestFleetIsReproducible(t *testing.T) {
	s := smallFleet(300)
	random := rand.New(rand.NewPCG(1, 2))
	draws := make([]int, 997)
	for i := range draws {
		draws[i] = random.IntN(1000)
	}
	one := func(seed uint64, scaler Scaler) (*FleetResult, string) {
		r := runFleet(t, s, FleetSetup{Scaler: scaler, Seed: seed})
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return r, string(text)
	}
	a, first := one(7, &restless{draws: draws})
	_, again := one(7, &restless{draws: draws})
	if first != again {
		t.Error("the same seed gives different output")
	}
	b, other := one(7, still{})
	c, another := one(8, &restless{draws: draws})
	if a.Issued != b.Issued || first == other || first == another || a.Issued == c.Issued {
		t.Errorf("requests: %d and %d under seed 7, %d under seed 8", a.Issued, b.Issued, c.Issued)
	}
}

// A donated VM is reclaimed in minutes, one with other weights in ten.
func TestFleetStarts(t *testing.T) {
	s := smallFleet(10)
	began, took := map[int]time.Duration{}, map[int][]time.Duration{}
	runFleet(t, s, FleetSetup{Seed: 3, OnVMChange: func(c VMChange) {
		if c.State == VMStarting {
			began[c.VM] = c.At
		} else if at, ok := began[c.VM]; ok && c.State == VMReady {
			took[c.Endpoint] = append(took[c.Endpoint], c.At-at)
		}
	}, Scaler: script{
		0:                {{Endpoint: 0, Donate: 3}, {Endpoint: 2, Donate: 2}},
		10 * time.Minute: {{Endpoint: 0, Reclaim: 2, Redeploy: []DonatedVMs{{2, 2}}}},
	}})
	if len(took[0]) != 4 || took[0][0] > took[0][1] || took[0][1] > 5*time.Minute || took[0][2] != 10*time.Minute || took[0][3] != 10*time.Minute {
		t.Errorf("starts took %v, want two of at most 5m and two of 10m", took[0])
	}
}

// A new VM takes its launch time plus the time to load weights; if the region's storage lacks them,
// replicas started before they are fetched take two hours.
func TestFleetLaunches(t *testing.T) {
	s := smallFleet(10)
	s.Spare, s.Duration = 3, 150*time.Minute
	s.Models[1].RemoteIn = []int{0}
	s.Demand = NewDemand(2, 2, 150)
	s.Demand.PromptTPS[0][0][0][0] = 100
	began, took := map[int]time.Duration{}, map[int]time.Duration{}
	r := runFleet(t, s, FleetSetup{Seed: 3, OnVMChange: func(c VMChange) {
		if c.State == VMStarting {
			began[c.VM] = c.At
		} else if c.State == VMReady && c.At > 0 {
			took[c.VM] = c.At - began[c.VM]
		}
	}, Scaler: script{
		0:               {{Endpoint: 0, Launch: 1, Donate: 1}, {Endpoint: 2, Launch: 1}},
		5 * time.Minute: {{Endpoint: 2, Redeploy: []DonatedVMs{{0, 1}}}},
		2*time.Hour + 3*time.Minute + 5*time.Second: {{Endpoint: 2, Launch: 1}},
	}})
	// VMs 0 to 15 were there; one of endpoint 0's is donated and redeployed.
	if took[16] != 13*time.Minute || took[17] != 123*time.Minute || took[18] != 13*time.Minute || len(took) != 4 {
		t.Errorf("starts took %v, want 13m and 2h3m, then 2h and 13m", took)
	}
	for vm, d := range took {
		if vm < 16 && d != 2*time.Hour {
			t.Errorf("fetching weights took %s", d)
		}
	}
	if e := r.Endpoints[2]; e.Launched != 2 || e.Redeployed != 1 || e.Starts != 3 || r.Endpoints[0].Launched != 1 {
		t.Errorf("%+v", e)
	}
}

func TestFleetRejectsImpossibleChanges(t *testing.T) {
	for _, c := range []struct {
		change FleetChange
		want   string
	}{
		{FleetChange{Endpoint: 9}, "scaling endpoint 9: must be below 4"},
		{FleetChange{Endpoint: 0, Reclaim: 1}, "scaling endpoint 0: reclaim 1: only 0 are donated"},
		{FleetChange{Endpoint: 1, Donate: 4}, "scaling endpoint 1: donate 4: only 4 are ready, and one must remain"},
		{FleetChange{Endpoint: 1, Donate: -1}, "donate -1"},
		{FleetChange{Endpoint: 0, Redeploy: []DonatedVMs{{1, 1}}}, "redeploy from endpoint 1: not in this region"},
		{FleetChange{Endpoint: 0, Redeploy: []DonatedVMs{{2, 1}}}, "redeploy 1 from endpoint 2: only 0 are donated"},
		{FleetChange{Endpoint: 0, Launch: 1}, "launch 1: only 0"},
	} {
		s := smallFleet(1)
		_, err := RunFleet(context.Background(), &s, FleetSetup{Scaler: script{5 * time.Second: {c.change}}, Deferred: freely, Seed: 1})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "simulating small, seed 1, at 5s: ") {
			t.Errorf("%+v: got %v, want %q", c.change, err, c.want)
		}
	}
}

type failing struct{ err error }

func (f failing) Step(time.Duration, *FleetView) ([]FleetChange, error) { return nil, f.err }

func TestFleetErrors(t *testing.T) {
	s := smallFleet(1)
	boom := errors.New("boom")
	if _, err := RunFleet(context.Background(), &s, FleetSetup{Scaler: failing{boom}, Deferred: freely}); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
	if _, err := RunFleet(context.Background(), &s, FleetSetup{Scaler: still{}}); err == nil || !strings.Contains(err.Error(), "deferred requests") {
		t.Errorf("got %v", err)
	}
	for _, c := range []struct {
		want   string
		change func(*FleetScenario)
	}{
		{"must have models and regions, got 0", func(s *FleetScenario) { s.Models = nil }},
		{"min: must be at least 1, got 0", func(s *FleetScenario) { s.Min = 0 }},
		{"max: must be at least min, 1, got 0", func(s *FleetScenario) { s.Max = 0 }},
		{"spare: must be at least 0, got -1", func(s *FleetScenario) { s.Spare = -1 }},
		{"model bloom-176b: remote in: must be regions 0 to 1, got 2", func(s *FleetScenario) { s.Models[1].RemoteIn = []int{2} }},
		{"must be at least 1 in each pool, got 4, 4 of them in a silo", func(s *FleetScenario) { s.Silo = 4 }},
		{"duration, period and signal period", func(s *FleetScenario) { s.Period = 0 }},
		{"from: must be whole minutes", func(s *FleetScenario) { s.From = time.Second }},
		{"no demand", func(s *FleetScenario) { s.Demand = nil }},
		{"demand: ends at 30m0s, must cover 1h0m0s", func(s *FleetScenario) { s.From = 30 * time.Minute }},
		{"demand: must have 1 models, got 2", func(s *FleetScenario) { s.Models = s.Models[:1] }},
		{"demand: model 0: must have 1 regions, got 2", func(s *FleetScenario) { s.Regions = s.Regions[:1] }},
		{"demand: model 1: region 0: NIW: minute 3: must be from 0 to 1e9", func(s *FleetScenario) { s.Demand.PromptTPS[1][0][2][3] = math.NaN() }},
		{"unknown order", func(s *FleetScenario) { s.Order = "lifo" }},
		{"prompt: maximum: must be below the KV memory", func(s *FleetScenario) { s.Models[0].Lengths.Prompt.Max = 1 << 20 }},
		{"output: must have a median of at least 1", func(s *FleetScenario) { s.Models[0].Lengths.Output.Median = 0 }},
	} {
		s := smallFleet(1)
		c.change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// lastScaling records the last view of the scaler.
type lastScaling struct{ seen []EndpointView }

func (l *lastScaling) Step(_ time.Duration, v *FleetView) ([]FleetChange, error) {
	l.seen = slices.Clone(v.Endpoints)
	return nil, nil
}

// The first tokens reported to the scaler match the result for IW-F once all requests have ended.
func TestFleetCountsLateFirstTokens(t *testing.T) {
	s := smallFleet(7000)
	s.RTT = 0
	s.Demand.Scale(15, 30, 0)
	look := &lastScaling{}
	r, err := RunFleet(context.Background(), &s, FleetSetup{Scaler: look, Deferred: freely, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	for m := range s.Models {
		var first, late int
		for _, e := range look.seen {
			if e.Model == m {
				first, late = first+int(e.FirstTokens), late+int(e.Late)
			}
		}
		fast := r.Tiers[3*m]
		if fast.Completed != fast.Issued || fast.Violations == 0 || first != fast.Completed || late != fast.Violations {
			t.Errorf("%s: %d first tokens reported, %d late; %+v", s.Models[m].Name, first, late, fast)
		}
	}
}

// A region with a memory utilisation below 70 % keeps its requests; a full one sends some to another.
func TestFleetReroutesWhenFull(t *testing.T) {
	reroutes := func(tps float64) int {
		s := smallFleet(tps)
		for t := range tiers {
			clear(s.Demand.PromptTPS[0][1][t])
			clear(s.Demand.PromptTPS[1][0][t])
		}
		r := runFleet(t, s, FleetSetup{Seed: 1})
		if r.Endpoints[1].Tiers[0].Issued != 0 {
			t.Fatalf("a region reports values that were not requested: %+v", r.Endpoints[1])
		}
		return r.Endpoints[0].Tiers[0].Reroutes
	}
	if few, many := reroutes(300), reroutes(8000); few != 0 || many == 0 {
		t.Errorf("%d reroutes at a low load, %d at a high one", few, many)
	}
}

// Deferred requests wait until they are released or urgent; a silo serves them at once.
func TestFleetDeferredQueue(t *testing.T) {
	s := smallFleet(100)
	byAge := core.DeferredRule{MaxParkedShare: 10.0 / (24 * 60)} // after ten minutes
	held := runFleet(t, s, FleetSetup{Seed: 1, Deferred: byAge})
	if p := held.Tiers[2].TTFT; p.P10 < 600e3 || held.Waiting == 0 || held.Tiers[0].TTFT.P90 > 10e3 {
		t.Errorf("held: %+v, %d waiting", p, held.Waiting)
	}
	waiting := int64(0)
	for _, e := range held.Endpoints {
		waiting += e.WaitingTokens
	}
	if mean := float64(waiting) / float64(held.Waiting); mean < 0.5*s.Models[0].Lengths.Prompt.Mean() || mean > 2*s.Models[0].Lengths.Prompt.Mean() {
		t.Errorf("%d requests wait with %d prompt tokens", held.Waiting, waiting)
	}
	s.Silo = 1
	silo := runFleet(t, s, FleetSetup{Seed: 1})
	if silo.Waiting != 0 || silo.Tiers[2].TTFT.P50 > 10e3 || len(silo.Endpoints) != 8 || silo.Endpoints[1].Hours[VMReady] != 0.5 {
		t.Errorf("silo: %+v, %d waiting", silo.Tiers[2].TTFT, silo.Waiting)
	}
}

// In overload, pf serves IW-F before IW-N, and fcfs treats them alike.
func TestFleetOrders(t *testing.T) {
	medians := func(o core.QueueOrder) (fast, normal float64) {
		s := smallFleet(6000)
		s.Order = o
		r := runFleet(t, s, FleetSetup{Seed: 1})
		return r.Tiers[0].TTFT.P50, r.Tiers[1].TTFT.P50
	}
	if fast, normal := medians(core.OrderFCFS); math.Abs(fast/normal-1) > 0.2 {
		t.Errorf("fcfs: %g and %g ms", fast, normal)
	}
	if fast, normal := medians(core.OrderPF); fast > normal/2 {
		t.Errorf("pf: %g and %g ms", fast, normal)
	}
}

func TestFleetStopsOnCancel(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	s := smallFleet(3000)
	if _, err := RunFleet(ctx, &s, FleetSetup{Scaler: still{}, Deferred: freely}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// Arrivals have the demand's mean in tokens, and are in order of time.
func TestArrivalsMatchDemand(t *testing.T) {
	s := smallFleet(2000)
	a := newArrivalSource(&s, 1)
	tokens, last := 0.0, time.Duration(0)
	for q := a.nextArrival(s.Duration); q != nil; q = a.nextArrival(s.Duration) {
		if q.at < last || q.prompt < 1 || q.output < 1 {
			t.Fatalf("%+v after %s", *q, last)
		}
		last = q.at
		tokens += float64(q.prompt)
		a.head++
	}
	if want := 2000.0 * 12 * 1800; math.Abs(tokens/want-1) > 0.02 {
		t.Errorf("%g tokens, want about %g", tokens, want)
	}
}

func TestSageWeek(t *testing.T) {
	d := SageWeek(1, 4, 1, 1)
	day := func(n int) (sum float64) {
		for i := n * 1440; i < (n+1)*1440; i++ {
			for r := range 3 {
				sum += d.Interactive(0, r, i)
			}
		}
		return sum
	}
	if weekday, weekend := day(3), day(5); weekend > weekday/2 || weekday < 1e9 {
		t.Errorf("%g tokens on Thursday, %g on Saturday", weekday, weekend)
	}
	twice := SageWeek(1, 4, 2, 3)
	if a, b := d.PromptTPS[2][1][0][77], twice.PromptTPS[2][1][0][77]; math.Abs(b/a-2) > 1e-9 {
		t.Errorf("twice %g is %g", a, b)
	}
	if a, b := d.PromptTPS[2][1][2][77], twice.PromptTPS[2][1][2][77]; math.Abs(b/a-6) > 1e-9 {
		t.Errorf("six times %g is %g", a, b)
	}
	before := d.PromptTPS[0][0][0][10]
	d.Scale(10, 11, 8)
	if after := d.PromptTPS[0][0][0][10]; after != 8*before || d.Minutes() != weekMinutes {
		t.Errorf("%g times 8 is %g", before, after)
	}
}

// A replica's capacity grows with the allowed utilisation, and the measurement is reproducible.
func TestReplicaTPS(t *testing.T) {
	testkit.Slow(t)
	s := SageFleet()
	s.Models = append(s.Models, Scout())
	for i := range s.Models {
		m := &s.Models[i]
		var last float64
		for _, share := range []float64{0.1, 0.3, 0.65} {
			tps, err := s.ReplicaTPS(m, share, 1)
			again, _ := s.ReplicaTPS(m, share, 1)
			if err != nil || tps < last || tps != again || tps <= 0 {
				t.Errorf("%s at %g: %g tokens per second after %g, %v", m.Name, share, tps, last, err)
			}
			last = tps
		}
	}
}
