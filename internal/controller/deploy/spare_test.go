package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/remote"
)

// A controller that leads on a spare launches balancers through the agents of balancers in the same cloud that may, never
// through another spare, and replicas itself.
func TestSpareReplacesThroughOthers(t *testing.T) {
	const self, lost = "lb-us-east-1-2", "lb-eu-west-1-0"
	synctest.Test(t, func(t *testing.T) {
		n := newControlWorld(t, threeAndTwoSpares)
		n.runsOn(self)
		n.addresses()
		asked, relaying := map[string]bool{}, false
		n.refuse = func(w provision.Desired) error {
			if w.Kind == provision.KindBalancer && !relaying {
				return &provision.CredentialsError{Cloud: service.CloudAWS, Action: "ec2:RunInstances", Err: errors.New("not authorized")}
			}
			return nil
		}
		rc := n.controller()
		rc.SetRelay(func(o provision.Object) remote.CallFunc {
			may := o.ID != self && o.ID != "lb-us-east-1-1"
			h := &remote.Handler{Service: "chat", Owner: n.owner, Balancers: may, Provider: n.reconcilerWorld}
			return func(ctx context.Context, call remote.CallKind, body []byte) ([]byte, error) {
				asked[o.ID], relaying = true, true
				defer func() { relaying = false }()
				return h.Call(ctx, call, body)
			}
		})
		n.reconcileFor(t, rc, time.Minute, always)
		before := n.balancers(lost)[0].Handle
		n.ChangeObject(lost, func(o *provision.Object) { o.TerminatedReason = "host failure" })
		n.reconcileFor(t, rc, time.Minute, always)
		if now := n.balancers(lost); len(now) != 1 || now[0].Handle == before {
			t.Errorf("there is %+v, alerts %+v", now, rc.Alerts())
		}
		if len(asked) == 0 || asked[self] || asked["lb-us-east-1-1"] {
			t.Errorf("it asked %v", asked)
		}
	})
}

// A balancer that was refused for lack of capacity is launched once there is some: the tries one, three and seven minutes
// after the first ask the cloud again in all zones, although replicas skip such an offering for ten minutes.
func TestRefusedBalancerIsLaunchedOnceCapacityReturns(t *testing.T) {
	const lost = "lb-eu-west-1-0"
	for _, tt := range []struct{ without, until time.Duration }{
		{50 * time.Second, 70 * time.Second}, {2 * time.Minute, 200 * time.Second}, {6 * time.Minute, 440 * time.Second},
	} {
		t.Run(tt.without.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newControlWorld(t, fourBalancers)
				rc := n.controller()
				n.reconcileFor(t, rc, time.Minute, always)
				returns := time.Now().Add(tt.without)
				n.refuse = func(w provision.Desired) error {
					if time.Now().Before(returns) {
						return &provision.CapacityError{Offering: w.Offerings[0], Scope: provision.ScopeZone, Code: "InsufficientInstanceCapacity"}
					}
					return nil
				}
				n.ChangeObject(lost, func(o *provision.Object) { o.TerminatedReason = "host failure" })
				n.reconcileFor(t, rc, tt.without-5*time.Second, always)
				n.wantAlert(rc, lost, "InsufficientInstanceCapacity")
				if all := rc.Alerts(); len(all) != 1 || !strings.Contains(all[0].Message, "tries again") {
					t.Errorf("got the alerts %+v", all)
				}
				n.reconcileFor(t, rc, tt.until-tt.without+5*time.Second, always)
				if now := n.balancers(lost); len(now) != 1 || now[0].TerminatedReason != "" {
					t.Errorf("there is %+v, alerts %+v", now, rc.Alerts())
				}
			})
		})
	}
}

// runsOn makes the controller's machine the one of a balancer.
func (n *controlWorld) runsOn(id string) {
	n.t.Helper()
	file := filepath.Join(n.dir, "content.json")
	content := map[string]any{}
	raw, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(raw, &content)
	}
	content["self"] = id
	if err == nil {
		raw, err = json.Marshal(content)
	}
	if err = errors.Join(err, os.WriteFile(file, raw, 0o600)); err != nil {
		n.t.Fatal(err)
	}
}
