package deploy

import (
	"strings"
	"testing"

	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// Each cause that holds launches, and a failed GPU, has an alert with its kind, object, reason and next step.
func TestLaunchAlertTexts(t *testing.T) {
	held := func(kind provision.HoldKind, reason string) []*provision.HeldError {
		return []*provision.HeldError{{ID: "us-1", Region: "aws/us-east-1", Kind: kind, Reason: reason}}
	}
	for name, c := range map[string]struct {
		launches  telemetry.Launches
		held      []*provision.HeldError
		unhealthy map[string]seenReplica
		want      []string // the line of the alert; nil = none
	}{
		"nothing": {},
		"budget": {
			held: held(provision.HeldByBudget, "$3.20/h of $3.00/h"),
			want: []string{"warning: budget: the budget blocks launches: us-1: $3.20/h of $3.00/h; raise autoscale.budget, or lower replicas.min or max"},
		},
		"unknown price": {
			held: held(provision.HeldByPrice, "the price of on_demand p5.48xlarge in us-east-1a is unknown"),
			want: []string{"warning: budget: the budget blocks launches: us-1: the price of on_demand p5.48xlarge in us-east-1a is unknown; set models[].gpus[].price (on demand), select another GPU or capacity type, or remove autoscale.budget"},
		},
		"launches": {
			held: held(provision.HeldByLaunches, "20 launches in the last hour"),
			want: []string{"warning: launch max_launches_per_hour: 20 launches in the last hour; find out why so many machines are launched"},
		},
		"quota": {
			held: held(provision.HeldByQuota, "VcpuLimitExceeded"),
			want: []string{"warning: launch aws/us-east-1: cannot launch us-1: VcpuLimitExceeded; raise the quota at the cloud"},
		},
		"capacity": {
			held: held(provision.HeldByCapacity, "InsufficientInstanceCapacity"),
			want: []string{"warning: launch aws/us-east-1: cannot launch us-1: InsufficientInstanceCapacity; launches are repeated every 10 minutes"},
		},
		"held by its backoff": {held: held(provision.HeldByBackoff, "next try 03:05")},
		"backoff": {
			launches: telemetry.Launches{Backoffs: []telemetry.LaunchBackoff{{Model: "m", Region: "aws/us-east-1", Line: "m failed 2 times; next try at 03:05"}}},
			want:     []string{"warning: launch m aws/us-east-1: m failed 2 times; next try at 03:05; read the log lines of the last failure in 'skyserve status'"},
		},
		"gpu": {
			unhealthy: map[string]seenReplica{"us-0": {}},
			want:      []string{"warning: gpu us-0: XID 79; it receives no requests and is being replaced"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for id, s := range c.unhealthy {
				s.UnhealthyKind, s.UnhealthyReason = unhealthyGPU, "XID 79"
				c.unhealthy[id] = s
			}
			found := launchAlerts(&c.launches, c.held, c.unhealthy)
			if len(found) != len(c.want) {
				t.Fatalf("got %+v, want %q", found, c.want)
			}
			for i, a := range found {
				if !strings.HasPrefix(a.Line(), c.want[i]) {
					t.Errorf("got  %s\nwant %s", a.Line(), c.want[i])
				}
			}
		})
	}
}
