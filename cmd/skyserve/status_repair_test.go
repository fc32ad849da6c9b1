package main

import (
	"testing"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
)

// Status recommends another up at once only for what the controller does not repair.
func TestStatusNamesWhoRepairsDrift(t *testing.T) {
	ended := deploy.StatusChange{Action: provision.ActionLaunch, Kind: provision.KindReplica}
	balancer := deploy.StatusChange{Action: provision.ActionLaunch, Kind: provision.KindBalancer}
	firewall := deploy.StatusChange{Action: provision.ActionRepair, Kind: provision.KindFirewall}
	runs := &deploy.ControllerStatus{State: service.StateReady}
	const byController, byUp = "the controller repairs it; if it stays", "repair it with"
	for name, c := range map[string]struct {
		region     service.Region
		controller *deploy.ControllerStatus
		drift      []deploy.StatusChange
		want       string
	}{
		"local processes":       {"local/us", runs, []deploy.StatusChange{ended, balancer}, byController},
		"no controller":         {"local/us", nil, []deploy.StatusChange{ended}, byUp},
		"controller is down":    {"local/us", &deploy.ControllerStatus{State: service.StateUnreachable}, []deploy.StatusChange{ended}, byUp},
		"replica in a cloud":    {"aws/us-east-1", runs, []deploy.StatusChange{ended}, byController},
		"balancer in a cloud":   {"aws/us-east-1", runs, []deploy.StatusChange{balancer}, byUp},
		"replica and firewall":  {"aws/us-east-1", runs, []deploy.StatusChange{ended, firewall}, byUp},
		"another configuration": {"local/us", runs, []deploy.StatusChange{{Action: provision.ActionReload, Kind: provision.KindBalancer}}, byUp},
	} {
		v := &serviceView{spec: &service.Spec{Regions: []service.RegionSpec{{Name: c.region}}}}
		if got := v.repairOf(&deploy.ServiceStatus{Controller: c.controller, Drift: c.drift}); got != c.want {
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
