package lbd

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/sim/engine/server"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// adapterEngine is a simulated engine that counts the requests that it rejected with 404.
type adapterEngine struct {
	*httptest.Server
	rejected atomic.Int64
}

// newAdapterEngine starts an engine of the model base with adapters.
func newAdapterEngine(t *testing.T, adapters ...string) *adapterEngine {
	t.Helper()
	s, err := server.New(server.Options{Model: "base", LoRA: adapters, Speed: 1000})
	if err != nil {
		t.Fatal(err)
	}
	e := &adapterEngine{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := &statusWriter{ResponseWriter: w}
		s.Handler().ServeHTTP(seen, r)
		if seen.status == http.StatusNotFound && r.Method == http.MethodPost {
			e.rejected.Add(1)
		}
	}))
	t.Cleanup(func() {
		e.Close()
		s.Close()
	})
	return e
}

// statusWriter remembers the status of a response.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
func (w *statusWriter) Flush()                      { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// change loads or unloads an adapter.
func (e *adapterEngine) change(t *testing.T, hc *http.Client, action, adapter string) {
	t.Helper()
	res, err := hc.Post(e.URL+"/v1/"+action+"_lora_adapter", "application/json", strings.NewReader(fmt.Sprintf(`{"lora_name":%q,"lora_path":"/loras"}`, adapter)))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(res.Body)
		t.Fatalf("%s %s: %d %s", action, adapter, res.StatusCode, text)
	}
}

// startAdapterEngines starts a balancer with three engines of one model.
func startAdapterEngines(t *testing.T, declared []service.BalancerModel, adapters ...string) (*node, []*adapterEngine) {
	t.Helper()
	cfg := config("lb-us-0", "local/us")
	cfg.Models = declared
	var engines []*adapterEngine
	for i := range 3 {
		e := newAdapterEngine(t, adapters...)
		engines = append(engines, e)
		cfg.Replicas = append(cfg.Replicas, service.ReplicaConfig{ID: fmt.Sprint("us-", i), URL: e.URL})
	}
	n := start(t, cfg, Options{})
	ready(t, n)
	testkit.Eventually(t, "all replicas are ready", func() bool { return n.readyReplicas(t) == 3 })
	return n, engines
}

// askAll sends requests for a model from several clients at once, and counts the responses by replica and
// those that are errors.
func (n *node) askAll(t *testing.T, hc *http.Client, model string, clients, requests int) (byReplica map[string]int, failed int) {
	t.Helper()
	byReplica = map[string]int{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for range clients {
		asking.Go(func() {
			for range requests {
				a := ask(t, hc, n.public, model)
				mu.Lock()
				if a.status != http.StatusOK {
					failed++
				}
				byReplica[a.header.Get("X-Skyserve-Replica")]++
				mu.Unlock()
			}
		})
	}
	asking.Wait()
	return byReplica, failed
}

// One of three engines unloads an adapter while clients use it. No client receives an error, and the
// engine receives at most the requests that were in flight: the first rejection is enough to know.
func TestUnloadedAdapterCostsNoClientAnError(t *testing.T) {
	t.Parallel()
	n, engines := startAdapterEngines(t, []service.BalancerModel{{Name: "base", LoRA: []string{"sql"}}}, "sql")
	hc := client(t)
	const clients, requests = 8, 125
	engines[0].change(t, hc, "unload", "sql")
	byReplica, failed := n.askAll(t, hc, "sql", clients, requests)
	rejected := engines[0].rejected.Load()
	t.Logf("%d requests: %d errors, %d attempts at the engine without the adapter, responses by replica %v", clients*requests, failed, rejected, byReplica)
	if failed > 0 || rejected > clients || byReplica["us-1"] == 0 || byReplica["us-2"] == 0 {
		t.Errorf("%d errors, %d attempts at the engine without the adapter, responses by replica %v", failed, rejected, byReplica)
	}
	// Enough clients at once that two replicas with the prompt in their caches do not serve all of them.
	if byReplica, failed := n.askAll(t, hc, "base", 24, 10); failed > 0 || byReplica["us-0"] == 0 {
		t.Errorf("for the model itself: %d errors, responses by replica %v", failed, byReplica)
	}
	engines[0].change(t, hc, "load", "sql")
	testkit.Eventually(t, "the engine is used again", func() bool {
		byReplica, _ := n.askAll(t, hc, "sql", 3, 3)
		return byReplica["us-0"] > 0
	})
}

// An adapter that is loaded at run time is usable within seconds, without a declaration. When all engines
// have unloaded it, its clients receive 404 at once.
func TestAdapterLoadedAtRunTime(t *testing.T) {
	t.Parallel()
	n, engines := startAdapterEngines(t, nil)
	hc := client(t)
	if a := ask(t, hc, n.public, "law"); a.status != http.StatusNotFound {
		t.Fatalf("before: %d %s", a.status, a.body)
	}
	engines[1].change(t, hc, "load", "law")
	testkit.Eventually(t, "the adapter is usable", func() bool { return ask(t, hc, n.public, "law").status == http.StatusOK })
	if byReplica, failed := n.askAll(t, hc, "law", 2, 20); failed > 0 || byReplica["us-1"] != 40 {
		t.Errorf("%d errors, responses by replica %v", failed, byReplica)
	}
	if list := get(t, hc, n.public+"/v1/models"); !strings.Contains(list, `"root":"law","parent":"base","max_model_len":21000`) {
		t.Errorf("models: %s", list)
	}
	engines[1].change(t, hc, "unload", "law")
	if a := ask(t, hc, n.public, "law"); a.status != http.StatusNotFound || !strings.Contains(a.body, "model_not_found") {
		t.Errorf("after: %d %s", a.status, a.body)
	}
}

// get returns the body of a GET.
func get(t *testing.T, hc *http.Client, url string) string {
	t.Helper()
	res, err := hc.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// adapterAlert waits for an alert about an adapter and returns it.
func (n *node) adapterAlert(t *testing.T) (found telemetry.Alert) {
	t.Helper()
	testkit.Eventually(t, "an alert about the adapter", func() bool {
		s, err := n.admin.Snapshot(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range s.Alerts {
			if a.Kind == telemetry.AlertAdapter {
				found = a
				return true
			}
		}
		return false
	})
	return found
}

// A declared adapter that no engine serves raises an alert and is logged, once the engines' lists are known.
// Swapped names are recognised.
func TestUnservedAdapterRaisesAlert(t *testing.T) {
	for name, c := range map[string]struct {
		declared       service.BalancerModel
		message, step  string
		object, region string
	}{
		"not loaded": {
			service.BalancerModel{Name: "base", LoRA: []string{"law"}},
			`adapter "law" is declared for model "base", but no replica of model "base" serves it; the replicas list base, sql`, "load the adapter", "law", "local/us",
		},
		"swapped": {
			service.BalancerModel{Name: "sql", LoRA: []string{"base"}},
			`adapter "base" is declared for model "sql", but the replicas list model "sql" as an adapter of "base"; the replicas list base, sql`, "--lora base=sql", "base", "local/us",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log lines
			cfg := config("lb-us-0", "local/us")
			cfg.Models = []service.BalancerModel{c.declared}
			cfg.Replicas = []service.ReplicaConfig{{ID: "us-0", URL: newAdapterEngine(t, "sql").URL}}
			n := start(t, cfg, Options{Logger: log.logger()})
			a := n.adapterAlert(t)
			if a.Message != c.message || !strings.Contains(a.NextStep, c.step) || a.Object != c.object || string(a.Region) != c.region || a.Severity != telemetry.SeverityWarning {
				t.Errorf("got %+v", a)
			}
			if text := log.String(); strings.Count(text, "is declared for model") != 1 {
				t.Errorf("the log:\n%s", text)
			}
		})
	}
}
