package lbd

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// keyedEngine is an engine that requires a key, as vLLM does: its health is public.
type keyedEngine struct {
	*engine
	mu       sync.Mutex
	key      string // empty = it requires none
	received map[string][]string
}

// newKeyedEngine starts an engine that records the credentials of all requests by their path.
func newKeyedEngine(t *testing.T, key string) *keyedEngine {
	k := &keyedEngine{engine: newEngine(t, "llama", ""), key: key, received: map[string][]string{}}
	inner := k.Config.Handler
	k.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := r.Header.Get("Authorization")
		k.mu.Lock()
		want := k.key
		if !slices.Contains(k.received[r.URL.Path], got) {
			k.received[r.URL.Path] = append(k.received[r.URL.Path], got)
		}
		k.mu.Unlock()
		if want != "" && strings.HasPrefix(r.URL.Path, "/v1/") && got != "Bearer "+want {
			http.Error(w, `{"error":"Unauthorized"}`, http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	})
	return k
}

// requireKey changes the key of the engine.
func (k *keyedEngine) requireKey(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.key = key
}

// credentials returns the different credentials that the engine received at a path.
func (k *keyedEngine) credentials(path string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.received[path])
}

// Probes and requests carry the key of their replica. No other replica receives it, and a replica
// without a key receives the client's credentials.
func TestEachReplicaReceivesItsOwnKey(t *testing.T) {
	t.Setenv("FIRST_ENGINE", "sk-first-engine\n")
	t.Setenv("SECOND_ENGINE", "sk-second-engine")
	first, second, open := newKeyedEngine(t, "sk-first-engine"), newKeyedEngine(t, "sk-second-engine"), newKeyedEngine(t, "")
	n := start(t, config("lb", "local/us",
		service.ReplicaConfig{ID: "us-0", URL: first.URL, APIKey: "env:FIRST_ENGINE"}, // its model is found with the key
		service.ReplicaConfig{ID: "us-1", URL: second.URL, Model: "llama", APIKey: "env:SECOND_ENGINE"},
		service.ReplicaConfig{ID: "us-2", URL: open.URL, Model: "llama"},
	), Options{})
	hc := client(t)
	served := func(id string) bool {
		return ask(t, hc, n.public, "llama", "Authorization", "Bearer sk-client").header.Get("X-Skyserve-Replica") == id
	}
	for _, id := range []string{"us-0", "us-1", "us-2"} {
		testkit.Eventually(t, id+" is ready", func() bool { return n.worker(t, id).State == service.StateReady })
	}
	for _, id := range []string{"us-0", "us-1", "us-2"} {
		for _, other := range []string{"us-0", "us-1", "us-2"} {
			if other != id {
				if err := n.admin.DrainWorker(context.Background(), other, ""); err != nil {
					t.Fatal(err)
				}
			}
		}
		testkit.Eventually(t, id+" serves", func() bool { return served(id) })
		for _, other := range []string{"us-0", "us-1", "us-2"} {
			if _, err := n.admin.AddWorker(context.Background(), n.worker(t, other).ReplicaConfig); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name   string
		engine *keyedEngine
		probes string
		chats  string
	}{
		{"first", first, "Bearer sk-first-engine", "Bearer sk-first-engine"},
		{"second", second, "Bearer sk-second-engine", "Bearer sk-second-engine"},
		{"open", open, "", "Bearer sk-client"},
	} {
		for path, want := range map[string]string{"/v1/models": c.probes, "/metrics": c.probes, "/v1/chat/completions": c.chats} {
			if got := c.engine.credentials(path); !slices.Equal(got, []string{want}) {
				t.Errorf("%s engine: %s received %q, want only %q", c.name, path, got, want)
			}
		}
	}
}

// A replica that redirects does not make the balancer send its key to another host.
func TestKeyDoesNotFollowRedirects(t *testing.T) {
	t.Setenv("REDIRECTING_ENGINE", "sk-engine")
	other := newKeyedEngine(t, "")
	redirecting := httptest.NewServer(http.RedirectHandler(other.URL+"/v1/models", http.StatusTemporaryRedirect))
	defer redirecting.Close()
	n := start(t, config("lb", "local/us", service.ReplicaConfig{ID: "us-0", URL: redirecting.URL, Model: "llama", APIKey: "env:REDIRECTING_ENGINE"}), Options{})
	testkit.Eventually(t, "the replica is rejected", func() bool { return strings.Contains(n.worker(t, "us-0").Reason, "307") })
	if got := other.credentials("/v1/models"); len(got) > 0 {
		t.Errorf("the other host received %q", got)
	}
}

// The reason of a replica whose key is wrong or missing names the status and the source of the key,
// never the key.
func TestReasonOfRejectedKeys(t *testing.T) {
	t.Setenv("WRONG_KEY", "sk-wrong-key")
	e, log := newKeyedEngine(t, "sk-engine"), &lines{}
	n := start(t, config("lb", "local/us",
		service.ReplicaConfig{ID: "us-0", URL: e.URL, Model: "llama", APIKey: "env:WRONG_KEY"},
		service.ReplicaConfig{ID: "us-1", URL: e.URL + "/", Model: "llama"},
	), Options{Logger: log.logger()})
	for id, want := range map[string]string{
		"us-0": "GET /v1/models returned 401 Unauthorized: the engine rejects the key from env:WRONG_KEY",
		"us-1": "GET /v1/models returned 401 Unauthorized: the engine requires an API key, and none is configured: set api_key in service.yaml, or --replica-key of 'skyserve lb'",
	} {
		testkit.Eventually(t, id+" has its reason", func() bool { return n.worker(t, id).Reason == want })
	}
	if text := log.String(); strings.Contains(text, "sk-wrong-key") {
		t.Errorf("the log contains the key:\n%s", text)
	}
}

// A reload replaces a key from a file while the balancer runs. A replica that stops accepting its key
// is not ready, although its health and its metrics need no key.
func TestReloadReplacesEngineKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	write(t, file, "sk-one\n")
	e := newKeyedEngine(t, "sk-one")
	cfg := config("lb", "local/us", service.ReplicaConfig{ID: "us-0", URL: e.URL, Model: "llama", APIKey: "file:" + file})
	cfg.Balancer.MaxWait = time.Second // a request that arrives after the only replica left is rejected after it
	f := startFiled(t, cfg, Options{})
	hc := client(t)
	testkit.Eventually(t, "the replica is ready", func() bool { return f.worker(t, "us-0").State == service.StateReady })
	e.requireKey("sk-two")
	testkit.Eventually(t, "the replica is not ready", func() bool {
		if f.worker(t, "us-0").State == service.StateReady {
			if got := ask(t, hc, f.public, "llama"); got.status == http.StatusUnauthorized || strings.Contains(got.body, "sk-") {
				t.Errorf("the client received %d %s", got.status, got.body)
			}
		}
		w := f.worker(t, "us-0")
		return w.State == service.StateNotReady && strings.Contains(w.Reason, "rejects the key from file:"+file)
	})
	testkit.Eventually(t, "an alert says to set the key", func() bool {
		return slices.ContainsFunc(f.snapshot(t).Alerts, func(a telemetry.Alert) bool {
			return a.Object == "us-0" && strings.HasPrefix(a.NextStep, "set the key of the engine with --replica-key")
		})
	})
	write(t, file, "sk-two\n")
	if done := f.reload(); !slices.Contains(done.Changed, "replicas: us-0: the API key") || strings.Contains(fmt.Sprint(done), "sk-") {
		t.Errorf("changed %q", done.Changed)
	}
	testkit.Eventually(t, "the replica is ready again", func() bool { return f.worker(t, "us-0").State == service.StateReady })
	if got := ask(t, hc, f.public, "llama"); got.status != http.StatusOK {
		t.Errorf("the client received %d %s", got.status, got.body)
	}
	if done := f.reload(); len(done.Changed) != 0 {
		t.Errorf("a second reload changed %q", done.Changed)
	}
	write(t, file, "two\nlines\n")
	if got := f.refused(); !strings.Contains(got, "replicas[0].api_key: reading file:"+file+": must contain one key in one line") {
		t.Errorf("refused with %q", got)
	}
}

// The admin API accepts a key, which it never returns, and a source only for the engine that the
// configuration names with it: otherwise it would send any key or file of the balancer to any host.
func TestAdminAPIAcceptsKeys(t *testing.T) {
	t.Setenv("STANDBY_KEY", "sk-standby")
	file := filepath.Join(t.TempDir(), "private")
	write(t, file, "private-text")
	e, standby, legacy := newKeyedEngine(t, "sk-given"), newKeyedEngine(t, "sk-standby"), newKeyedEngine(t, "sk-legacy")
	cfg := config("lb", "local/us")
	cfg.EngineKeys = []service.EngineKey{{APIKey: "env:STANDBY_KEY", URL: standby.URL}, {APIKey: "env:STANDBY_KEY"}}
	log := &lines{}
	n := start(t, cfg, Options{Logger: log.logger()})
	hc := client(t)
	post := func(path, body string) (int, string) {
		res, err := hc.Post(n.adminURL+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(text)
	}
	for _, c := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"/workers", fmt.Sprintf(`{"id":"us-0","url":%q,"api_key":"sk-given"}`, e.URL), http.StatusCreated, ""},
		{"/workers", fmt.Sprintf(`{"id":"us-0","url":%q}`, e.URL), http.StatusOK, ""}, // it keeps its key
		{"/workers", fmt.Sprintf(`{"id":"us-1","url":%q,"api_key":"env:STANDBY_KEY"}`, standby.URL), http.StatusCreated, ""},
		{"/add_worker?api_key=sk-legacy&url=" + legacy.URL, "", http.StatusCreated, ""},
		{"/workers", fmt.Sprintf(`{"id":"us-3","url":%q,"api_key":"file:%s"}`, e.URL, file), http.StatusBadRequest, "does not allow the source file:" + file},
		{"/workers", fmt.Sprintf(`{"id":"us-3","url":%q,"api_key":"env:STANDBY_KEY"}`, e.URL), http.StatusBadRequest, "does not allow the source env:STANDBY_KEY for " + e.URL},
		{"/add_worker?api_key=env:STANDBY_KEY&url=" + e.URL, "", http.StatusBadRequest, "does not allow the source env:STANDBY_KEY"},
		{"/workers", fmt.Sprintf(`{"id":"us-3","url":%q,"api_key":"sk two"}`, e.URL), http.StatusBadRequest, "api_key: must contain one key and nothing else"},
	} {
		if status, text := post(c.path, c.body); status != c.status || !strings.Contains(text, c.want) || strings.Contains(text, "sk-") {
			t.Errorf("POST %s %s: got %d %s, want %d %s", c.path, c.body, status, text, c.status, c.want)
		}
	}
	legacyID := strings.TrimPrefix(legacy.URL, "http://")
	for _, id := range []string{"us-0", "us-1", legacyID} {
		testkit.Eventually(t, id+" is ready", func() bool { return n.worker(t, id).State == service.StateReady })
	}
	if got := n.worker(t, "us-1").APIKey; got != "env:STANDBY_KEY" {
		t.Errorf("the source of us-1 is listed as %q", got)
	}
	for _, path := range []string{"/workers", "/list_workers", "/v1/snapshot", "/metrics"} {
		res, err := hc.Get(n.adminURL + path)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		for _, key := range []string{"sk-given", "sk-standby", "sk-legacy"} {
			if strings.Contains(string(text), key) || strings.Contains(log.String(), key) {
				t.Errorf("GET %s or the log contains %s", path, key)
			}
		}
	}
}

// A replica at another URL is another process: it does not receive the key of the former one.
func TestKeyIsBoundToURL(t *testing.T) {
	e, other := newKeyedEngine(t, "sk-given"), newKeyedEngine(t, "")
	n := start(t, config("lb", "local/us"), Options{})
	for _, r := range []service.ReplicaConfig{{ID: "us-0", URL: e.URL, APIKey: "sk-given"}, {ID: "us-0", URL: other.URL}} {
		if _, err := n.admin.AddWorker(context.Background(), r); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the replica is ready", func() bool { w := n.worker(t, "us-0"); return w.URL == r.URL && w.State == service.StateReady })
	}
	if got := other.credentials("/v1/models"); !slices.Equal(got, []string{""}) {
		t.Errorf("the new replica received %q", got)
	}
}

func TestMissingEngineKeysAreErrors(t *testing.T) {
	t.Setenv("EMPTY_KEY", " \n")
	missing := filepath.Join(t.TempDir(), "missing")
	for source, want := range map[string]string{
		"env:NOT_SET_ANYWHERE": "replicas[0].api_key: environment variable NOT_SET_ANYWHERE is not set",
		"env:EMPTY_KEY":        "replicas[0].api_key: reading env:EMPTY_KEY: contains no key",
		"file:" + missing:      "replicas[0].api_key: open " + missing + ": " + os.ErrNotExist.Error(),
		"sk-the-key-itself":    "replicas[0].api_key: must be env:NAME or file:PATH",
	} {
		cfg := config("lb", "local/us", service.ReplicaConfig{ID: "us-0", URL: "http://127.0.0.1:1", APIKey: source})
		cfg.Service, cfg.Listen, cfg.Admin = "chat", "127.0.0.1:0", "127.0.0.1:0"
		err := Run(t.Context(), cfg, Options{})
		if err == nil || !strings.HasPrefix(strings.ReplaceAll(err.Error(), "no such file or directory", os.ErrNotExist.Error()), want) {
			t.Errorf("%s: got %v, want %s", source, err, want)
		}
	}
}

// The key of a DNS name is for each of its addresses, because whoever answers for the name is the
// engine that the operator named.
func TestReplicasOfDNSNameReceiveItsKey(t *testing.T) {
	e := newKeyedEngine(t, "sk-engine")
	_, port, err := net.SplitHostPort(hostOf(t, e.URL))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("ENGINE_KEY", "sk-engine")
	resolver := &fixedResolver{}
	resolver.set(nil, "127.0.0.1")
	name := service.ReplicaConfig{URL: "dns+http://engines.example.com:" + port, APIKey: "env:ENGINE_KEY"}
	f := startFiled(t, config("lb-us-0", "local/us", name), Options{Resolver: resolver})
	ready(t, f.node)
	if got := f.origins(t); len(got) != 1 {
		t.Errorf("attached %v", got)
	}
}
