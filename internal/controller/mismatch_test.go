package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

const mixedService = `name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models: [{name: m, engine: {kind: sim}, gpus: [{type: L4, tps: 1000}, {type: H100, tps: 4000}]}]
regions: [{name: aws/us-east-1, replicas: {min: 1, max: 6}}]
autoscale: {strategy: lt-i}
`

// kinds returns the sorted classes of the replicas.
func (y *fakeActuator) kinds() string {
	y.mu.Lock()
	defer y.mu.Unlock()
	var all []string
	for _, r := range y.replicas {
		if r.Donation == nil {
			all = append(all, r.Class.GPU)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// stand sets the number of running replicas; initially there is one.
func (w *scalerWorld) stand(n int) {
	w.actuator.set(func() {
		for range n - 1 {
			w.actuator.start("m", "aws/us-east-1")
		}
	})
}

// wants sets the plan in force for an hour.
func (w *scalerWorld) wants(on ...telemetry.TargetReplicas) {
	target := telemetry.PlannedCapacity{Model: "m", Region: "aws/us-east-1", Replicas: on, ReplicaTPS: 1000, PeakTPS: 1000}
	for _, c := range on {
		target.Count += c.Count
	}
	now := time.Now()
	w.scaler.review.set(telemetry.Review{Strategy: "lt-i", From: now, Until: now.Add(time.Hour), Targets: []telemetry.PlannedCapacity{target}})
}

// Replicas end up in the replica classes of the plan.
func TestReplicasConvergeToPlannedClasses(t *testing.T) {
	count := func(gpu string, n int) telemetry.TargetReplicas {
		return telemetry.TargetReplicas{GPU: gpu, GPUs: 1, Capacity: service.CapacityOnDemand, Count: n}
	}
	for _, tt := range []struct {
		name   string
		before int // on L4
		on     []telemetry.TargetReplicas
		after  string
	}{
		{"more of another GPU", 1, []telemetry.TargetReplicas{count("L4", 1), count("H100", 2)}, "H100 H100 L4"},
		{"others in their place", 2, []telemetry.TargetReplicas{count("H100", 2)}, "H100 H100"},
		{"fewer of another GPU", 4, []telemetry.TargetReplicas{count("H100", 2)}, "H100 H100"},
		{"the same", 2, []telemetry.TargetReplicas{count("L4", 2)}, "L4 L4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testScaler(t, mixedService, func(w *scalerWorld) {
				w.stand(tt.before)
				w.wants(tt.on...)
				least := tt.before
				for range 24 {
					w.pass(5*time.Second, 0.5)
					serve, _ := w.actuator.counts("m", "aws/us-east-1")
					if kinds := w.actuator.kinds(); serve < least && strings.Count(kinds, "H100") < strings.Count(tt.after, "H100") {
						t.Fatalf("%q: a replica was removed before its replacement was ready", kinds)
					}
				}
				if got := w.actuator.kinds(); got != tt.after {
					t.Errorf("got %q, want %q", got, tt.after)
				}
			})
		})
	}
}

// Where the planned class is unavailable, existing replicas keep serving, with a single failure
// event.
func TestReplicasStayWithoutPlannedGPU(t *testing.T) {
	testScaler(t, mixedService, func(w *scalerWorld) {
		w.stand(3)
		h100 := provision.ReplicaClass{GPU: "H100", GPUs: 1, Capacity: service.CapacityOnDemand}
		w.actuator.set(func() { w.actuator.lacks = h100 })
		w.wants(telemetry.TargetReplicas{GPU: "H100", GPUs: 1, Capacity: service.CapacityOnDemand, Count: 2})
		w.pass(5*time.Minute, 0.5)
		if got := w.actuator.kinds(); got != "L4 L4 L4" {
			t.Errorf("got %q", got)
		}
		var failures int
		for _, e := range w.published().Events {
			if e.Kind == telemetry.EventFailure {
				failures++
			}
		}
		if failures != 1 {
			t.Errorf("%d failure events: %+v", failures, w.published().Events)
		}
	})
}

// A reactive strategy also removes replicas where the plan has more of their class: no replica serves in place of another.
func TestReactiveRemovesBelowThePlan(t *testing.T) {
	testScaler(t, strings.Replace(mixedService, "lt-i", "reactive", 1), func(w *scalerWorld) {
		w.stand(3)
		w.wants(telemetry.TargetReplicas{GPU: "L4", GPUs: 1, Capacity: service.CapacityOnDemand, Count: 5})
		w.pass(2*time.Minute, 0.1)
		if got := w.actuator.kinds(); got != "L4" {
			t.Errorf("got %q, want one L4", got)
		}
	})
}
