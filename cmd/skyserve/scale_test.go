package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision/local"
)

// storedService returns a service in a directory of this machine, with this service.yaml unless it is empty.
func storedService(t *testing.T, text string) local.Service {
	t.Helper()
	t.Setenv("SKYSERVE_HOME", t.TempDir())
	home, err := local.OpenHome()
	if err != nil {
		t.Fatal(err)
	}
	svc, err := home.Service("chat")
	if err == nil {
		err = os.MkdirAll(svc.Dir(), 0o700)
	}
	if err == nil && text != "" {
		err = svc.StoreSpec([]byte(text))
	}
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// A change of replicas that waits for another command, such as 'up' with another service.yaml, reads nothing before that
// command has ended: otherwise it would deliver the earlier configuration again.
func TestScalingReadsServiceWithLock(t *testing.T) {
	svc := storedService(t, "not a service")
	unlock, err := svc.Lock()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it does not wait
	var busy *local.BusyError
	if _, _, err := openScaling(ctx, "chat", nil, io.Discard, true, cloudFlags{}); !errors.As(err, &busy) {
		t.Errorf("got %v while another command changes the service", err)
	}
	unlock()
	if _, _, err := openScaling(t.Context(), "chat", nil, io.Discard, true, cloudFlags{}); err == nil || errors.As(err, &busy) {
		t.Errorf("got %v, want the errors of service.yaml", err)
	}
	if unlock, err = svc.Lock(); err != nil {
		t.Errorf("the lock is held after an error: %v", err)
	} else {
		unlock()
	}
}

// A change of replicas that waited until another command had deleted the service leaves no service behind.
func TestScalingOfDeletedService(t *testing.T) {
	svc := storedService(t, "")
	if _, _, err := openScaling(t.Context(), "chat", nil, io.Discard, true, cloudFlags{}); err == nil || !strings.Contains(err.Error(), svc.SpecFile()) {
		t.Errorf("got %v, want the missing file", err)
	}
	if _, err := os.Stat(svc.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s remains: %v", svc.Dir(), err)
	}
}

// Commands reject to remove a machine of a static region, so no hint names 'replica remove' for one.
func TestHintForStaticReplicaInCloudService(t *testing.T) {
	var coded *exitError
	if !errors.As(decisionError(deploy.ErrNoStaticDecisions), &coded) || strings.Contains(coded.hint, "remove") || !strings.Contains(coded.hint, "regions[].endpoints") {
		t.Errorf("got %+v", coded)
	}
}

// A service with several models has no default model: the error names them, also if no replica exists.
func TestModelOfReplicaAdd(t *testing.T) {
	one, two := service.Model{Name: "org/m", Aliases: []string{"m"}}, service.Model{Name: "n"}
	for _, tt := range []struct {
		models     []service.Model
		name, want string
	}{
		{[]service.Model{one}, "", "org/m"},
		{[]service.Model{one, two}, "m", "org/m"},
		{[]service.Model{one, two}, "", "--model is required: one of org/m, m, n"},
		{[]service.Model{one, two}, "x", `--model: must be one of org/m, m, n, got "x"`},
	} {
		m, err := chooseModel(&service.Spec{Models: tt.models}, tt.name)
		got := fmt.Sprint(err)
		if err == nil {
			got = m.Name
		}
		if got != tt.want {
			t.Errorf("%d models, %q: got %s, want %s", len(tt.models), tt.name, got, tt.want)
		}
	}
}
