package aws_test

import (
	"slices"
	"sync/atomic"
	"testing"

	"skyserve/provision"
	"skyserve/provision/fakecloud"
)

// A role that somebody gave more than it had goes all the same.
func TestARoleGoesWithWhatItWasGiven(t *testing.T) {
	for _, unseen := range []int{0, 2} {
		cloud := newCloud(&fakecloud.Faults{Unseen: unseen})
		p := open(t, cloud)
		w := roleFor(provision.KindBalancer, provision.GrantOperate)
		o, err := p.Launch(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		cloud.Attach(o.Handle, "AmazonSSMManagedInstanceCore")
		cloud.Grant(o.Handle, "by-hand", `{"Statement":[]}`)
		if err := p.Terminate(t.Context(), o); err != nil {
			t.Error(err)
		}
		if left := cloud.Left(); len(left) != 0 {
			t.Errorf("there is still %q", left)
		}
	}
}

// Two who change one role at once are told to try again, and do.
func TestTwoWhoChangeOneRole(t *testing.T) {
	cloud := newCloud(nil)
	var refused atomic.Int32
	cloud.Deny = func(_, action string) string {
		if changes := []string{"iam:PutRolePolicy", "iam:DeleteRole", "iam:DeleteInstanceProfile"}; slices.Contains(changes, action) && refused.Add(1)%2 == 1 {
			return "ConcurrentModification"
		}
		return ""
	}
	p := open(t, cloud)
	o, err := p.Launch(t.Context(), roleFor(provision.KindBalancer, provision.GrantOperate))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Terminate(t.Context(), o); err != nil || len(cloud.Left()) != 0 {
		t.Errorf("%v, and there is %q", err, cloud.Left())
	}
	if refused.Load() < 6 {
		t.Errorf("refused %d calls, want each of three once", refused.Load()/2)
	}
}
