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

// endReplica terminates the running replica of a service at AWS and returns its handle.
func endReplica(t *testing.T, c *clouds, p provision.Provider) string {
	t.Helper()
	have, err := p.List(t.Context(), "chat")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(have, func(o provision.Object) bool { return o.ID == "us-east-1-0" && o.TerminatedReason == "" })
	if i < 0 {
		t.Fatalf("no replica in %+v", have)
	}
	c.aws.TerminateInstance(have[i].Handle)
	return have[i].Handle
}

// A machine that ends after the clouds were observed is replaced in the same run. Without that, the run
// would wait for its address until the timeout.
func TestUpReplacesMachineThatEndsDuringRun(t *testing.T) {
	clearCloudEnv(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		spec := parse(t, oneReplica)
		c := newClouds(spec, &testcloud.Faults{}, -1)
		p := c.open(t)
		if _, err := up(spec, p); err != nil {
			t.Fatal(err)
		}
		f := newDeployer(spec, p)
		plan, err := f.Plan(ctx)
		if err != nil || len(plan.Changes) > 0 {
			t.Fatalf("changes %v (%v)", plan.Changes, err)
		}
		gone := endReplica(t, c, p)

		begun, replans := time.Now(), 0
		_, have, err := f.UpListed(ctx, plan, nil, f.AwaitListed, func(e *deploy.MachineEndedError, next *deploy.Plan) {
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
	clearCloudEnv(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		spec := parse(t, oneReplica)
		c := newClouds(spec, &testcloud.Faults{}, -1)
		p := c.open(t)
		f := newDeployer(spec, p)
		plan, err := f.Plan(ctx)
		if err != nil {
			t.Fatal(err)
		}
		attempts := 0
		_, _, err = f.UpListed(ctx, plan, nil, func(ctx context.Context, p *deploy.Plan) ([]provision.Object, error) {
			attempts++
			endReplica(t, c, f.Provider)
			return f.AwaitListed(ctx, p)
		}, func(*deploy.MachineEndedError, *deploy.Plan) {})
		var ended *deploy.MachineEndedError
		if !errors.As(err, &ended) || ended.ID != "us-east-1-0" || ended.Reason == "" || attempts > 5 {
			t.Errorf("after %d attempts: %v", attempts, err)
		}
	})
}
