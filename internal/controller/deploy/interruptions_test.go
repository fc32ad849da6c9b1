package deploy

import (
	"testing"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/provision"
)

// The zone of an interrupted spot machine has a penalty, however often the reconciler observes it.
// Maintenance, other machines and interruptions of on-demand machines have none.
func TestInterruptionsCountAgainstZone(t *testing.T) {
	now := time.Now()
	f := Deployer{Now: func() time.Time { return now }}
	in := func(zone string, capacity service.CapacityType) *provision.Offering {
		return &provision.Offering{Type: "g6.xlarge", Region: "aws/us-east-1", Zone: zone, Capacity: capacity}
	}
	have := []provision.Object{
		{ID: "spot", Handle: "i-1", Kind: provision.KindReplica, Offering: in("a", service.CapacitySpot)},
		{ID: "maintained", Handle: "i-2", Kind: provision.KindReplica, Offering: in("b", service.CapacitySpot)},
		{ID: "ready", Handle: "i-3", Kind: provision.KindReplica, Offering: in("c", service.CapacitySpot)},
		{ID: "on-demand", Handle: "i-4", Kind: provision.KindReplica, Offering: in("d", service.CapacityOnDemand)},
	}
	soon := agent.Status{Phase: agent.PhaseInterrupted, InterruptionAt: now.Add(2 * time.Minute)}
	seen := map[string]AgentReport{
		"spot": {Status: soon}, "on-demand": {Status: soon}, "ready": {Status: agent.Status{Phase: agent.PhaseReady}},
		"maintained": {Status: agent.Status{Phase: agent.PhaseInterrupted, InterruptionAt: now.AddDate(100, 0, 0)}},
	}
	for range 3 {
		f.recordInterruptions(have, seen)
	}
	for zone, want := range map[string]float64{"a": 1, "b": 0, "c": 0, "d": 0} {
		if got := f.spotHistory().RecentEvents(*in(zone, service.CapacitySpot), now); got != want {
			t.Errorf("zone %s: %g, want %g", zone, got, want)
		}
	}
}
