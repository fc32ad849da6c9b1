package deploy_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/provision"
)

// The zone of an interrupted spot machine is avoided by the deployer of a new configuration, and by another
// process. A machine that its cloud lists as interrupted counts once.
func TestSpotHistoryOutlivesDeployer(t *testing.T) {
	for name, restart := range map[string]func(*testing.T, *reconcilerWorld, *deploy.Reconciler) *deploy.Reconciler{
		"a new configuration": func(t *testing.T, u *reconcilerWorld, rc *deploy.Reconciler) *deploy.Reconciler {
			file := filepath.Join(u.dir, "service.yaml")
			text, err := os.ReadFile(file)
			if err == nil {
				err = os.WriteFile(file, append(text, "# changed\n"...), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			return rc
		},
		"another process": func(_ *testing.T, u *reconcilerWorld, _ *deploy.Reconciler) *deploy.Reconciler {
			return u.reconciler()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := newReconcilerWorld(t)
				var bad string
				interrupt := func(id string) {
					u.ChangeObject(id, func(o *provision.Object) {
						o.TerminatedReason, o.Interrupted, bad = "interrupted", true, o.Offering.Zone
					})
				}
				rc := u.reconciler()
				u.reconcileFor(t, rc, time.Minute, always)
				interrupt("us-east-1-0")
				u.reconcileFor(t, rc, time.Minute, always)
				if got := u.spotRecord(t).Pools; len(got) != 1 || got[0].Events != 1 || got[0].Zone != bad {
					t.Fatalf("recorded %+v, want one event in %s", got, bad)
				}
				rc = restart(t, u, rc)
				u.ChangeObject("us-east-1-0", nil)
				u.ChangeObject("us-east-1-1", nil)
				u.reconcileFor(t, rc, time.Minute, always)
				for _, o := range u.Objects() {
					if o.Kind == provision.KindReplica && o.Offering.Capacity == "spot" && o.Offering.Zone == bad {
						t.Errorf("%s was launched in %s, where a machine was interrupted", o.ID, bad)
					}
				}
			})
		})
	}
}

// spotRecord returns the history of spot machines in the store.
func (u *reconcilerWorld) spotRecord(t *testing.T) (r provision.SpotRecord) {
	t.Helper()
	if err := json.Unmarshal([]byte(u.store.values["spot"]), &r); err != nil {
		t.Fatal(err)
	}
	return r
}
