package deploy

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/agent"
	"skyserve/provision"
)

// After all processes were killed, the controllers of two balancers wait for a majority of the store's members. The member
// of a third balancer, which serves without a controller, gives them one: its configuration does not wait for them.
func TestMissingControllerIsNotDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dl := &Delivery{Service: "chat"}
		seen, deployments := map[string]AgentReport{}, map[string]agent.Deployment{}
		for _, id := range []string{"lb-asia-0", "lb-eu-0", "lb-us-0"} {
			dl.Machines = append(dl.Machines, provision.Object{ID: id, Kind: provision.KindBalancer, Region: "local/us"})
			deployments[id] = agent.Deployment{Revision: "new", Units: []agent.Unit{{Name: "balancer"}, {Name: UnitController}}}
			units := []agent.UnitStatus{{Name: "balancer"}, {Name: UnitController}}
			seen[id] = AgentReport{Status: agent.Status{Phase: agent.PhaseStarting, Revision: "old", Units: units}}
		}
		seen["lb-asia-0"] = AgentReport{Status: agent.Status{Phase: agent.PhaseReady, Revision: "old", Units: []agent.UnitStatus{{Name: "balancer"}}}}
		var mu sync.Mutex
		var members []string
		dl.ensurer = func(_ context.Context, o provision.Object, _ agent.Deployment) (agent.Status, error) {
			mu.Lock()
			defer mu.Unlock()
			if !slices.Contains(members, o.ID) {
				members = append(members, o.ID)
			}
			if len(members) < 3 {
				return agent.Status{Phase: agent.PhaseStarting, Reason: "no majority"}, nil
			}
			return agent.Status{Phase: agent.PhaseReady}, nil
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("not ready within 1m"))
		defer cancel()
		if err := dl.deliverFrom(ctx, seen, deployments); err != nil {
			t.Errorf("members %q started: %v", members, err)
		}
	})
}
