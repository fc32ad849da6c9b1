package controller

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/sim"
	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/eval"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/plan"
)

// fleetController scales a simulated fleet of one model in one region with the controller's scaler: it reports the
// fleet as balancers do, and applies the changes as a deployer does.
type fleetController struct {
	*scaler
	spec    *service.Spec
	start   time.Time
	now     time.Duration
	view    *sim.EndpointView
	changes []sim.FleetChange
}

// replicas returns the recorded replicas of the fleet, and the reports of those that balancers know.
func (c *fleetController) replicas() (recorded []CurrentReplica, reported []telemetry.ReplicaSnapshot) {
	v := c.view
	for _, kind := range []struct {
		n       int
		state   service.ReplicaState
		donated bool
	}{{v.Ready, service.StateReady, false}, {v.Starting, service.StateStarting, false}, {v.Draining, service.StateDraining, true}, {v.Donated - v.Draining, "", true}} {
		for range kind.n {
			r := CurrentReplica{ID: fmt.Sprintf("us-%d", len(recorded)), Model: "m", Region: "local/us", GPU: "L4"}
			if kind.donated {
				r.Donation = &service.Donation{Since: c.start.Add(c.now)}
			}
			recorded = append(recorded, r)
			if kind.state == "" {
				continue
			}
			report := telemetry.ReplicaSnapshot{ID: r.ID, Model: "m", State: kind.state}
			if kind.state != service.StateStarting { // it has not responded to a probe
				report.KV, report.AgeMillis = new(v.Utilisation), new(int64(100))
			}
			reported = append(reported, report)
		}
	}
	return recorded, reported
}

func (c *fleetController) Current() (CurrentState, error) {
	recorded, _ := c.replicas()
	return CurrentState{Spec: c.spec, Replicas: recorded}, nil
}

func (c *fleetController) Apply(_ context.Context, o CapacityChange, checkLeadership func() error) ([]string, error) {
	change := sim.FleetChange{Reclaim: len(o.Reclaim), Donate: len(o.Drain)}
	for _, l := range o.Launch {
		change.Launch += l.Count
	}
	if len(o.Remove)+len(o.Replace) > 0 {
		return nil, fmt.Errorf("unexpected change %+v", o)
	}
	c.changes = append(c.changes, change)
	return slices.Repeat([]string{"us-new"}, change.Launch), checkLeadership()
}

// Step implements sim.Scaler.
func (c *fleetController) Step(now time.Duration, v *sim.FleetView) ([]sim.FleetChange, error) {
	c.now, c.view, c.changes = now, &v.Endpoints[0], nil
	_, reported := c.replicas()
	o := observation{Observed: &Observed{Spec: c.spec, Snapshot: &telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{{Name: "local/us", Replicas: reported}}}}}
	err := c.stepScaler(context.Background(), &fakeLease{}, c.start.Add(now), o)
	return c.changes, err
}

// The controller makes the simulator's changes at the same times, while replicas start, drain, are donated and
// reclaimed: both give the strategy the same input.
func TestControllerScalesAsSimulator(t *testing.T) {
	testkit.NotUnderRace(t, "simulates and scales in one goroutine")
	profile, err := engine.FindProfile("l4-llama3.1-8b")
	if err != nil {
		t.Fatal(err)
	}
	spec, err := service.Parse("service.yaml", []byte(reactiveService))
	if err != nil {
		t.Fatal(err)
	}
	spec.Regions[0].Replicas.Max = 8
	for seed := range uint64(5) {
		s := sim.SageFleet()
		s.Name, s.Regions, s.VMs, s.Min, s.Max, s.Spare, s.ReclaimDraining = "scaled", []string{"us"}, 1, 1, 8, 7, true
		s.Starts = sim.StartTimes{Reclaim: 8 * time.Second, ReclaimMax: 8 * time.Second, Launch: 40 * time.Second}
		s.Models = []sim.FleetModel{{Name: "m", Profile: profile, GPUs: 1, Lengths: sim.Lengths{
			Prompt: sim.LogNormal{Median: 400, Sigma: 0.5, Max: 1500}, Output: sim.LogNormal{Median: 200, Sigma: 0.5, Max: 600},
		}}}
		s.Duration, s.SampleInterval = 40*time.Minute, 0
		s.Balancer = func() core.Config { return core.DefaultConfig(policy.NewCost()) }
		s.Demand = sim.NewDemand(1, 1, 40)
		random := rand.New(rand.NewPCG(seed, 1))
		for minute := range s.Demand.PromptTPS[0][0][0] {
			s.Demand.PromptTPS[0][0][0][minute] = 3000 * random.Float64()
		}
		run := func(scaler sim.Scaler) (log []sim.VMChange) {
			setup := sim.FleetSetup{Scaler: scaler, Deferred: core.DefaultDeferred(), Seed: seed, OnVMChange: func(c sim.VMChange) { log = append(log, c) }}
			if _, err := sim.RunFleet(t.Context(), &s, setup); err != nil {
				t.Fatal(err)
			}
			return log
		}
		simulated, err := eval.NewFleetScaler(&s, "reactive", plan.StrategyOptions{})
		if err != nil {
			t.Fatal(err)
		}
		controlled := &fleetController{spec: spec, start: time.Unix(1e9, 0)}
		controlled.scaler = newScaler(service.ControllerConfig{Service: "chat"}, &fakeState{}, controlled, new(reviewInForce), slog.New(slog.DiscardHandler))
		controlled.startTerm()
		controlled.termStart = controlled.start
		got, want := run(controlled), run(simulated)
		reclaimedDraining, last := 0, map[int]sim.VMState{}
		for _, c := range want {
			if last[c.VM] == sim.VMDraining && c.State == sim.VMStarting {
				reclaimedDraining++
			}
			last[c.VM] = c.State
		}
		if !slices.Equal(got, want) {
			i := 0
			for i < min(len(got), len(want)) && got[i] == want[i] {
				i++
			}
			t.Errorf("seed %d: change %d is %v, want %v", seed, i, got[i:min(i+1, len(got))], want[i:min(i+1, len(want))])
		}
		t.Logf("seed %d: %d changes of VMs, %d replicas reclaimed while they drain", seed, len(want), reclaimedDraining)
		if len(want) < 50 {
			t.Errorf("seed %d: only %d changes of VMs", seed, len(want))
		}
	}
}
