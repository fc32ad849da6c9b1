package sim

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// balancedFleet is a model in a region behind the production balancer, with all tiers.
func balancedFleet(tps float64) FleetScenario {
	s := smallFleet(tps)
	s.Models, s.Regions, s.Duration, s.ReclaimDraining = s.Models[:1], s.Regions[:1], 8*time.Minute, true
	s.Demand.PromptTPS = s.Demand.PromptTPS[:1]
	s.Demand.PromptTPS[0] = s.Demand.PromptTPS[0][:1]
	s.Balancer = func() core.Config { return core.DefaultConfig(policy.NewCost()) }
	return s
}

// While VMs are donated and reclaimed, also before they have drained, no request behind a balancer is lost: the
// simulator's counts are those of the balancer.
func TestFleetBehindBalancerLosesNoRequest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := balancedFleet(rapid.SampledFrom([]float64{200, 2000, 8000}).Draw(rt, "load"))
		s.Duration = 2 * time.Minute
		s.Balancer = func() core.Config {
			c := core.DefaultConfig(policy.NewCost())
			c.MaxWait = 20 * time.Second
			return c
		}
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		draws := rapid.SliceOfN(rapid.IntRange(0, 1000), 5, 60).Draw(rt, "draws")
		f, err := newFleet(&s, FleetSetup{Scaler: &restless{draws: draws}, Deferred: freely, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		for f.stepEvent() {
		}
		if f.failed != nil {
			rt.Fatal(f.failed)
		}
		r, c := f.fleetResult(), f.balancer.core.Snapshot(f.now).Counts
		if r.Issued != r.Completed+r.Waiting+r.InFlight+r.Rejected || r.Completed == 0 {
			rt.Fatalf("%d requests: %d completed, %d waiting, %d in flight, %d rejected", r.Issued, r.Completed, r.Waiting, r.InFlight, r.Rejected)
		}
		want := core.Counts{Arrived: int64(r.Issued), Finished: int64(r.Completed), Rejected: int64(r.Rejected), Queued: r.Waiting, Outstanding: r.InFlight}
		if got := (core.Counts{Arrived: c.Arrived, Finished: c.Finished, Rejected: c.Rejected, Queued: c.Queued, Outstanding: c.Outstanding}); got != want {
			rt.Fatalf("the balancer counts %+v, want %+v", got, want)
		}
		if n := f.endpoints[0].waiting; n < 0 {
			rt.Fatalf("%d requests wait for their first token", n)
		}
	})
}

// A replica that drains can be reclaimed, and serves after the time to reclaim it.
func TestFleetReclaimsDrainingReplica(t *testing.T) {
	s := balancedFleet(4000)
	s.Starts.Reclaim, s.Starts.ReclaimSigma, s.Starts.ReclaimMax = time.Second, 0, time.Second
	changes := script{time.Minute: {{Donate: 1}}, time.Minute + 5*time.Second: {{Reclaim: 1}}}
	var states []VMState
	var at []time.Duration
	runFleet(t, s, FleetSetup{Seed: 1, Scaler: changes, OnVMChange: func(c VMChange) {
		if c.At > 0 {
			states, at = append(states, c.State), append(at, c.At)
		}
	}})
	if want := []VMState{VMDraining, VMStarting, VMReady}; !reflect.DeepEqual(states, want) || at[2] != time.Minute+6*time.Second {
		t.Errorf("got %v at %v, want %v", states, at, want)
	}
}

// Every probe reports all tokens that an engine has generated, also the engine of a VM that served another model.
func TestFleetReportsProgressAfterRedeployment(t *testing.T) {
	s := balancedFleet(4000)
	two := smallFleet(4000)
	s.Models, s.Demand = two.Models, two.Demand
	for m := range s.Models {
		s.Demand.PromptTPS[m] = s.Demand.PromptTPS[m][:1]
	}
	s.Starts.Redeploy, s.Starts.Fetch = time.Second, time.Second
	changes := script{5 * time.Minute: {{Donate: 1}}, 7 * time.Minute: {{Endpoint: 1, Redeploy: []DonatedVMs{{0, 1}}}}}
	f, err := newFleet(&s, FleetSetup{Seed: 1, Scaler: changes, Deferred: freely})
	if err != nil {
		t.Fatal(err)
	}
	for f.stepEvent() {
	}
	if f.failed != nil || f.endpoints[1].redeployed != 1 {
		t.Fatalf("%d redeployed, %v", f.endpoints[1].redeployed, f.failed)
	}
	f.probeReplicas()
	for _, v := range f.vms {
		if tokens := v.engine.Load().GeneratedTokens; tokens != v.reported || tokens == 0 {
			t.Errorf("%s: %d tokens reported, %d generated", v.id, v.reported, tokens)
		}
	}
}

// Requests that are given are those of the demand that they were drawn from.
func TestFleetRunsGivenRequests(t *testing.T) {
	s := balancedFleet(2000)
	drawn := runFleet(t, s, FleetSetup{Seed: 5})
	demand := s
	source := newArrivalSource(&demand, 5)
	for q := source.nextArrival(s.Duration); q != nil; q = source.nextArrival(s.Duration) {
		s.Requests = append(s.Requests, FleetRequest{At: q.at, Model: int(q.model), Region: int(q.region), Tier: tierOrder[q.tier], Prompt: int(q.prompt), Output: int(q.output)})
		source.head++
	}
	given := runFleet(t, s, FleetSetup{Seed: 6})
	a, _ := json.Marshal(drawn)
	b, _ := json.Marshal(given)
	if string(a) != string(b) {
		t.Error("the result differs from that of the demand")
	}
	s.Requests = []FleetRequest{{At: time.Second, Tier: service.TierFast, Prompt: 10, Output: 1}}
	if r := runFleet(t, s, FleetSetup{Seed: 6}); r.Issued != 1 || r.Completed != 1 {
		t.Errorf("%d issued, %d completed, want 1", r.Issued, r.Completed)
	}
}

// recorder records what a scaler sees.
type recorder struct {
	at    []time.Duration
	views []EndpointView
}

func (r *recorder) Step(now time.Duration, v *FleetView) ([]FleetChange, error) {
	r.at, r.views = append(r.at, now), append(r.views, v.Endpoints[0])
	return nil, nil
}

// The counts at the ends of minutes do not depend on when the scaler is called.
func TestFleetCountsMinutes(t *testing.T) {
	s := balancedFleet(2000)
	minutes := func(period time.Duration) []MinuteTokens {
		s.Period = period
		r := &recorder{}
		runFleet(t, s, FleetSetup{Seed: 1, Scaler: r})
		for i, at := range r.at {
			if n := len(r.views[i].Minutes); n != int(at/time.Minute) {
				t.Errorf("at %s: %d minutes", at, n)
			} else if at%time.Minute == 0 && n > 0 && r.views[i].Minutes[n-1].Interactive != r.views[i].Interactive {
				t.Errorf("at %s: %+v", at, r.views[i])
			}
		}
		return r.views[len(r.views)-1].Minutes
	}
	if a, b := minutes(5*time.Second), minutes(7*time.Second); len(a) != 7 || !reflect.DeepEqual(a, b) {
		t.Errorf("got %v and %v", a, b)
	}
}
