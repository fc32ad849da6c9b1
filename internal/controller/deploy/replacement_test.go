package deploy_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/provision"
)

// A replacement that is interrupted before it is ready is not replaced itself, because the old
// replica still serves.
func TestInterruptedReplacementIsReplaced(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	ready, advised := agent.Status{Phase: agent.PhaseReady}, agent.Status{Phase: agent.PhaseReady, RebalanceAt: time.Unix(1, 0)}
	maintained := agent.Status{Phase: agent.PhaseInterrupted, InterruptionAt: time.Now().AddDate(100, 0, 0)}
	for name, first := range map[string]agent.Status{"it is on a costlier offering": ready, "it has a recommendation": advised, "it is scheduled for maintenance": maintained} {
		synctest.Test(t, func(t *testing.T) {
			u := newReconcilerWorldOf(t, strings.ReplaceAll(strings.Replace(spotFirst, "on_demand_base: 1", "on_demand_base: 0", 1), "min: 2, max: 3", "min: 1, max: 4"))
			u.ChangeObject("us-east-1-0", func(o *provision.Object) { // as if spot had had no capacity
				o.CostPerHour, o.Offering = 100, &provision.Offering{Type: o.Offering.Type, Region: o.Region, Capacity: service.CapacityOnDemand, GPU: "L4", GPUs: 1}
			})
			how := map[string]agent.Status{"us-east-1-0": first, "us-east-1-1": {Phase: agent.PhaseWeights}, "us-east-1-2": ready}
			rc := u.reconciler()
			rc.SetProber(func(have []provision.Object) map[string]deploy.AgentReport {
				seen := map[string]deploy.AgentReport{}
				for _, o := range have {
					seen[o.ID] = deploy.AgentReport{Status: how[o.ID]}
				}
				return seen
			})
			expect := func(when string, want ...string) {
				t.Helper()
				u.reconcileFor(t, rc, time.Minute, always)
				if got := u.replicas(); !slices.Equal(got, want) {
					t.Errorf("%s, %s: %q, want %q", name, when, got, want)
				}
			}
			expect("at first", "us-east-1-0", "us-east-1-1")
			how["us-east-1-1"] = agent.Status{Phase: agent.PhaseInterrupted, InterruptionAt: time.Now().Add(2 * time.Minute)}
			expect("while its replacement is interrupted", "us-east-1-0", "us-east-1-1")
			how["us-east-1-1"] = agent.Status{Phase: agent.PhaseWeights}
			expect("after the interruption was cancelled", "us-east-1-0", "us-east-1-1")
			how["us-east-1-1"] = agent.Status{Phase: agent.PhaseInterrupted, InterruptionAt: time.Now().Add(2 * time.Minute)}
			u.reconcileFor(t, rc, time.Minute, always)
			u.ChangeObject("us-east-1-1", nil)
			how["us-east-1-1"] = agent.Status{Phase: agent.PhaseWeights}
			u.reconcileFor(t, rc, 20*time.Minute, always)
			expect("after the interruption", "us-east-1-0", "us-east-1-1") // another replacement
		})
	}
}

// A cloud that is short of spot machines issues rebalance recommendations for new machines too:
// replacement machines ignore them for a while.
func TestRecommendationsAreDelayed(t *testing.T) {
	testkit.Slow(t)
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorldOf(t, strings.ReplaceAll(strings.Replace(spotFirst, "on_demand_base: 1", "on_demand_base: 0", 1), "min: 2, max: 3", "min: 1, max: 9"))
		rc := u.reconciler()
		rc.SetProber(func(have []provision.Object) map[string]deploy.AgentReport { // all are ready, with a recommendation
			seen := map[string]deploy.AgentReport{}
			for _, o := range have {
				seen[o.ID] = deploy.AgentReport{Status: agent.Status{Phase: agent.PhaseReady, RebalanceAt: time.Unix(1, 0)}}
			}
			return seen
		})
		u.reconcileFor(t, rc, time.Minute, always)
		if got := u.replicas(); len(got) != 2 {
			t.Errorf("a minute after the recommendation: %q", got)
		}
		u.reconcileFor(t, rc, 2*time.Hour, always)
		if got := u.replicas(); len(got) < 3 || len(got) > 6 {
			t.Errorf("two hours later: %q", got)
		}
	})
}
