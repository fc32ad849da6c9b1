package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"skyserve/provision/local"
)

// The operator's keys are deleted last: until then, another down can find what runs in clouds.
func TestDownDeletesKeysLast(t *testing.T) {
	t.Setenv("SKYSERVE_HOME", t.TempDir())
	home, err := local.OpenHome()
	if err != nil {
		t.Fatal(err)
	}
	svc, err := home.Service("chat")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := identityOf(svc).Create("chat", time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(svc.SpecFile(), []byte("name: chat\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inUse := filepath.Join(svc.Dir(), dirIdentity, "operator.pem") // a directory that is not empty cannot be deleted as a file
	if err := os.MkdirAll(filepath.Join(inUse, "in use"), 0o700); err != nil {
		t.Fatal(err)
	}
	d := &down{svc: svc}
	if remaining := d.deleteState(t.Context()); len(remaining) == 0 {
		t.Error("nothing remains")
	}
	if _, err := os.Stat(svc.SpecFile()); err == nil {
		t.Error("service.yaml remains")
	}
	if _, err := identityOf(svc).Authority(); err != nil {
		t.Errorf("the authority: %v", err)
	}
	if err := os.RemoveAll(inUse); err != nil {
		t.Fatal(err)
	}
	if remaining := d.deleteState(t.Context()); len(remaining) > 0 {
		t.Errorf("%q remain", remaining)
	}
	if _, err := os.Stat(svc.Dir()); err == nil {
		t.Error("the directory remains")
	}
}
