package deploy

import (
	"maps"
	"testing"

	"skyserve/internal/agent"
	"skyserve/provision"
)

// A replica is drained in favour of another only once a balancer uses that one: its agent reports it
// ready before the balancer has probed it.
func TestDrainWaitsForBalancers(t *testing.T) {
	machine := func(id string, labels map[string]string) provision.Object {
		labels["model"] = "m"
		return provision.Object{ID: id, Kind: provision.KindReplica, Handle: "h-" + id, Labels: labels}
	}
	old, replacement := machine("old", map[string]string{}), machine("new", map[string]string{"instead": "h-old"})
	for _, tt := range []struct {
		name, phase, used, draining, want string
	}{
		{"no balancer uses the replacement", "ready", "old", "", ""},
		{"a balancer uses both", "ready", "old new", "", "old"},
		{"the old one is no longer used", "ready", "new", "", "old"},
		{"it is interrupted and no balancer uses the other", "interrupted", "old", "", ""},
		{"it is interrupted and a balancer uses the other", "interrupted", "old new", "", "old"},
		{"the replacement is donated", "ready", "old", "new", "old new"},
	} {
		have := []provision.Object{old, replacement}
		seen := map[string]AgentReport{
			"old": {Status: agent.Status{Phase: agent.Phase(tt.phase)}},
			"new": {Status: agent.Status{Phase: agent.PhaseReady}},
		}
		got := drained(setOf(tt.draining), have, withoutUnused(have, seen, setOf(tt.used), setOf(tt.draining)), nil)
		if !maps.Equal(got, setOf(tt.want)) {
			t.Errorf("%s: drained %v, want %q", tt.name, got, tt.want)
		}
		if seen["new"].Phase != agent.PhaseReady {
			t.Errorf("%s: the statuses were changed", tt.name)
		}
	}
}

// Balancers are asked only while a replica may be drained in favour of another.
func TestBalancersAreAskedOnlyWhileDraining(t *testing.T) {
	ready := map[string]AgentReport{"a": {Status: agent.Status{Phase: agent.PhaseReady}}}
	taken := map[string]AgentReport{"a": {Status: agent.Status{Phase: agent.PhaseInterrupted}}}
	for _, tt := range []struct {
		name   string
		labels map[string]string
		seen   map[string]AgentReport
		want   bool
	}{
		{"nothing changes", nil, ready, false},
		{"it replaces another", map[string]string{"instead": "h-0"}, ready, true},
		{"it is a fallback", map[string]string{"for": "aws/eu-west-1"}, ready, true},
		{"it is interrupted", nil, taken, true},
	} {
		have := []provision.Object{{ID: "a", Kind: provision.KindReplica, Handle: "h-a", Labels: tt.labels}}
		if got := anyInReplacement(have, tt.seen); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}
