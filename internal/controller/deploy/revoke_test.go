package deploy

import (
	"path/filepath"
	"testing"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/provision"
)

// A controller delivers the newest revocation list, which its machine's agent received, to machines
// with an older one, and changes nothing else there.
func TestControllerDeliversRevocationLists(t *testing.T) {
	dir := t.TempDir()
	a, err := identity.Home{Dir: filepath.Join(dir, "home")}.Create("chat", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	rc := &Reconciler{Dir: filepath.Join(dir, "controller")}
	if none, err := rc.revoked(a.Root()); err != nil || none.Number() != 0 {
		t.Errorf("before the first list: %d, %v", none.Number(), err)
	}
	list, err := a.Revoke(identity.Revoked{}, nil, time.Now())
	if err == nil {
		list, err = a.Revoke(list, nil, time.Now())
	}
	if err == nil {
		err = identity.WriteFile(filepath.Join(dir, agent.FileRevoked), list.Text())
	}
	if err != nil {
		t.Fatal(err)
	}
	dl := &Delivery{Authority: a}
	if dl.Revoked, err = rc.revoked(a.Root()); err != nil || dl.Revoked.Number() != 2 {
		t.Fatalf("list %d, %v", dl.Revoked.Number(), err)
	}
	wanted := map[string]agent.Deployment{"us-0": {Revision: "new"}}
	for _, tt := range []struct {
		name string
		seen agent.Status
		due  bool
	}{
		{"the newest", agent.Status{Enrolled: true, Revoked: 2}, false},
		{"an older one", agent.Status{Enrolled: true, Revoked: 1}, true},
		{"none", agent.Status{Enrolled: true}, true},
		{"not enrolled", agent.Status{}, false},
		{"a newer one", agent.Status{Enrolled: true, Revoked: 3}, false},
	} {
		tt.seen.Revision, tt.seen.Expires = "old", time.Now().Add(identity.CertificateLife)
		d, due := dl.dueDeployment(AgentReport{Status: tt.seen}, provision.Object{ID: "us-0", Kind: provision.KindReplica}, wanted)
		if due != tt.due || due && d.Revision != "old" {
			t.Errorf("%s: due %v, revision %s", tt.name, due, d.Revision)
		}
	}
}
