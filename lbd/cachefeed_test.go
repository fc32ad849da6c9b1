package lbd

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"skyserve/internal/service"
	simengine "skyserve/internal/sim/engine"
	"skyserve/internal/sim/engine/server"
	"skyserve/internal/testkit"
	"skyserve/lbd/record"
)

// A balancer learns from cache events what another router sent to an engine, and what an engine evicted.
func TestCacheEventsOfReplicas(t *testing.T) {
	hc := client(t)
	var replicas []service.ReplicaConfig
	for i := range 2 {
		listeners, err := server.ListenCacheEvents("127.0.0.1:0", 1)
		if err != nil {
			t.Fatal(err)
		}
		p := simengine.Profiles()[0]
		p.KVTokens = 2000
		s, err := server.New(server.Options{Profile: p, Model: "m", Speed: 1e4, CacheEvents: listeners})
		if err != nil {
			t.Fatal(err)
		}
		web := httptest.NewServer(s.Handler())
		t.Cleanup(func() { web.Close(); s.Close() })
		replicas = append(replicas, service.ReplicaConfig{
			ID: fmt.Sprintf("r%d", i), URL: web.URL, Model: "m",
			CacheEvents: listeners[0].Events.Addr().String(), CacheReplays: listeners[0].Replays.Addr().String(),
		})
	}
	n := start(t, config("lb", "local/us", replicas...), Options{})
	testkit.Eventually(t, "both replicas", func() bool {
		return n.worker(t, "r0").State == service.StateReady && n.worker(t, "r1").State == service.StateReady
	})
	send := func(url, id, content string) {
		t.Helper()
		body := fmt.Sprintf(`{"model":"m","max_tokens":4,"messages":[{"role":"user","content":%q}]}`, content)
		req, err := http.NewRequest(http.MethodPost, url+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Request-ID", id)
		res, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("status %d, %v", res.StatusCode, err)
		}
	}
	asked := 0
	// expected returns how much of a prompt the balancer expects at a replica.
	expected := func(replica, content string) float64 {
		t.Helper()
		asked++
		id := fmt.Sprintf("q%d", asked)
		send(n.public, id, content)
		res, err := hc.Get(n.adminURL + "/v1/decisions/" + id)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var d record.RequestRecord
		if err := json.NewDecoder(res.Body).Decode(&d); err != nil || d.Decision == nil {
			t.Fatalf("%+v, %v", d, err)
		}
		for _, c := range d.Decision.Considered {
			if c.ID == replica {
				return float64(c.MatchBytes) / float64(d.Decision.PromptBytes)
			}
		}
		t.Fatalf("%s was not considered", replica)
		return 0
	}
	prompt := strings.Repeat("A prompt of several words. ", 100)
	expected("r0", prompt)
	// The engine that did not receive it receives it from another router.
	for i, other := range []string{"r0", "r1"} {
		send(replicas[i].URL, "other", prompt)
		testkit.Eventually(t, "the prompt at "+other, func() bool { return expected(other, prompt) > 0.9 })
	}
	// Other prompts evict it from one of them.
	for i := range 6 {
		send(replicas[1].URL, "more", strings.Repeat(fmt.Sprintf("Other text %d. ", i), 120))
	}
	testkit.Eventually(t, "the eviction", func() bool { return expected("r1", prompt) < 0.5 })
	if got := expected("r0", prompt); got < 0.9 {
		t.Errorf("%.2f of the prompt are expected at r0", got)
	}
}

func TestCheckCacheEvents(t *testing.T) {
	for name, c := range map[string]struct {
		events, replays, want string
		ranks                 int
	}{
		"none":           {"", "", "", 0},
		"both":           {"127.0.0.1:5557", "127.0.0.1:5657", "", 0},
		"no port":        {"127.0.0.1", "", "cache_events: must be HOST:PORT", 0},
		"a URL":          {"tcp://127.0.0.1:5557", "", "cache_events: must be HOST:PORT", 0},
		"only a replay":  {"", "127.0.0.1:5657", "cache_replays: requires cache_events", 0},
		"a large port":   {"127.0.0.1:65536", "", "cache_events: must be HOST:PORT", 0},
		"the last ports": {"127.0.0.1:65534", "", "", 2},
		"too many ranks": {"127.0.0.1:65534", "", "cache_events: the port of rank 2 must be at most 65535, got 65536", 3},
		"a wrong replay": {"127.0.0.1:5557", "x", "cache_replays: must be HOST:PORT", 0},
	} {
		cfg := config("lb", "local/us", service.ReplicaConfig{URL: "http://127.0.0.1:1", CacheEvents: c.events, CacheReplays: c.replays, DataParallel: c.ranks})
		cfg.Listen, cfg.Admin = "127.0.0.1:0", "127.0.0.1:0"
		err := CheckConfig(cfg, Options{})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}
