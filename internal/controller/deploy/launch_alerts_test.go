package deploy_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// One alert names all replicas of a region that its cloud refuses to launch, with the cloud's code and the next
// step, also while their offerings are not tried again. It ends when they are launched.
func TestRefusedLaunchesRaiseAnAlert(t *testing.T) {
	for name, c := range map[string]struct {
		scope         provision.CapacityScope
		code          string
		says, advises string
	}{
		"quota":    {provision.ScopeQuota, "VcpuLimitExceeded", "the quota is exhausted", "raise the quota"},
		"capacity": {provision.ScopeZone, "InsufficientInstanceCapacity", "no capacity", "launches are repeated"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u, rc := newBoundedWorld(t)
				u.CapacityError = func(o provision.Offering) *provision.CapacityError {
					return &provision.CapacityError{Offering: o, Scope: c.scope, Code: c.code, Err: errors.New("refused")}
				}
				for _, id := range u.replicas() {
					u.ChangeObject(id, func(o *provision.Object) { o.TerminatedReason = "interrupted" })
				}
				launchAlerts := func() (found []telemetry.Alert) {
					for _, a := range rc.Alerts() {
						if a.Kind == telemetry.AlertLaunch {
							found = append(found, a)
						}
					}
					return found
				}
				for range 3 {
					u.reconcileEvery(t, rc, 30*time.Second, 4*time.Minute)
					found := launchAlerts()
					if len(found) != 1 {
						t.Fatalf("alerts %+v", found)
					}
					a := found[0]
					for _, want := range []string{"us-east-1-0", "us-east-1-1", c.says, c.code, "g6.xlarge"} {
						if !strings.Contains(a.Message, want) {
							t.Errorf("%q does not contain %q", a.Message, want)
						}
					}
					if a.Object != "aws/us-east-1" || a.Severity != telemetry.SeverityWarning || !strings.Contains(a.NextStep, c.advises) {
						t.Errorf("alert %+v", a)
					}
				}
				u.CapacityError = nil
				u.reconcileEvery(t, rc, 30*time.Second, 11*time.Minute)
				if found := launchAlerts(); len(found) > 0 || len(u.replicas()) != 2 {
					t.Errorf("with %v replicas, the alerts are %+v", u.replicas(), found)
				}
			})
		})
	}
}
