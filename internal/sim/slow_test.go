package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/workload"
	"skyserve/internal/telemetry"
	"skyserve/lbd/health"
)

// slowAlerts simulates a scenario with one region, and calls found for each replica that has the alert `slow`, at
// most once a second: with the replicas' GPUs, and without them, as on an operator's own machines.
func slowAlerts(t *testing.T, s *Scenario, setup Setup, found func(at time.Duration, replica, message string, known bool)) {
	t.Helper()
	w, err := newWorld(s, setup)
	if err != nil {
		t.Fatal(err)
	}
	var withGPUs, without health.Watch
	observeAt := time.Second
	for w.violation == nil && w.failed == nil {
		next := w.queue.peek()
		if next == nil || next.at >= s.Duration {
			break
		}
		for ; observeAt <= next.at; observeAt += time.Second {
			o := health.Observation{At: time.Unix(0, 0).Add(observeAt), Service: "chat", Balancer: "lb", Own: telemetry.RegionSnapshot{Name: "us"}}
			for _, v := range w.nodes[0].core.Snapshot(observeAt).Replicas {
				r := telemetry.ReplicaSnapshot{ID: v.ID, Model: v.Model, GPU: w.replicaNamed(v.ID).engine.Profile().Name, State: service.StateReady}
				if v.Pace > 0 {
					r.Pace = &v.Pace
				}
				o.Own.Replicas = append(o.Own.Replicas, r)
			}
			observe := func(watch *health.Watch, known bool) {
				watch.Observe(o)
				for _, a := range watch.Alerts() {
					if a.Kind == telemetry.AlertSlow {
						found(observeAt, a.Object, a.Message, known)
					}
				}
			}
			observe(&withGPUs, true)
			for i := range o.Own.Replicas {
				o.Own.Replicas[i].GPU = ""
			}
			observe(&without, false)
		}
		w.stepEvent()
	}
	if w.violation != nil || w.failed != nil {
		t.Fatal(w.violation, w.failed)
	}
}

// busyRegion is a region whose replicas have GPUs of several kinds, two of each, with random load.
func busyRegion(seed uint64, duration time.Duration) *Scenario {
	random := rand.New(rand.NewPCG(seed, 0x736c6f77))
	kinds := []workload.Kind{workload.Arena, workload.ToT15, workload.WildChat, workload.Completion}
	s := common
	s.Name, s.Duration, s.Warmup, s.Workload = fmt.Sprintf("slow-%d", seed), duration, 0, kinds[random.IntN(len(kinds))]
	profiles := engine.Profiles()
	first, second := profiles[random.IntN(len(profiles))], profiles[random.IntN(len(profiles))]
	s.Regions = []Region{{Name: "us", Replicas: 4, Clients: 1 + random.IntN(120), Profiles: []engine.Profile{first, second, first, second}}}
	s.Think = time.Duration(random.IntN(10)) * time.Second
	s.Surges = nil
	return &s
}

// Replicas without a fault are never called slow, whatever their GPUs, their batches and their prompts.
func TestHealthyReplicasAreNotSlow(t *testing.T) {
	for seed := range uint64(20) {
		s := busyRegion(seed, 3*time.Minute)
		for _, policy := range []string{"cost", "least-load"} {
			slowAlerts(t, s, Setup{Policy: policy, Push: push(t, "pending"), Layout: Regional, Seed: seed}, func(at time.Duration, replica, message string, known bool) {
				t.Errorf("seed %d, %s, GPUs known: %v, %s, %d clients, %v: %s %s", seed, policy, known, s.Workload, s.Regions[0].Clients, at, replica, message)
			})
		}
	}
}

// A replica that becomes four times slower is called slow within 4 s, which leaves a second for the screen, or 6 s
// if it serves a large model, and soon after its recovery no longer.
func TestSlowReplicaIsNamedInTime(t *testing.T) {
	const from, to = 60 * time.Second, 90 * time.Second
	for _, profile := range engine.Profiles() {
		within := 4 * time.Second
		if !strings.Contains(profile.Name, "llama3.1-8b") { // whose prompts pause the streams for longer
			within = 6 * time.Second
		}
		for seed := range uint64(3) {
			s := common
			s.Name, s.Duration, s.Warmup, s.Workload = "slow", 2*time.Minute, 0, workload.Arena
			s.Regions = []Region{{Name: "us", Replicas: 2, Clients: 16, Profiles: []engine.Profile{profile}}}
			s.Faults = []Fault{{Kind: ReplicaSlow, Replica: "us-01", Factor: 4, From: from, To: to}}
			first, last := map[bool]time.Duration{}, map[bool]time.Duration{}
			slowAlerts(t, &s, Setup{Policy: "cost", Push: push(t, "pending"), Layout: Regional, Seed: seed}, func(at time.Duration, replica, message string, known bool) {
				if replica != "us-01" || at < from || !strings.Contains(message, "times slower") {
					t.Errorf("%s, %v: %s %s", profile.Name, at, replica, message)
				}
				if first[known] == 0 {
					first[known] = at
				}
				last[known] = at
			})
			for _, known := range []bool{true, false} {
				if first[known] == 0 || first[known] > from+within || last[known] > to+10*time.Second {
					t.Errorf("%s, seed %d, GPUs known: %v: slow from %v to %v, named from %v to %v", profile.Name, seed, known, from, to, first[known], last[known])
				}
			}
		}
	}
}
