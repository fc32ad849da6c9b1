package deploy

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/internal/testcloud/conformance"
	"skyserve/provision"
)

// A replica counts as replaced once its replacement is ready, whatever the reason for replacing it.
func TestReplacedOnceReplacementIsReady(t *testing.T) {
	since := time.Unix(1, 0)
	machine := func(id, replaces string) provision.Object {
		return provision.Object{ID: id, Kind: provision.KindReplica, Handle: "h-" + id, Labels: map[string]string{"model": "m", "instead": replaces}}
	}
	ready := AgentReport{Status: agent.Status{Phase: agent.PhaseReady}}
	reported := ready
	reported.RebalanceAt = since
	have := []provision.Object{machine("a", ""), machine("b", ""), machine("c", "h-a")}
	for _, tt := range []struct {
		name             string
		seen             map[string]AgentReport
		advised, removed string
	}{
		{"nothing is recommended", map[string]AgentReport{"a": ready, "b": ready, "c": ready}, "", "a"},
		{"its replacement starts", map[string]AgentReport{"a": reported, "b": ready, "c": {Status: agent.Status{Phase: agent.PhaseWeights}}}, "a", ""},
		{"its replacement does not respond", map[string]AgentReport{"a": reported, "b": ready, "c": {Err: errors.New("no response")}}, "a", ""},
		{"its replacement is ready", map[string]AgentReport{"a": reported, "b": ready, "c": ready}, "a", "a"},
		{"it has no replacement", map[string]AgentReport{"a": {}, "b": reported, "c": ready}, "b", ""},
		{"it is being interrupted", map[string]AgentReport{"a": {Status: agent.Status{Phase: agent.PhaseInterrupted, RebalanceAt: since}}, "b": ready, "c": ready}, "", ""},
		{"it no longer responds", map[string]AgentReport{"a": {Err: errors.New("no response"), Status: agent.Status{Phase: agent.PhaseReady, RebalanceAt: since}}, "c": ready}, "", ""},
	} {
		if got := recommended(have, tt.seen); !maps.Equal(got, setOf(tt.advised)) {
			t.Errorf("%s: advised %v, want %q", tt.name, got, tt.advised)
		}
		if got := replaced(have, tt.seen, nil); !maps.Equal(got, setOf(tt.removed)) {
			t.Errorf("%s: replaced %v, want %q", tt.name, got, tt.removed)
		}
	}
}

// An excess machine is deleted once its balancers have stopped using it for one observation and its
// requests have completed. One that is needed again before stays.
func TestRemoveDrainedWaitsUntilUnused(t *testing.T) {
	have := []provision.Object{
		{ID: "us-0", Kind: provision.KindReplica, Region: "aws/us", Handle: "h-0", Labels: map[string]string{"model": "m"}},
		{ID: "us-1", Kind: provision.KindReplica, Region: "aws/us", Handle: "h-1", Labels: map[string]string{"model": "m", "for": "aws/eu"}},
		{ID: "lb-us-0", Kind: provision.KindBalancer, Region: "aws/us", Handle: "h-2"},
	}
	cloud := &conformance.Memory{}
	bs := &bundleState{deployer: &Deployer{Provider: cloud}}
	rc := &Reconciler{}
	for _, round := range []struct {
		name     string
		excess   string
		revision string
		inFlight int
		calls    int // so far
	}{
		{"its balancer uses it", "us-1", "1", 0, 0},
		{"its balancer is updated", "us-1", "2", 0, 0},
		{"it is needed again", "", "2", 0, 0},
		{"it is no longer needed", "us-1", "2", 0, 0},
		{"it has a request in flight", "us-1", "2", 1, 0},
		{"its requests have completed", "us-1", "2", 0, 1},
	} {
		rc.excessOutOfRegion = setOf(round.excess)
		seen := map[string]AgentReport{
			"us-0": {Status: agent.Status{Phase: agent.PhaseReady}}, "us-1": {Status: agent.Status{Phase: agent.PhaseReady, InFlight: round.inFlight}},
			"lb-us-0": {Status: agent.Status{Phase: agent.PhaseReady, Revision: round.revision}},
		}
		err := rc.removeDrained(t.Context(), bs, &observation{have: have}, seen, map[string]agent.Deployment{"lb-us-0": {Revision: "2"}}, func() error { return nil })
		if err != nil || cloud.CountChanges() != round.calls {
			t.Errorf("%s: %d calls, want %d (%v)", round.name, cloud.CountChanges(), round.calls, err)
		}
	}
}

// A strategy counts a replica and its replacement as one: the old replica until the replacement is
// ready, then the replacement.
func TestReplicaAndReplacementCountOnce(t *testing.T) {
	machine := func(id, replaces string) provision.Object {
		return provision.Object{ID: id, Kind: provision.KindReplica, Handle: "h-" + id, Region: "aws/us", Labels: map[string]string{"model": "m", "instead": replaces}}
	}
	have := []provision.Object{machine("a", ""), machine("b", "h-a"), machine("c", "h-gone")}
	for _, tt := range []struct {
		name, a, b string
		counts     []string
	}{
		{"the new one starts", "ready", "weights", []string{"a", "c"}},
		{"the new one is ready", "ready", "ready", []string{"b", "c"}},
		{"the old one is interrupted", "interrupted", "weights", []string{"b", "c"}},
		{"the new one is interrupted", "ready", "interrupted", []string{"a", "c"}},
	} {
		seen := map[string]AgentReport{"a": {Status: agent.Status{Phase: agent.Phase(tt.a)}}, "b": {Status: agent.Status{Phase: agent.Phase(tt.b)}}}
		s := currentState(&serviceView{spec: &service.Spec{Regions: []service.RegionSpec{{Name: "aws/us"}}}, have: have, seen: seen}, ReplicaDecisions{})
		var got []string
		for _, r := range s.Replicas {
			if !r.Drained {
				got = append(got, r.ID)
			}
		}
		if !slices.Equal(got, tt.counts) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.counts)
		}
	}
}

// A replacement of a terminated machine is not a replacement of a newer machine with the same ID.
func TestReplacementMatchesHandleNotID(t *testing.T) {
	old := provision.Object{ID: "a", Kind: provision.KindReplica, Handle: "h-1", TerminatedReason: "stopped"}
	have := []provision.Object{old, {ID: "a", Kind: provision.KindReplica, Handle: "h-2"}, {ID: "b", Kind: provision.KindReplica, Handle: "h-3", Labels: map[string]string{"instead": "h-1"}}}
	if got := withReplacement(have); len(got) > 0 {
		t.Errorf("got %v", got)
	}
}

// A replica is unused once all balancers of its region run their current deployment.
func TestUnusedWhenAllBalancersUpdated(t *testing.T) {
	have := []provision.Object{
		{ID: "us-0", Kind: provision.KindReplica, Region: "aws/us"},
		{ID: "lb-us-0", Kind: provision.KindBalancer, Region: "aws/us"},
		{ID: "lb-us-1", Kind: provision.KindBalancer, Region: "aws/us"},
		{ID: "lb-us-2", Kind: provision.KindBalancer, Region: "aws/us", TerminatedReason: "stopped"},
		{ID: "lb-eu-0", Kind: provision.KindBalancer, Region: "aws/eu"},
	}
	is := func(revision string, phase agent.Phase) AgentReport {
		return AgentReport{Status: agent.Status{Revision: revision, Phase: phase}}
	}
	wanted := map[string]agent.Deployment{"lb-us-0": {Revision: "2"}, "lb-us-1": {Revision: "2"}, "lb-eu-0": {Revision: "2"}}
	first := map[string]agent.Deployment{"lb-us-0": {Revision: "2"}}
	for _, tt := range []struct {
		name        string
		deployments map[string]agent.Deployment
		seen        map[string]AgentReport
		want        bool
	}{
		{"all are updated", wanted, map[string]AgentReport{"lb-us-0": is("2", "ready"), "lb-us-1": is("2", "ready")}, true},
		{"one is not", wanted, map[string]AgentReport{"lb-us-0": is("2", "ready"), "lb-us-1": is("1", "ready")}, false},
		{"one is reloading", wanted, map[string]AgentReport{"lb-us-0": is("2", "ready"), "lb-us-1": is("2", "preparing")}, false},
		{"one does not respond", wanted, map[string]AgentReport{"lb-us-0": is("2", "ready"), "lb-us-1": {Err: errors.New("no response")}}, false},
		{"the deployment of one is uncertain", first, map[string]AgentReport{"lb-us-0": is("2", "ready"), "lb-us-1": is("", "ready")}, false},
	} {
		if got := isUnused("us-0", have, tt.seen, tt.deployments); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
	if isUnused("us-1", slices.Clone(have), nil, nil) {
		t.Error("an unknown replica is unused")
	}
}
