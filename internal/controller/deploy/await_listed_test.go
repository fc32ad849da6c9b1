package deploy_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

const oneReplica = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models:
  - name: llama
    engine: {kind: vllm}
    gpus: [{type: L4}]
regions:
  - {name: aws/us-east-1, replicas: {min: 1, max: 1}}
`

// endReplica terminates the running machine of a replica at AWS and returns its handle.
func endReplica(t *testing.T, c *clouds, p provision.Provider, id string) string {
	t.Helper()
	have, err := p.List(t.Context(), "chat")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(have, func(o provision.Object) bool { return o.ID == id && o.TerminatedReason == "" })
	if i < 0 {
		t.Fatalf("no replica in %+v", have)
	}
	c.aws.TerminateInstance(have[i].Handle)
	return have[i].Handle
}

// A machine that ends after the clouds were observed is replaced in the same run. Without that, the run
// would wait for its address until the timeout.
func TestUpReplacesMachineThatEndsDuringRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		spec := parse(t, oneReplica)
		c := newClouds(spec, &testcloud.Faults{}, -1)
		p := c.open(t)
		if _, err := up(spec, p); err != nil {
			t.Fatal(err)
		}
		dp := newDeployer(spec, p)
		plan, err := dp.Plan(ctx)
		if err != nil || len(plan.Changes) > 0 {
			t.Fatalf("changes %v (%v)", plan.Changes, err)
		}
		gone := endReplica(t, c, p, "us-east-1-0")

		begun, replans := time.Now(), 0
		_, have, err := dp.UpAndAwait(ctx, plan, nil, dp.AwaitListed, func(e *deploy.MachineEndedError, next *deploy.MachinePlan) {
			replans++
			if e.ID != "us-east-1-0" || !strings.Contains(e.Error(), "us-east-1-0: the machine has ended: ") || len(next.Changes) == 0 {
				t.Errorf("%v with the changes %v", e, next.Changes)
			}
		})
		running := slices.ContainsFunc(have, func(o provision.Object) bool {
			return o.ID == "us-east-1-0" && o.TerminatedReason == "" && o.Handle != gone && o.PrivateIP.IsValid()
		})
		if err != nil || !running || replans != 1 || time.Since(begun) > time.Minute {
			t.Errorf("running %v after %d new plans and %s (%v)", running, replans, time.Since(begun), err)
		}
	})
}

// A machine that ends again and again is an error that names it and the reason, after a few launches.
func TestUpStopsReplacingMachineThatKeepsEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		spec := parse(t, oneReplica)
		c := newClouds(spec, &testcloud.Faults{}, -1)
		p := c.open(t)
		dp := newDeployer(spec, p)
		plan, err := dp.Plan(ctx)
		if err != nil {
			t.Fatal(err)
		}
		attempts := 0
		_, _, err = dp.UpAndAwait(ctx, plan, nil, func(ctx context.Context, p *deploy.MachinePlan) ([]provision.Object, error) {
			attempts++
			endReplica(t, c, dp.Provider, "us-east-1-0")
			return dp.AwaitListed(ctx, p)
		}, func(*deploy.MachineEndedError, *deploy.MachinePlan) {})
		var ended *deploy.MachineEndedError
		if !errors.As(err, &ended) || ended.ID != "us-east-1-0" || ended.Reason == "" || attempts > 5 {
			t.Errorf("after %d attempts: %v", attempts, err)
		}
	})
}

// 'plan --apply' and 'replica add' replace a machine that ends while they wait for it, and stop after a few
// launches of one that ends each time.
func TestScalingReplacesMachineThatEndsDuringChange(t *testing.T) {
	for _, tt := range []struct {
		name  string
		ends  int // how often the launched machine ends
		ended int // machines that are reported as ended
		fails bool
	}{
		{"none", 0, 0, false},
		{"the first", 1, 1, false},
		{"every one", 100, 3, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
				defer cancel()
				spec := parse(t, strings.Replace(oneReplica, "max: 1", "max: 3", 1))
				c := newClouds(spec, &testcloud.Faults{}, -1)
				p := c.open(t)
				if _, err := up(spec, p); err != nil {
					t.Fatal(err)
				}
				dp := newDeployer(spec, p)
				dp.Filter = func(*deploy.MachinePlan, provision.Change) bool { return false }
				s := newScaling(dp)
				gone, reported := map[string]bool{}, 0
				s.UpdateBalancers = func(ctx context.Context, plan *deploy.MachinePlan, _, _ map[string]bool) error {
					if len(gone) < tt.ends {
						gone[endReplica(t, c, p, "us-east-1-1")] = true
					}
					_, err := s.AwaitListed(ctx, plan)
					return err
				}
				s.OnEnded = func(e *deploy.MachineEndedError) {
					reported++
					if e.ID != "us-east-1-1" {
						t.Errorf("reported %v", e)
					}
				}
				group := cloud.ReplicaGroup{Model: "llama", Region: "aws/us-east-1"}
				err := s.ApplyDesired(ctx, deploy.DesiredReplicas{Counts: map[cloud.ReplicaGroup]provision.ClassCounts{group: {onL4: 2}}})
				var ended *deploy.MachineEndedError
				if errors.As(err, &ended) != tt.fails || !tt.fails && err != nil || reported != tt.ended {
					t.Fatalf("%d ended machines reported, err %v", reported, err)
				}
				have, err := p.List(ctx, "chat")
				if err != nil {
					t.Fatal(err)
				}
				running := slices.DeleteFunc(have, func(o provision.Object) bool {
					return o.Kind != provision.KindReplica || o.TerminatedReason != "" || gone[o.Handle]
				})
				if want := 2; len(running) != want && !tt.fails || len(running) > want {
					t.Errorf("%d replicas run: %+v", len(running), running)
				}
			})
		})
	}
}
