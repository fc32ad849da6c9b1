package lbd

import (
	"context"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/sim/engine/server"
	"skyserve/internal/store"
)

// batchConfig configures a balancer with a store and one simulated engine.
func batchConfig(t *testing.T, id, storeURL string) service.BalancerConfig {
	cfg := config(id, "local/us")
	cfg.Models = []service.BalancerModel{{Name: "llama", Aliases: []string{"chat-small"}}}
	cfg.StoreURL, cfg.StoreToken = storeURL, "secret"
	url := simulatedAs(t, server.Options{Model: "llama", Speed: 1000})
	cfg.Replicas = append(cfg.Replicas, service.ReplicaConfig{ID: id + "-0", URL: url, Model: "llama", Kind: service.EngineSim})
	return cfg
}

func batchStore(t *testing.T) *store.Server {
	srv, err := store.Serve(context.Background(), store.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close)
	return srv
}

// Single requests of tier NIW may have a deadline.
func TestDeadlineHeader(t *testing.T) {
	n := start(t, config("lb-us", "local/us", service.ReplicaConfig{ID: "us-0", URL: newEngine(t, "llama", "").URL, Model: "llama"}), Options{})
	ready(t, n)
	hc := client(t)
	for _, c := range []struct {
		deadline, tier string
		status         int
	}{{"4h", "NIW", 200}, {"2125-01-02T15:04:05Z", "NIW", 400}, {"4", "NIW", 400}, {"0s", "NIW", 400}, {"4h", "IW-F", 400}, {"4h", "", 400}} {
		got := ask(t, hc, n.public, "llama", "X-Skyserve-Deadline", c.deadline, "X-Skyserve-Tier", c.tier)
		if got.status != c.status || c.status == 400 && !strings.Contains(got.body, "invalid_deadline") {
			t.Errorf("%+v: %d %s", c, got.status, got.body)
		}
	}
}
