package deploy

import (
	"net/netip"
	"testing"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// Balancers show the starts of replicas in clouds that are in progress or have just ended.
func TestShownStarts(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	started := func(ago time.Duration, seconds float64, ready bool) AgentReport {
		return AgentReport{Status: agent.Status{Phase: agent.PhaseReady, Start: &telemetry.Start{StartedAt: now.Add(-ago), Seconds: seconds, Ready: ready}}}
	}
	v := &serviceView{seen: map[string]AgentReport{
		"loading":  started(time.Minute, 60, false),
		"ready":    started(8*time.Minute, 300, true),
		"long ago": started(time.Hour, 300, true),
		"unknown":  {},
		"local":    started(time.Minute, 60, false),
		"balancer": started(time.Minute, 60, false),
	}}
	for _, id := range []string{"ready", "loading", "long ago", "unknown", "local", "balancer"} {
		o := provision.Object{ID: id, Kind: provision.KindReplica, Region: "aws/us-east-1", PrivateIP: netip.MustParseAddr("10.0.0.1")}
		switch id {
		case "local":
			o.Region = "local/us"
		case "balancer":
			o.Kind = provision.KindBalancer
		}
		v.have = append(v.have, o)
	}
	var shown []string
	for _, s := range startsOf(v, now) {
		shown = append(shown, s.Replica)
	}
	if len(shown) != 2 || shown[0] != "loading" || shown[1] != "ready" {
		t.Errorf("shown %q", shown)
	}
}
