package lbd

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/sim/engine/server"
	"skyserve/internal/testkit"
)

// An engine lists its model under two names, as vLLM with --served-model-name A B. Both are usable without a
// declaration at its own balancer, which has no peer, and at one that has only this peer.
func TestSecondNameOfEngineIsServed(t *testing.T) {
	t.Parallel()
	s, err := server.New(server.Options{Model: "base", Aliases: []string{"small"}, LoRA: []string{"sql"}, Speed: 1000})
	if err != nil {
		t.Fatal(err)
	}
	e := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		e.Close()
		s.Close()
	})
	own := start(t, config("lb-eu-0", "local/eu", service.ReplicaConfig{ID: "eu-0", URL: e.URL}), Options{})
	cfg := config("lb-us-0", "local/us")
	cfg.Peers = []service.PeerConfig{{ID: "lb-eu-0", Region: "local/eu", URL: own.public}}
	other := start(t, cfg, Options{})
	hc := client(t)
	for name, n := range map[string]*node{"its own balancer": own, "the peer": other} {
		testkit.Eventually(t, name+" lists all names", func() bool {
			list := get(t, hc, n.public+"/v1/models")
			return strings.Contains(list, `"small"`) && strings.Contains(list, `"sql"`)
		})
		if list := get(t, hc, n.public+"/v1/models/small"); !strings.Contains(list, `"root":"base","parent":null`) {
			t.Errorf("%s lists %s", name, list)
		}
		if list := get(t, hc, n.public+"/v1/models/sql"); !strings.Contains(list, `"root":"sql","parent":"base"`) {
			t.Errorf("%s lists the adapter as %s", name, list)
		}
		for _, model := range []string{"base", "small", "sql"} {
			if a := ask(t, hc, n.public, model); a.status != http.StatusOK || a.header.Get("X-Skyserve-Replica") != "eu-0" {
				t.Errorf("model %s at %s: %d %s", model, name, a.status, a.body)
			}
		}
	}
}
