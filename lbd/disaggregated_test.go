package lbd

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

// pdRouter is a router in front of a prefill and a decode engine: one replica for the balancer. As
// SGLang's mini_lb does, it asks the prefill engine for the models and sends a request to both.
type pdRouter struct {
	*httptest.Server
	prefill, decode *engine
	blind           bool   // its /health does not depend on its engines, as mini_lb's does not
	metrics         string // its own metrics, without figures of engines; empty = none
}

func newPDRouter(t *testing.T, blind bool, metrics string) *pdRouter {
	t.Helper()
	r := &pdRouter{prefill: newEngine(t, "llama", ""), decode: newEngine(t, "llama", ""), blind: blind, metrics: metrics}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) { r.pass(w, r.prefill, "GET", "/v1/models", "") })
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if !r.blind && !r.reaches(r.prefill, r.decode) {
			http.Error(w, "an engine is down", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		if r.metrics == "" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, r.metrics)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		if !r.reaches(r.prefill) {
			http.Error(w, "no prefill engine", http.StatusServiceUnavailable)
			return
		}
		r.pass(w, r.decode, "POST", "/v1/chat/completions", string(body))
	})
	r.Server = httptest.NewServer(rejectChecks(mux))
	t.Cleanup(r.Close)
	return r
}

// reaches reports whether all engines respond.
func (r *pdRouter) reaches(engines ...*engine) bool {
	for _, e := range engines {
		resp, err := http.Get(e.URL + "/v1/models")
		if err != nil {
			return false
		}
		resp.Body.Close()
	}
	return true
}

// pass sends a request to an engine and its response back: 500 if the engine is down.
func (r *pdRouter) pass(w http.ResponseWriter, e *engine, method, path, body string) {
	req, _ := http.NewRequest(method, e.URL+path, strings.NewReader(body))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		http.Error(w, "internal server error", http.StatusInternalServerError)
		return
	}
	defer resp.Body.Close()
	w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body)
}

// A disaggregated group is one replica. Once its decode side is down, it is not ready: its router's
// /health says so, or its requests fail and are served by another group.
func TestDisaggregatedGroupIsOneReplica(t *testing.T) {
	testkit.Slow(t)
	const own = "router_requests_total 5\n"
	for name, c := range map[string]struct {
		blind    bool
		metrics  string
		requests bool // only failed requests show that it is down
	}{
		"health, no metrics":       {},
		"health and metrics":       {metrics: own, requests: true},
		"blind health, no metrics": {blind: true, requests: true},
		"blind health and metrics": {blind: true, metrics: own, requests: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			group, other := newPDRouter(t, c.blind, c.metrics), newPDRouter(t, c.blind, c.metrics)
			n := start(t, config("lb-us-0", "local/us",
				service.ReplicaConfig{ID: "us-0", URL: group.URL, Model: "llama"}, service.ReplicaConfig{ID: "us-1", URL: other.URL, Model: "llama"}), Options{})
			states := func() [2]service.ReplicaState {
				all := n.snapshot(t).Regions[0].Replicas
				return [2]service.ReplicaState{all[0].State, all[1].State}
			}
			testkit.Eventually(t, "both groups are ready", func() bool { return states() == [2]service.ReplicaState{service.StateReady, service.StateReady} })
			group.decode.Close()
			hc := client(t)
			testkit.Eventually(t, "only the other group is ready", func() bool {
				if c.requests {
					askAtOnce(t, hc, n.public, 16)
				}
				now := states()
				return now[0] != service.StateReady && now[1] == service.StateReady
			})
			for range 5 {
				if got := ask(t, hc, n.public, "llama"); got.status != http.StatusOK || got.header.Get("X-Skyserve-Replica") != "us-1" {
					t.Errorf("a request got %+v", got)
				}
			}
		})
	}
}

// A group whose prefill side is down lists no model, so it does not become ready.
func TestGroupWithoutModelListIsNotReady(t *testing.T) {
	group := newPDRouter(t, true, "")
	group.prefill.Close()
	n := start(t, config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: group.URL, Model: "llama"}), Options{})
	testkit.Eventually(t, "the cause is shown", func() bool {
		r := n.snapshot(t).Regions[0].Replicas[0]
		return r.State != service.StateReady && strings.Contains(r.Reason, "/v1/models")
	})
}

// askAtOnce sends requests with different prompts at the same time, so that no replica has the prompt of all of
// them; all must be served.
func askAtOnce(t *testing.T, hc *http.Client, public string, requests int) {
	var all sync.WaitGroup
	for i := range requests {
		all.Go(func() {
			prompt := strings.Repeat(fmt.Sprintf("%d %d ", i, rand.Int()), 20)
			if got := askAbout(t, hc, public, "llama", prompt); got.status != http.StatusOK {
				t.Errorf("a request got %+v", got)
			}
		})
	}
	all.Wait()
}
