package lbd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
)

// door is a URL for a balancer that does not run yet.
type door struct {
	*httptest.Server
	to atomic.Pointer[httputil.ReverseProxy]
}

func newDoor(t *testing.T) *door {
	d := &door{}
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := d.to.Load(); p != nil {
			p.ServeHTTP(w, r)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(d.Close)
	return d
}

// open starts forwarding to a balancer.
func (d *door) open(t *testing.T, n *node) {
	u, err := url.Parse(n.public)
	if err != nil {
		t.Fatal(err)
	}
	p := httputil.NewSingleHostReverseProxy(u)
	p.Transport, p.ErrorLog = client(t).Transport, log.New(io.Discard, "", 0)
	d.to.Store(p)
}

// talk requests the response to a conversation's first message or, after that response, to its
// second.
func talk(t *testing.T, hc *http.Client, public, id string, conversation, turn int) (replica string) {
	t.Helper()
	messages := []map[string]string{{"role": "user", "content": fmt.Sprintf("conversation %d: %s", conversation, strings.Repeat("so it is ", 100))}}
	if turn > 0 {
		messages = append(messages, map[string]string{"role": "assistant", "content": "hello"}, map[string]string{"role": "user", "content": "and then?"})
	}
	body, err := json.Marshal(map[string]any{"model": "llama", "messages": messages})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest("POST", public+"/v1/chat/completions", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", id)
	res, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s, %v", id, res.StatusCode, text, err)
	}
	return res.Header.Get("X-Skyserve-Replica")
}

// decision returns the explanation of a request's routing.
func (n *node) decision(t *testing.T, id string) core.Decision {
	t.Helper()
	raw, err := n.admin.Decision(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	var record struct{ Decision *core.Decision }
	if err := json.Unmarshal(raw, &record); err != nil || record.Decision == nil {
		t.Fatalf("decision on %s: %s, %v", id, raw, err)
	}
	return *record.Decision
}

// Two balancers of one region have a replica each. One dies and the other adopts its replica: the
// conversations continue at the replicas with their prefixes.
func TestAdoptedReplicasKeepPrefixes(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	const conversations = 4
	engines := []*engine{newEngine(t, "llama", ""), newEngine(t, "llama", "")}
	doors := []*door{newDoor(t), newDoor(t)}
	nodes, log := make([]*node, 2), lines{}
	for i := range nodes {
		cfg := config(fmt.Sprint("lb-us-", i), "local/us", service.ReplicaConfig{ID: fmt.Sprint("us-", i), URL: engines[i].URL, Model: "llama"})
		cfg.Peers = []service.PeerConfig{{ID: fmt.Sprint("lb-us-", 1-i), Region: "local/us", URL: doors[1-i].URL}}
		nodes[i] = start(t, cfg, Options{Logger: log.logger()})
		doors[i].open(t, nodes[i])
	}
	a, b, hc := nodes[0], nodes[1], client(t)
	testkit.Eventually(t, "both are ready", func() bool {
		return a.worker(t, "us-0").State == service.StateReady && b.worker(t, "us-1").State == service.StateReady
	})
	for c := range conversations {
		if at := talk(t, hc, a.public, fmt.Sprint("first-", c), c, 0); at != "us-0" {
			t.Fatalf("conversation %d began at %s", c, at)
		}
	}
	testkit.Eventually(t, "the neighbour has learned all conversations", func() bool {
		return b.treeBytes(t, hc) > 0.9*a.treeBytes(t, hc)
	})
	a.stop()
	if err := a.wait(); err != nil {
		t.Error(err)
	}
	adopted := service.ReplicaConfig{ID: "us-0", URL: engines[0].URL, Model: "llama", Region: "local/us", Epoch: 1}
	if added, err := b.admin.AddWorker(context.Background(), adopted); err != nil || !added {
		t.Fatalf("adopting: %v, %v", added, err)
	}
	testkit.Eventually(t, "the adopted replica is ready", func() bool { return b.worker(t, "us-0").State == service.StateReady })
	for c := range conversations {
		id := fmt.Sprint("second-", c)
		at, d := talk(t, hc, b.public, id, c, 1), b.decision(t, id)
		if at != "us-0" || d.MatchBytes < d.PromptBytes*9/10 {
			t.Errorf("conversation %d went on at %s, where %d of %d bytes match", c, at, d.MatchBytes, d.PromptBytes)
		}
	}
	if strings.Contains(log.String(), "of no use") {
		t.Errorf("the log:\n%s", log.String())
	}
}

// treeBytes is the memory of a balancer's prefix trees.
func (n *node) treeBytes(t *testing.T, hc *http.Client) (bytes float64) {
	t.Helper()
	res, err := hc.Get(n.adminURL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if n, _ := fmt.Sscanf(line, "skyserve_prefix_tree_bytes %g", &bytes); n == 1 {
			return bytes
		}
	}
	t.Fatal("no metric skyserve_prefix_tree_bytes")
	return 0
}
