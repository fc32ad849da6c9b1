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
	"skyserve/internal/service"
	"skyserve/provision"
)

// A change of some replicas neither delivers to the others nor waits for them: one that does not respond would make every
// 'replica drain', 'replica add' and 'plan --apply' of the service fail.
func TestChangeOfReplicasIgnoresOthers(t *testing.T) {
	spec := &service.Spec{Models: []service.Model{{Name: "m"}}, Regions: []service.RegionSpec{{Name: "local/us"}}}
	for _, tt := range []struct {
		name            string
		only            map[string]bool
		delivered, wait []string
		fails           bool
	}{
		{"up", nil, []string{"lb-us-0", "us-0", "us-1"}, []string{"lb-us-0", "us-0", "us-1"}, true},
		{"a drain", map[string]bool{}, []string{"lb-us-0"}, []string{"lb-us-0"}, false},
		{"an addition", map[string]bool{"us-1": true}, []string{"lb-us-0", "us-1"}, []string{"lb-us-0", "us-1"}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			dl := &Delivery{Service: "chat", OnlyReplicas: tt.only}
			deployments := map[string]agent.Deployment{}
			for id, kind := range map[string]provision.ObjectKind{"lb-us-0": provision.KindBalancer, "us-0": provision.KindReplica, "us-1": provision.KindReplica} {
				dl.Machines = append(dl.Machines, provision.Object{ID: id, Kind: kind, Region: "local/us"})
				deployments[id] = agent.Deployment{Revision: "new"}
			}
			var mu sync.Mutex
			delivered := map[string]bool{}
			dl.ensurer = func(_ context.Context, o provision.Object, _ agent.Deployment) (agent.Status, error) {
				mu.Lock()
				defer mu.Unlock()
				delivered[o.ID] = true
				if o.ID == "us-0" {
					return agent.Status{}, errors.New("no response")
				}
				return agent.Status{Phase: agent.PhaseReady}, nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := dl.Deliver(ctx, deployments); (err != nil) != tt.fails {
				t.Errorf("%s: got %v, fails: %t", tt.name, err, tt.fails)
			}
			var ids []string
			for id := range delivered {
				ids = append(ids, id)
			}
			if slices.Sort(ids); !slices.Equal(ids, tt.delivered) {
				t.Errorf("%s: delivered to %q, want %q", tt.name, ids, tt.delivered)
			}
			if wait := dl.servingIDs(spec, nil); !slices.Equal(wait, tt.wait) {
				t.Errorf("%s: waits for %q, want %q", tt.name, wait, tt.wait)
			}
		})
	}
}

// A balancer that does not respond delays a change of replicas by seconds, and the others receive the change before.
func TestChangeOfReplicasPassesHungBalancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dl := &Delivery{Service: "chat", OnlyReplicas: map[string]bool{}}
		deployments, seen := map[string]agent.Deployment{}, map[string]AgentReport{}
		for _, id := range []string{"lb-eu-0", "lb-us-0"} {
			dl.Machines = append(dl.Machines, provision.Object{ID: id, Kind: provision.KindBalancer})
			deployments[id] = agent.Deployment{Revision: "new"}
			seen[id] = AgentReport{Status: agent.Status{Phase: agent.PhaseReady, Revision: "old"}}
		}
		seen["lb-us-0"] = AgentReport{Err: context.DeadlineExceeded}
		delivered := false
		dl.ensurer = func(ctx context.Context, o provision.Object, _ agent.Deployment) (agent.Status, error) {
			if o.ID == "lb-eu-0" {
				delivered = true
				return agent.Status{Phase: agent.PhaseReady, Revision: "new"}, nil
			}
			sleep(ctx, statusTimeout)
			return agent.Status{}, errors.New("no response")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		err := dl.deliverFrom(ctx, seen, deployments)
		if !errors.As(err, new(*UnconfirmedError)) || !delivered {
			t.Errorf("got %v, delivered to lb-eu-0: %t", err, delivered)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("took %s", took)
		}
	})
}
