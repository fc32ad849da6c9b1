package main

import (
	"testing"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/plan"
)

func TestGuards(t *testing.T) {
	of := func(id, model string, state service.ReplicaState) listedReplica {
		return listedReplica{"local/us", deploy.MachineStatus{ID: id, Model: model, State: state}}
	}
	all := []listedReplica{
		of("us-0", "big", service.StateReady), of("us-1", "big", service.StateReady), of("us-2", "small", service.StateReady),
		of("us-3", "small", service.StateNotReady), of("us-4", "small", service.StateDraining),
	}
	for _, tt := range []struct {
		ids  []string
		want string
	}{
		{[]string{"us-0"}, ""},
		{[]string{"us-0", "us-1"}, "model big has no other ready replica than us-0, us-1"},
		{[]string{"us-2"}, "model small has no other ready replica than us-2"},
		{[]string{"us-0", "us-1", "us-2"}, "model big has no other ready replica than us-0, us-1; model small has no other ready replica than us-2"},
		{[]string{"us-3"}, ""}, // it is not ready, so nothing is taken
		{[]string{"gone"}, ""},
	} {
		if got := lastReady(all, tt.ids); got != tt.want {
			t.Errorf("taking %v: got %q, want %q", tt.ids, got, tt.want)
		}
	}
	remove := func(model string, delta int) plan.Proposal {
		return plan.Proposal{Changes: []plan.ReplicaChange{{Model: model, Region: "local/us", Delta: delta}, {Model: model, Region: "local/eu", Delta: delta}}}
	}
	for _, tt := range []struct {
		p    plan.Proposal
		want string
	}{
		{remove("big", -1), ""},
		{remove("small", 1), ""},
		{remove("small", -1), "the plan removes replicas of model small while us-3 is NOT_READY"},
	} {
		if got := removesWhileDown(tt.p, all); got != tt.want {
			t.Errorf("plan %v: got %q, want %q", tt.p.Changes, got, tt.want)
		}
	}
}
