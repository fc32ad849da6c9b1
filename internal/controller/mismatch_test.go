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

// kinds is what replicas run on, sorted.
func (y *fakeYard) kinds() string {
	y.mu.Lock()
	defer y.mu.Unlock()
	var all []string
	for _, r := range y.replicas {
		if r.Donation == nil {
			all = append(all, r.On.GPU)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// stand lets so many replicas run, of which there is one.
func (w *scalerWorld) stand(n int) {
	w.yard.set(func() {
		for range n - 1 {
			w.yard.start("m", "aws/us-east-1")
		}
	})
}

// wants lets a plan be in force for an hour.
func (w *scalerWorld) wants(on ...telemetry.TargetReplicas) {
	target := telemetry.Target{Model: "m", Region: "aws/us-east-1", Replicas: on, ReplicaTPS: 1000, PeakTPS: 1000}
	for _, c := range on {
		target.Count += c.Count
	}
	now := time.Now()
	w.scaler.force.set(telemetry.Review{Strategy: "lt-i", From: now, Until: now.Add(time.Hour), Targets: []telemetry.Target{target}})
}

// What a plan wants replicas to run on is what they come to run on.
func TestReplicasComeToRunOnWhatThePlanWants(t *testing.T) {
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
					serve, _ := w.yard.counts("m", "aws/us-east-1")
					if kinds := w.yard.kinds(); serve < least && strings.Count(kinds, "H100") < strings.Count(tt.after, "H100") {
						t.Fatalf("%q serve before what takes their place does", kinds)
					}
				}
				if got := w.yard.kinds(); got != tt.after {
					t.Errorf("got %q, want %q", got, tt.after)
				}
			})
		})
	}
}

// Where a region has no such machine what serves goes on, and it is told once.
func TestReplicasStayWhereThePlansGPUCannotBeHad(t *testing.T) {
	testScaler(t, mixedService, func(w *scalerWorld) {
		w.stand(3)
		h100 := provision.Class{GPU: "H100", GPUs: 1, Capacity: service.CapacityOnDemand}
		w.yard.set(func() { w.yard.lacks = h100 })
		w.wants(telemetry.TargetReplicas{GPU: "H100", GPUs: 1, Capacity: service.CapacityOnDemand, Count: 2})
		w.pass(5*time.Minute, 0.5)
		if got := w.yard.kinds(); got != "L4 L4 L4" {
			t.Errorf("got %q", got)
		}
		var failures int
		for _, e := range w.published().Events {
			if e.Action == telemetry.ScalingFailed {
				failures++
			}
		}
		if failures != 1 {
			t.Errorf("it was told %d times: %+v", failures, w.published().Events)
		}
	})
}
