package deploy

import (
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// A peer's report may be of before a drain or a donation: the replica's own balancer no longer reports it.
func TestPeersReportHidesNoDecision(t *testing.T) {
	const id = "us-1"
	reports := map[string]reported{}
	addReports(reports, provision.Object{ID: "lb-eu-0", Region: "local/eu"}, &telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{
		{Name: "local/us", Replicas: []telemetry.ReplicaSnapshot{{ID: id, State: service.StateReady, Origin: "controller"}}},
	}})
	for want, decided := range map[service.ReplicaState]ReplicaDecisions{
		service.StateReady: {}, service.StateDraining: ReplicaDecisions{}.WithDrained(id, true),
		service.StateDonated: ReplicaDecisions{}.WithDonated(id, service.Donation{Since: time.Now()}),
	} {
		i := &Inspector{Deployer: &Deployer{Spec: &service.Spec{}}, Decisions: decided}
		r := MachineStatus{ID: id, State: service.StateReady}
		i.addReplicaReport(&r, reports)
		if r.State != want {
			t.Errorf("got %s, want %s", r.State, want)
		}
	}
}

// `status` shows a replica that no balancer has as the dashboard does, as after an undrain while its balancer is dead.
// A state that the controller read from its machine does not count: `status` has read it since.
func TestUnattachedReplicaIsNotReady(t *testing.T) {
	const id, reason = "us-1", "no balancer has it at the moment"
	for machine, want := range map[service.ReplicaState]service.StateReason{
		service.StateReady: {State: service.StateNotReady, Reason: reason}, service.StateStarting: {State: service.StateStarting},
	} {
		reports := map[string]reported{}
		s := &telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{
			{Name: "local/us", Replicas: []telemetry.ReplicaSnapshot{{ID: id, State: service.StateNotReady, Reason: reason, Unattached: true}}},
		}}
		addReports(reports, provision.Object{ID: "lb-eu-0", Region: "local/eu"}, s)
		i, r := &Inspector{Deployer: &Deployer{Spec: &service.Spec{}}}, MachineStatus{ID: id, State: machine}
		i.addReplicaReport(&r, reports)
		if got := (service.StateReason{State: r.State, Reason: r.Reason}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}
