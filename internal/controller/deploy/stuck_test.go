package deploy

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/agent"
	"skyserve/provision"
)

// Serving machines are updated while a replica that stopped working before does not become ready, but not before the
// machines that were launched with the new configuration are ready.
func TestStuckReplicaDoesNotHoldUpOthers(t *testing.T) {
	const updated = "lb-us-0 us-1 us-2"
	for name, tt := range map[string]struct {
		starting string // the machine that does not become ready
		launched []string
		want     string // the serving machines that were updated
	}{
		"a replica has stopped working": {"us-0", nil, updated},
		"a launched replica starts":     {"us-0", []string{"us-0"}, ""},
		"a balancer starts":             {"lb-us-1", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var delivered []string
				dl := &Delivery{Service: "chat", Launched: func(id string) bool { return slices.Contains(tt.launched, id) }}
				seen, deployments := map[string]AgentReport{}, map[string]agent.Deployment{}
				for _, id := range append(strings.Fields(updated), tt.starting) {
					kind, phase := provision.KindReplica, agent.PhaseReady
					if provision.IsBalancerID(id) {
						kind = provision.KindBalancer
					}
					if id == tt.starting {
						phase = agent.PhaseStarting
					}
					dl.Machines = append(dl.Machines, provision.Object{ID: id, Kind: kind, Region: "local/us"})
					seen[id], deployments[id] = AgentReport{Status: agent.Status{Phase: phase, Revision: "old"}}, agent.Deployment{Revision: "new"}
				}
				dl.ensurer = func(_ context.Context, o provision.Object, _ agent.Deployment) (agent.Status, error) {
					if o.ID == tt.starting {
						return agent.Status{Phase: agent.PhaseStarting}, nil
					}
					mu.Lock()
					defer mu.Unlock()
					delivered = append(delivered, o.ID)
					return agent.Status{Phase: agent.PhaseReady}, nil
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := dl.deliverFrom(ctx, seen, deployments); err == nil || !strings.Contains(err.Error(), "waiting for "+tt.starting) {
					t.Errorf("got %v, want that %s is not ready", err, tt.starting)
				}
				if got := strings.Join(delivered, " "); got != tt.want {
					t.Errorf("updated are %q, want %q", got, tt.want)
				}
			})
		})
	}
}
