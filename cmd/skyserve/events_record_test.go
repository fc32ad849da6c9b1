package main

import (
	"slices"
	"testing"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/plan"
	"skyserve/provision"
)

// An added or revoked operator has an event, by the operator who runs the command.
func TestOperatorIsRecorded(t *testing.T) {
	e := operatorLog("bob@laptop", "revoked bob@laptop").events
	if len(e) != 1 || e[0].Actor != telemetry.OperatorActor(operatorName()) || e[0].Kind != telemetry.EventOperator || e[0].Object != "bob@laptop" || e[0].Message != "revoked bob@laptop" || e[0].Reason != "skyserve connect" || e[0].ID == "" {
		t.Errorf("got %+v", e)
	}
}

// The changes of `plan --apply` name the plan, and the operator with the reason. The controller records deaths.
func TestAppliedPlanIsRecorded(t *testing.T) {
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	s := &scaling{upRun: &upRun{up: &up{}}}
	s.log.reason = "peak"
	s.notePlan(plan.Proposal{At: &at})
	s.log.addChange(provision.Change{
		Action: provision.ActionLaunch, Desired: provision.Desired{Kind: provision.KindReplica, ID: "us-1", Region: "local/us"},
		Observed: provision.Object{TerminatedReason: "process exited"}, Reason: "new",
	}, provision.PhaseDone)
	s.log.addChange(provision.Change{Action: provision.ActionTerminate, Observed: provision.Object{Kind: provision.KindReplica, ID: "us-2"}}, provision.PhaseFailed)
	var got []string
	for _, e := range s.log.events {
		got = append(got, string(e.Kind)+" "+e.Object+": "+e.Reason)
		if e.Actor != telemetry.OperatorActor(operatorName()) || e.Plan == nil || !e.Plan.Equal(at) {
			t.Errorf("got %+v", e)
		}
	}
	if want := []string{"apply 2026-11-27T12:00:00Z: peak", "launch us-1: peak; new"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
