package agent

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skyserve/internal/identity"
)

var replicaName = identity.Name{Service: "chat", Role: identity.Replica, ID: "us-0"}

func TestConsolePublishesFingerprint(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console")
	if err := os.WriteFile(path, []byte("[   12.3] cloud-init: half a li"), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func() string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if f, found := FindConsoleLine(read(), replicaName); found {
		t.Errorf("found %q before it was published", f)
	}
	old, fingerprint := strings.Repeat("a", 52), strings.Repeat("b", 52)
	other := replicaName
	other.ID = "us-01"
	for _, line := range []struct {
		name identity.Name
		text string
	}{{replicaName, old}, {replicaName, fingerprint}, {other, old}} {
		if err := (Console{path}).Publish(t.Context(), line.name, line.text); err != nil {
			t.Fatal(err)
		}
	}
	if f, found := FindConsoleLine(strings.ReplaceAll(read(), "\n", "\r\n"), replicaName); !found || f != fingerprint {
		t.Errorf("found %q, %v", f, found)
	}
	cut := read()
	if f, _ := FindConsoleLine(cut[:strings.LastIndex(cut, fingerprint)+20], replicaName); f != old {
		t.Errorf("read from half a line: %q", f)
	}
	if err := (Console{t.TempDir()}).Publish(t.Context(), replicaName, old); err == nil {
		t.Error("no error for an unwritable console")
	}
}

// newGCPMetadataServer starts a GCP metadata server and returns the guest attributes that it
// stores.
func newGCPMetadataServer(t *testing.T, preempted string) (*httptest.Server, map[string]string) {
	attributes := map[string]string{}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /computeMetadata/v1/instance/guest-attributes/{namespace}/{key}", func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Metadata-Flavor") != "Google" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		attributes[r.PathValue("namespace")+"/"+r.PathValue("key")] = string(text)
	})
	mux.HandleFunc("GET /computeMetadata/v1/instance/preempted", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Metadata-Flavor") == "Google" {
			_, _ = io.WriteString(w, preempted)
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s, attributes
}

func TestGuestAttributesPublishFingerprint(t *testing.T) {
	s, attributes := newGCPMetadataServer(t, "FALSE")
	if err := (GuestAttributes{s.URL}).Publish(t.Context(), replicaName, "abc"); err != nil || attributes[GuestAttributePath] != "abc" {
		t.Errorf("published %v (%v)", attributes, err)
	}
	s.Close()
	if err := (GuestAttributes{s.URL}).Publish(t.Context(), replicaName, "abc"); err == nil {
		t.Error("no error without a metadata server")
	}
}

func TestInterruptionNotices(t *testing.T) {
	running, _ := newGCPMetadataServer(t, "FALSE\n")
	preempted, _ := newGCPMetadataServer(t, "TRUE\n")
	aws := func(status int, text string) InterruptionPoller {
		mux := http.NewServeMux()
		mux.HandleFunc("PUT /latest/api/token", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "token") })
		mux.HandleFunc("GET /latest/meta-data/spot/instance-action", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-aws-ec2-metadata-token") != "token" {
				status = http.StatusUnauthorized
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		})
		s := httptest.NewServer(mux)
		t.Cleanup(s.Close)
		return PollSpotAWS(s.URL)
	}
	at := time.Date(2026, 3, 1, 12, 2, 0, 0, time.UTC)
	tests := []struct {
		name      string
		notice    InterruptionPoller
		announced bool
		at        time.Time
		fails     bool
	}{
		{"GCP: none", PollPreemptionGCP(running.URL), false, time.Time{}, false},
		{"GCP: preempted", PollPreemptionGCP(preempted.URL), true, time.Time{}, false},
		{"AWS: none", aws(http.StatusNotFound, ""), false, time.Time{}, false},
		{"AWS: interrupted", aws(http.StatusOK, `{"action": "terminate", "time": "2026-03-01T12:02:00Z"}`), true, at, false},
		{"AWS: invalid document", aws(http.StatusOK, "<html>"), false, time.Time{}, true},
		{"AWS: server error", aws(http.StatusInternalServerError, ""), false, time.Time{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			when, announced, err := tt.notice(t.Context())
			if announced != tt.announced || (err != nil) != tt.fails || !tt.at.IsZero() && !when.Equal(tt.at) {
				t.Errorf("announced %v at %s (%v)", announced, when, err)
			}
		})
	}
}

func TestDeploymentValidation(t *testing.T) {
	good := Unit{Name: "engine", Args: []string{"x"}}
	with := func(change func(*Unit)) Deployment {
		u := good
		change(&u)
		return Deployment{Units: []Unit{u}}
	}
	tests := []struct {
		name, want string
		d          Deployment
	}{
		{"valid", "", Deployment{Units: []Unit{good}, Proxy: &Proxy{Listen: ":8443", Upstream: "http://127.0.0.1:8000"}}},
		{"a container", "", Deployment{Units: []Unit{container}}},
		{"name with a path", "units[0].name", with(func(u *Unit) { u.Name = "../x" })},
		{"duplicate name", "units[1].name", Deployment{Units: []Unit{good, good}}},
		{"a container without a port", "units[0].port", with(func(u *Unit) { u.Image = "i" })},
		{"image that is an option", "units[0].image", with(func(u *Unit) { u.Image = "--privileged" })},
		{"file outside the directory", "units[0].files", with(func(u *Unit) { u.Files = map[string]string{"engine/../node.key": ""} })},
		{"a file of another unit", "units[0].files", with(func(u *Unit) { u.Files = map[string]string{"balancer/x": ""} })},
		{"absolute path", "units[0].files", with(func(u *Unit) { u.Files = map[string]string{"/etc/passwd": ""} })},
		{"variable with a newline", "units[0].env.A", with(func(u *Unit) { u.Secrets = map[string]string{"A": "hunter2\nB=2"} })},
		{"invalid variable name", "units[0].env", with(func(u *Unit) { u.Env = map[string]string{"A=B": "1"} })},
		{"readiness URL of another machine", "units[0].ready", with(func(u *Unit) { u.ReadinessURL = "http://10.0.0.1/" })},
		{"proxy to another machine", "proxy.to", Deployment{Proxy: &Proxy{Listen: ":1", Upstream: "http://10.0.0.1"}}},
		{"connections to another machine", "proxy.connect[1]", Deployment{Proxy: &Proxy{Listen: ":1", Upstream: "http://127.0.0.1:1", ConnectTargets: []string{"127.0.0.1:5557", "10.0.0.1:5557"}}}},
		{"invalid proxy address", "proxy.listen", Deployment{Proxy: &Proxy{Listen: "here", Upstream: "http://127.0.0.1:1"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.d.Check()
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error contains a secret: %v", err)
			}
		})
	}
}

func TestConfigValidation(t *testing.T) {
	good := `{"service": "chat", "role": "replica", "id": "us-0", "owner": "` + strings.Repeat("a", 52) + `", "listen": ":8441", "dir": "/var/lib/skyserve", "publish": "console:/dev/console", "notices": "aws"}`
	tests := []struct{ name, old, replacement, want string }{
		{"valid", "", "", ""},
		{"GCP", `"console:/dev/console", "notices": "aws"`, `"guest-attributes", "notices": "gcp", "runner": "exec"`, ""},
		{"unknown role", `"replica"`, `"root"`, "role must be one of"},
		{"no owner", `"owner": "`, `"owner": "a`, "owner must be a fingerprint of 52"},
		{"no listener", `":8441"`, `""`, "listen is required"},
		{"a relative directory", `"/var`, `"var`, "dir must be an absolute path"},
		{"an unknown publisher", "console:/dev/console", "tag", "publish must be guest-attributes"},
		{"an unknown cloud", `"aws"`, `"azure"`, "notices must be one of aws, gcp"},
		{"an unknown runner", `"notices": "aws"`, `"runner": "k8s"`, "runner must be one of system, exec, inside"},
		{"an unknown key", `"notices"`, `"notes"`, `unknown field "notes"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "node.json")
			if err := os.WriteFile(path, []byte(strings.Replace(good, tt.old, tt.replacement, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := ReadConfig(path)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
