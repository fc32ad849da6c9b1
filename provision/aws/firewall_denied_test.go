package aws_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/aws"
)

// The firewall of replicas waits for the group of balancers, which is created at the same time. If that is denied, it
// waits no longer.
func TestDeniedFirewallEndsTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := newCloud(&testcloud.Faults{DuringCall: func(testcloud.Call) { time.Sleep(20 * time.Millisecond) }})
		cloud.DenialCode = func(_, action string) string {
			if action == "ec2:CreateSecurityGroup" {
				return "UnauthorizedOperation"
			}
			return ""
		}
		c := config(cloud, "us-east-1")
		c.Poll, c.OneRegion = 2*time.Second, true
		p, err := aws.New(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		var launches sync.WaitGroup
		for _, w := range []provision.Desired{
			firewall(east, provision.RoleReplica, provision.FirewallRule{Port: 8300, From: provision.FromBalancers}),
			firewall(east, provision.RoleBalancer, provision.FirewallRule{Port: 8000}),
		} {
			launches.Go(func() {
				var denied *provision.CredentialsError
				if _, err := p.Launch(t.Context(), w); !errors.As(err, &denied) || denied.Action != "ec2:CreateSecurityGroup" {
					t.Errorf("%s: got %v, want the denied action", w.ID, err)
				}
			})
		}
		launches.Wait()
		if took := time.Since(begun); took > 5*time.Second { // of the bubble
			t.Errorf("took %v", took)
		}
	})
}
