package deploy_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/controller"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
)

// A model with min 0 has no machine in a cloud until the controller launches one, and none after it was
// removed: reconciling adds none.
func TestCloudModelScalesToZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := strings.NewReplacer("min: 2", "min: 0", "min: 1", "min: 0").Replace(kept) + "autoscale: {strategy: reactive}\n"
		u := newReconcilerWorldOf(t, text)
		rc := u.reconciler()
		apply := func(c controller.CapacityChange) []string {
			t.Helper()
			launched, err := rc.Apply(t.Context(), c, always)
			if err != nil {
				t.Fatal(err)
			}
			u.reconcileFor(t, rc, time.Minute, always)
			return launched
		}
		want := func(ids ...string) {
			t.Helper()
			if got := u.replicas(); !slices.Equal(got, ids) {
				t.Fatalf("replicas %q, want %q", got, ids)
			}
		}
		u.reconcileFor(t, rc, time.Minute, always)
		want()
		launched := apply(controller.CapacityChange{Launch: []controller.ReplicaLaunch{{Model: "llama", Region: "aws/eu-west-1", Count: 1}}})
		if !slices.Equal(launched, []string{"eu-west-1-0"}) {
			t.Errorf("launched %q", launched)
		}
		want("eu-west-1-0")
		now := time.Now()
		apply(controller.CapacityChange{Drain: []controller.ReplicaDrain{{ID: "eu-west-1-0", Donation: service.Donation{Since: now, Until: now}}}})
		want("eu-west-1-0")
		apply(controller.CapacityChange{Remove: []string{"eu-west-1-0"}})
		want()
	})
}

// Balancers learn which models a request may start.
func TestBalancersKnowModelsThatScaleToZero(t *testing.T) {
	for _, strategy := range []string{"reactive", "manual"} {
		text := strings.NewReplacer("min: 2", "min: 0", "min: 1", "min: 0").Replace(kept) + "autoscale: {strategy: " + strategy + "}\n"
		c := deploy.DeploymentInput{Spec: parse(t, text), SpecYAML: []byte(text), Secrets: secrets, PeerToken: "p"}
		balancer := machineAt("lb-us-east-1-0", provision.KindBalancer, "aws/us-east-1", "", "1", 0)
		known := false
		for _, unit := range deployments(t, c, []provision.Object{balancer})["lb-us-east-1-0"].Units {
			for _, file := range unit.Files {
				known = known || strings.Contains(file, "scale_to_zero: true")
			}
		}
		if known != (strategy == "reactive") {
			t.Errorf("strategy %s: the configuration contains scale_to_zero: %v", strategy, known)
		}
	}
}
