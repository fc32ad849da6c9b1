package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/telemetry"
)

// slowHost is a host that pulls an image in a time, beside a store that sends files in another.
func slowHost(t *testing.T, pull, fetch time.Duration) *System {
	t.Helper()
	_, s := newFakeHost(t)
	var mu sync.Mutex
	call := s.Call
	s.Call = func(ctx context.Context, program string, args ...string) (string, error) {
		if program == "docker" && args[0] == "pull" {
			if err := sleep(ctx, pull); err != nil {
				return "", err
			}
		}
		mu.Lock()
		defer mu.Unlock()
		return call(ctx, program, args...)
	}
	s.FetchBucket = func(ctx context.Context, from, dir string, report func(telemetry.ByteCount)) error {
		report(telemetry.ByteCount{Total: 16e9})
		if strings.Contains(from, "missing") {
			return errors.New("listing s3://missing/a: no objects found")
		}
		return sleep(ctx, fetch)
	}
	return s
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// The image is pulled while weights are downloaded: an engine starts after the longer of them.
func TestImageAndWeightsArriveTogether(t *testing.T) {
	const pull, fetch = 4 * time.Minute, 3 * time.Minute
	synctest.Test(t, func(t *testing.T) {
		s := slowHost(t, pull, fetch)
		var mu sync.Mutex
		var reported []string
		start := time.Now()
		u := container
		u.Weights = &Weights{Source: "s3://models/llama", MountPath: "/weights"}
		_, err := s.Start(t.Context(), u, func(p Progress) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, string(p.Phase)+" "+p.Reason)
		})
		if took := time.Since(start); err != nil || took != max(pull, fetch) {
			t.Errorf("started after %s, want %s (%v)", took, max(pull, fetch), err)
		}
		if both := "image " + container.Image + "; weights: 0.0 of 16.0 GB"; !slices.Contains(reported, both) {
			t.Errorf("reported %q, want %q among them", reported, both)
		}
	})
}

// A download that fails ends the pull, and the engine is not started.
func TestFailedDownloadEndsThePull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowHost(t, time.Hour, 0)
		u := container
		u.Weights = &Weights{Source: "s3://missing/a", MountPath: "/weights"}
		start := time.Now()
		started, err := s.Start(t.Context(), u, func(Progress) {})
		if err == nil || started || !strings.Contains(err.Error(), "no objects found") || time.Since(start) != 0 {
			t.Errorf("started %v after %s (%v)", started, time.Since(start), err)
		}
	})
}

// Adapters are mounted read-only, and vLLM receives the highest rank that they need.
func TestSystemFetchesAdapters(t *testing.T) {
	for _, tt := range []struct {
		name    string
		configs []string // adapter_config.json of each adapter; empty = there is none
		want    string   // the end of the command, or the error
	}{
		{"small", []string{`{"r": 4}`}, "--model m --max-lora-rank 8"},
		{"the highest", []string{`{"r": 16}`, `{"r": 48}`}, "--model m --max-lora-rank 64"},
		{"of a layer", []string{`{"r": 8, "rank_pattern": {"q_proj": 32}}`}, "--model m --max-lora-rank 32"},
		{"no configuration", []string{`{"r": 8}`, ""}, "adapter a1: s3://loras/1: contains no adapter_config.json; set source to the folder or repository of a PEFT adapter"},
		{"not JSON", []string{"x"}, "adapter a0: s3://loras/0: parsing adapter_config.json: "},
		{"no rank", []string{"{}"}, "adapter a0: s3://loras/0: adapter_config.json: r must be at least 1, got 0"},
		{"too high", []string{`{"r": 1024}`}, "the rank of an adapter must be at most 512, got 1024"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, s := newFakeHost(t)
			s.FetchBucket = func(_ context.Context, from, dir string, _ func(telemetry.ByteCount)) error {
				config := tt.configs[from[len(from)-1]-'0']
				if config == "" {
					return nil
				}
				if err := os.MkdirAll(dir, 0o700); err != nil {
					return err
				}
				return os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte(config), 0o600)
			}
			u := container
			u.LoRARankFlag = "--max-lora-rank"
			for i := range tt.configs {
				u.Adapters = append(u.Adapters, Adapter{Name: fmt.Sprintf("a%d", i), Source: fmt.Sprintf("s3://loras/%d", i), MountPath: fmt.Sprintf("/adapters/%d", i)})
			}
			if err := (Deployment{Units: []Unit{u}}).Check(); err != nil {
				t.Fatal(err)
			}
			started, err := s.Start(t.Context(), u, func(Progress) {})
			last := m.calls[len(m.calls)-1]
			if started && !strings.Contains(last, ":/adapters/0:ro ") {
				t.Errorf("the adapter is not mounted: %s", last)
			}
			if err != nil {
				last = err.Error()
			}
			if started != strings.HasPrefix(tt.want, "--") || !strings.Contains(last, tt.want) {
				t.Errorf("started %v: %s, want %s", started, last, tt.want)
			}
		})
	}
}

// hub emulates the parts of the Hugging Face hub's API that its clients use: the list of a revision, and
// files by commit, with a redirect to another host.
func hub(t *testing.T, token string, files map[string]string) *hubRepo {
	t.Helper()
	storage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the token was sent to the storage")
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(files[strings.TrimPrefix(r.URL.Path, "/")]))
	}))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if file, ok := strings.CutPrefix(r.URL.Path, "/org/sql/resolve/c0ffee/"); ok {
			http.Redirect(w, r, strings.Replace(storage.URL, "127.0.0.1", "localhost", 1)+"/"+file, http.StatusFound)
			return
		}
		if r.URL.Path != "/api/models/org/sql/revision/main" || r.URL.RawQuery != "blobs=true" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		type sibling struct {
			Name string `json:"rfilename"`
			Size int    `json:"size"`
		}
		var siblings []sibling
		for name, text := range files {
			siblings = append(siblings, sibling{name, len(text)})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"sha": "c0ffee", "lastModified": "2026-01-02T03:04:05.000Z", "siblings": siblings})
	}))
	t.Cleanup(storage.Close)
	t.Cleanup(server.Close)
	return &hubRepo{name: "org/sql", endpoint: server.URL, client: server.Client()}
}

// An adapter is downloaded from the hub, with the token of its secrets, which storage never receives.
func TestFetchAdapterFromHub(t *testing.T) {
	files := map[string]string{"adapter_config.json": `{"r": 8}`, "adapter_model.safetensors": "weights", "extra/a b.txt": "x"}
	repo := hub(t, "Bearer hunter2", files)
	dir := t.TempDir()
	fetch := func() error {
		return fetcher{repo, time.Nanosecond}.fetchAll(t.Context(), HubScheme+repo.name, dir, func(telemetry.ByteCount) {})
	}
	if err := fetch(); err == nil || !strings.Contains(err.Error(), "listing hf://org/sql: ") || !strings.Contains(err.Error(), "secrets: {HF_TOKEN: env:HF_TOKEN}") {
		t.Errorf("without its token: %v", err)
	}
	repo.token = "hunter2"
	if err := fetch(); err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q (%v)", name, got, err)
		}
	}
	if rank, err := adapterRank(dir); err != nil || rank != 8 {
		t.Errorf("rank %d (%v)", rank, err)
	}
}

// An adapter of another kind of source, or at a path that changes the mount, is rejected.
func TestDeploymentRejectsInvalidAdapters(t *testing.T) {
	for _, a := range []Adapter{{"a", "http://x/y", "/a"}, {"a", "hf://x", "/a"}, {"a", "hf://x/../y", "/a"}, {"a", "s3://x", "/a"}, {"a", "s3://x/y", "a"}, {"a", "s3://x/y", "/a:/b"}, {"", "s3://x/y", "/a"}} {
		u := container
		u.Adapters = []Adapter{a}
		if err := (Deployment{Units: []Unit{u}}).Check(); err == nil || !strings.Contains(err.Error(), "adapters[0] must be from ") {
			t.Errorf("%+v: %v", a, err)
		}
	}
}

// Further ports are published on loopback. Other ports, and paths that change the mount, are rejected.
func TestContainerMountsAndPorts(t *testing.T) {
	m, s := newFakeHost(t)
	u := container
	u.MorePorts = []int{5557, 5558}
	if _, err := s.Start(t.Context(), u, func(Progress) {}); err != nil {
		t.Fatal(err)
	}
	run := m.calls[len(m.calls)-1]
	if want := " --publish 127.0.0.1:5557:5557 --publish 127.0.0.1:5558:5558 "; !strings.Contains(run, want) {
		t.Errorf("%s lacks %s", run, want)
	}
	for problem, change := range map[string]func(*Unit){
		"compiled must be absolute paths in a container": func(u *Unit) { u.CompileCaches = []string{"/a:/b"} },
		"more_ports must be 1 to 65535":                  func(u *Unit) { u.MorePorts = []int{0} },
	} {
		u := container
		change(&u)
		if err := (Deployment{Units: []Unit{u}}).Check(); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v", problem, err)
		}
	}
}
