package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// Where balancers run but the stored service.yaml is missing or invalid, the error is about the file.
func TestEndpointsNeedTheServiceFile(t *testing.T) {
	balancer := provision.Object{ID: "lb-us-0", Kind: provision.KindBalancer, Region: "local/us", Endpoints: provision.MachineEndpoints{}}
	for text, want := range map[string]string{"": "service.yaml is missing", "name: [\n": "service.yaml:1:7: is not valid YAML"} {
		_, err := endpointsOf(storedService(t, text), []provision.Object{balancer})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "run 'skyserve up' with the service's file") {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	svc := storedService(t, rightFile)
	if _, err := endpointsOf(svc, nil); err == nil || !strings.Contains(err.Error(), "no balancer of chat is running") {
		t.Errorf("without balancers: got %v", err)
	}
	balancer.Address = "127.0.0.1"
	if endpoints, err := endpointsOf(svc, []provision.Object{balancer}); err != nil || len(endpoints) != 1 || endpoints[service.Region("local/us").ShortName()] == "" {
		t.Errorf("got %v, %v", endpoints, err)
	}
}

// Hints name the stored service.yaml only where it exists, which it does not after an `up` that was killed early.
func TestHintsNameAnExistingFile(t *testing.T) {
	for text, want := range map[string]string{"": "SERVICE.yaml", "name: chat\nmodels: [{name: m, engine: {kind: sim}}]\nregions: [{name: local/us}]\n": "services/chat/service.yaml"} {
		svc := storedService(t, text)
		for _, args := range [][]string{{"status", "chat"}, {"events", "chat"}} {
			var out, errOut bytes.Buffer
			execute(t.Context(), args, &out, &errOut)
			printed := out.String() + errOut.String()
			if _, file, found := strings.Cut(printed, "skyserve up "); !found || !strings.HasPrefix(strings.TrimPrefix(file, filepath.Dir(filepath.Dir(svc.Dir()))+"/"), want) {
				t.Errorf("%q with the file %q: printed %q, want a hint with %s", args, text, printed, want)
			}
		}
	}
}

// An address that responds too late may be the right one; an address where nothing listens is not. An error of the balancer
// itself says what to do.
func TestHintsForAdminAddress(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{context.DeadlineExceeded, hintSlowAdmin},
		{refused, hintAdmin},
		{telemetry.ErrNotFound, hintAdmin},
		{&telemetry.StatusError{Status: http.StatusNotFound, Code: "no_store"}, ""},
		{errors.New("no majority"), ""},
	} {
		if got := adminHint([]string{"http://127.0.0.1:8100"}, fmt.Errorf("fetching a snapshot: %w", tt.err)); got != tt.want {
			t.Errorf("%v: got %q, want %q", tt.err, got, tt.want)
		}
		if got := adminHint(nil, tt.err); got != "" {
			t.Errorf("%v without --admin: got %q", tt.err, got)
		}
	}
}
