package deploy_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"skyserve/internal/controller/deploy"
	"skyserve/provision"
)

const twoGPUs = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models:
  - name: llama
    engine: {kind: vllm}
    gpus: [{type: L4}, {type: H100}]
regions:
  - name: aws/us-east-1
    replicas: {min: 2, max: 3}
`

// replicaClassOf returns the classes of the replicas, by ID.
func (u *reconcilerWorld) runsOn() string {
	var all []string
	for _, o := range u.Objects() {
		if o.Kind == provision.KindReplica && o.TerminatedReason == "" {
			all = append(all, o.ID+" "+o.Offering.GPU)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// A replacement on another class is launched beside the old replica, as far as replicas.max and its
// cloud have capacity.
func TestReplaceReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorldOf(t, twoGPUs)
		dp := newDeployer(u.spec, u.Memory)
		dp.Owner = u.owner
		h100 := provision.ReplicaClass{GPU: "H100", GPUs: 1}
		exchange := func(id string) (string, error) {
			p, err := dp.Plan(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(p.Observed, func(o provision.Object) bool { return o.ID == id })
			c, err := dp.ReplaceReplica(t.Context(), p.Observed, p.Observed[at], h100, nil)
			return c.ID(), err
		}
		u.CapacityError = func(o provision.Offering) *provision.CapacityError {
			if o.GPU != "H100" {
				t.Errorf("requested %s instead of the replacement class", o)
			}
			return &provision.CapacityError{Offering: o, Scope: provision.ScopeRegion, Code: "InsufficientInstanceCapacity"}
		}
		var refused *deploy.ReplacementRefusedError
		if id, err := exchange("us-east-1-0"); id != "" || !errors.As(err, &refused) || err.Error() != "replacing us-east-1-0 (on_demand L4) with H100: the cloud has no capacity for it" {
			t.Errorf("without capacity: launched %q, %v", id, err)
		}
		u.CapacityError = nil
		dp = newDeployer(u.spec, u.Memory) // without recently rejected offerings
		dp.Owner = u.owner
		if id, err := exchange("us-east-1-0"); id != "us-east-1-2" || err != nil {
			t.Errorf("launched %q, %v", id, err)
		}
		if got := u.runsOn(); got != "us-east-1-0 L4, us-east-1-1 L4, us-east-1-2 H100" {
			t.Errorf("got %s", got)
		}
		if id, err := exchange("us-east-1-1"); id != "" || !errors.As(err, &refused) || !strings.Contains(err.Error(), "replicas.max") {
			t.Errorf("above max: launched %q, %v", id, err)
		}
	})
}
