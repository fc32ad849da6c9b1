package main

import (
	"testing"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// Status recommends another up at once only for what the controller does not repair.
func TestStatusNamesWhoRepairsDrift(t *testing.T) {
	ended := deploy.StatusChange{Action: provision.ActionLaunch, Kind: provision.KindReplica}
	balancer := deploy.StatusChange{Action: provision.ActionLaunch, Kind: provision.KindBalancer}
	firewall := deploy.StatusChange{Action: provision.ActionRepair, Kind: provision.KindFirewall}
	runs := &deploy.ControllerStatus{State: service.StateReady}
	lost := &deploy.ControllerStatus{State: service.StateNotReady}
	standbys := func(one, two service.ReplicaState) []deploy.MachineStatus {
		return []deploy.MachineStatus{{ID: "lb-us-1", State: one}, {ID: "lb-us-2", State: two}}
	}
	const byController, byUp = "the controller repairs it; if it stays", "repair it with"
	for name, c := range map[string]struct {
		region     service.Region
		controller *deploy.ControllerStatus
		drift      []deploy.StatusChange
		want       string
		balancers  []deploy.MachineStatus // beside the leader
	}{
		"local processes":       {"local/us", runs, []deploy.StatusChange{ended, balancer}, byController, nil},
		"no controller":         {"local/us", nil, []deploy.StatusChange{ended}, byUp, nil},
		"controller is down":    {"local/us", &deploy.ControllerStatus{State: service.StateUnreachable}, []deploy.StatusChange{ended}, byUp, nil},
		"replica in a cloud":    {"aws/us-east-1", runs, []deploy.StatusChange{ended}, byController, nil},
		"balancer in a cloud":   {"aws/us-east-1", runs, []deploy.StatusChange{balancer}, byUp, nil},
		"replica and firewall":  {"aws/us-east-1", runs, []deploy.StatusChange{ended, firewall}, byUp, nil},
		"another configuration": {"local/us", runs, []deploy.StatusChange{{Action: provision.ActionReload, Kind: provision.KindBalancer}}, byUp, nil},
		"another leader comes":  {"local/us", lost, []deploy.StatusChange{balancer}, "the next leader repairs it; if it stays", standbys("READY", "READY")},
		"no majority":           {"local/us", lost, []deploy.StatusChange{balancer}, byUp, standbys("READY", "UNREACHABLE")},
	} {
		v := &serviceView{spec: &service.Spec{Regions: []service.RegionSpec{{Name: c.region}}}}
		s := &deploy.ServiceStatus{Controller: c.controller, Drift: c.drift, Regions: []deploy.RegionStatus{{Balancers: c.balancers}}}
		s.Leadership = &telemetry.ControllerState{Leader: "lb-us-0", Standbys: []string{"lb-us-1", "lb-us-2"}}
		if got := v.repairOf(s); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A store without a report says what is missing.
func TestStartingStoreIsExplained(t *testing.T) {
	for state, want := range map[string]string{"replicated": "replicated", "starting": "starting (no controller has reported its state yet)"} {
		if got := storeText(state); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
