package deploy_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/provision"
)

const localBalancers = `
name: chat
models: [{name: org/m, engine: {kind: sim}}]
regions:
  - {name: local/us, replicas: {min: 0, max: 1}}
  - {name: local/eu, replicas: {min: 0, max: 1}}
  - {name: local/asia, replicas: {min: 0, max: 1}}
`

// The leader starts a balancer on this computer that has ended, or whose record is gone, without a person. One that ends
// again and again is started at growing intervals, and at once when it ends after it has run for hours.
func TestLocalBalancersAreRestarted(t *testing.T) {
	t.Parallel()
	const id = "lb-eu-0"
	for what, lose := range map[string]func(n *controlWorld){
		"it ended": func(n *controlWorld) {
			n.ChangeObject(id, func(o *provision.Object) { o.TerminatedReason = "stopped" })
		},
		"its record is gone": func(n *controlWorld) { n.ChangeObject(id, nil) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newControlWorld(t, localBalancers)
				rc := n.controller()
				n.reconcileFor(t, rc, time.Minute, always)
				lose(n)
				n.reconcileFor(t, rc, 10*time.Second, always)
				if len(n.balancers(id)) != 1 || len(n.balancers("")) != 3 {
					t.Fatalf("there is %+v", n.balancers(""))
				}
				if !slices.ContainsFunc(n.lines(id), func(line string) bool { return strings.HasPrefix(line, "controller launch: ") }) {
					t.Errorf("events %q", n.lines(id))
				}
				starts := 1
				for range 60 {
					if len(n.balancers(id)) == 1 {
						starts++
						lose(n)
					}
					n.reconcileFor(t, rc, 30*time.Second, always)
				}
				if starts < 6 || starts > 15 {
					t.Errorf("it was started %d times within half an hour, want 6 to 15", starts)
				}
				n.reconcileFor(t, rc, 2*time.Hour, always)
				lose(n)
				n.reconcileFor(t, rc, 10*time.Second, always)
				if len(n.balancers(id)) != 1 {
					t.Error("it was not started at once after it had run for two hours")
				}
			})
		})
	}
}

// A leader that has lost its lease starts no balancer.
func TestLocalBalancerNeedsTheLease(t *testing.T) {
	const id = "lb-eu-0"
	synctest.Test(t, func(t *testing.T) {
		n := newControlWorld(t, localBalancers)
		rc := n.controller()
		n.reconcileFor(t, rc, time.Minute, always)
		n.ChangeObject(id, func(o *provision.Object) { o.TerminatedReason = "stopped" })
		n.reconcileFor(t, rc, time.Minute, func() error { return errors.New("superseded") })
		if len(n.balancers(id)) != 0 {
			t.Errorf("there is %+v", n.balancers(id))
		}
	})
}
