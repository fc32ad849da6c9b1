package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/tui"
)

// newTopAdmin serves a snapshot of one region, as a balancer does.
func newTopAdmin(t *testing.T) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/snapshot" {
			http.NotFound(w, r)
			return
		}
		json.NewEncoder(w).Encode(telemetry.Snapshot{Service: "chat", Regions: []telemetry.RegionSnapshot{{
			Name:     "local/us",
			Replicas: []telemetry.ReplicaSnapshot{{ID: "us-0", State: service.StateReady, Outstanding: 3}},
		}}})
	}))
	t.Cleanup(srv.Close)
	return srv
}

// top runs `skyserve top` and returns its output.
func top(t *testing.T, args ...string) (string, error) {
	t.Helper()
	t.Setenv("LC_ALL", "C.UTF-8")
	var out bytes.Buffer
	cmd := newTopCmd()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(context.Background())
	return out.String(), err
}

func TestTopPrintsTextWithoutTerminal(t *testing.T) {
	srv := newTopAdmin(t)
	for _, args := range [][]string{{}, {"--once"}, {"--theme", "dark"}, {"chat"}, {"--ascii"}} {
		out, err := top(t, append(args, "--admin", srv.URL)...)
		if err != nil || !strings.Contains(out, "us-0") || !strings.Contains(out, "local/us") || strings.Contains(out, "\x1b") {
			t.Errorf("%v: got %q, %v", args, out, err)
		}
	}
}

func TestTopPrintsToAFileAsText(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	o := topOptions{admins: []string{newTopAdmin(t).URL}, interval: tui.MinInterval, theme: "dark"}
	if err := runTop(context.Background(), &o, os.Stdin, file, io.Discard); err != nil {
		t.Fatal(err)
	}
	out, err := os.ReadFile(file.Name())
	if err != nil || !bytes.Contains(out, []byte("us-0")) || bytes.Contains(out, []byte("\x1b")) {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestTopPrintsOneSnapshotAsJSON(t *testing.T) {
	out, err := top(t, "-o", "json", "--admin", "http://127.0.0.1:1,"+newTopAdmin(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	dec := json.NewDecoder(strings.NewReader(out))
	if err := dec.Decode(&doc); err != nil || dec.More() {
		t.Fatalf("want one document, got %q, %v", out, err)
	}
	for _, key := range []string{"at", "service", "regions", "forecast", "donations", "plan"} {
		if _, has := doc[key]; !has {
			t.Errorf("the document lacks %q", key)
		}
	}
	replica := doc["regions"].([]any)[0].(map[string]any)["replicas"].([]any)[0].(map[string]any)
	if pending, has := replica["pending"]; !has || pending != nil {
		t.Errorf("an unknown figure is null, got %v", pending)
	}
}

func TestTopRejectsOtherService(t *testing.T) {
	if _, err := top(t, "other", "--once", "--admin", newTopAdmin(t).URL); err == nil || !strings.Contains(err.Error(), `serves "chat", not "other"`) {
		t.Errorf("got %v", err)
	}
}
