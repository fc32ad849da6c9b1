package lbd

import (
	"context"
	"net"
	"net/http"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/sim/engine/server"
	"skyserve/internal/testkit"
)

// simulated starts a simulated engine at 1000x real time, and returns its URL.
func simulated(t *testing.T) string {
	t.Helper()
	return simulatedAs(t, server.Options{Model: "llama", Speed: 1000})
}

func simulatedAs(t *testing.T, o server.Options) string {
	t.Helper()
	s, err := server.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return runEngine(t, s, nil)
}

// runEngine serves an engine until the test ends and returns its URL. It may exit by itself with the
// error dies.
func runEngine(t *testing.T, s *server.Server, dies error) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && err != dies {
			t.Errorf("engine: %v", err)
		}
		s.Close()
	})
	return "http://" + ln.Addr().String()
}

// ready waits until the balancer is ready.
func ready(t *testing.T, n *node) {
	t.Helper()
	web := client(t)
	testkit.Eventually(t, "the balancer is ready", func() bool {
		resp, err := web.Get(n.public + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// simulatedNode returns a balancer with a simulated engine.
func simulatedNode(t *testing.T, opts Options) *node {
	t.Helper()
	n := start(t, service.BalancerConfig{
		ID: "lb-us", Region: "local/us", Models: []service.BalancerModel{{Name: "llama", Aliases: []string{"small"}}},
		Replicas: []service.ReplicaConfig{{ID: "us-0", URL: simulated(t), Model: "llama"}},
	}, opts)
	ready(t, n)
	return n
}
