package lbd

import (
	"net/http"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

// A balancer that is shutting down finishes all its requests, makes clients reconnect, and bounces
// requests that peers still forward: under load no accepted request is lost.
func TestShutdownUnderLoadLosesNothing(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	step := make(chan struct{})
	held, busy := wordByWord(t, "llama", step), newEngine(t, "llama", "")
	ending := start(t, config("lb-eu-0", "local/eu", service.ReplicaConfig{ID: "eu-0", URL: held.URL, Model: "llama"}), Options{DrainTimeout: testkit.Timeout})
	cfg := config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: busy.URL, Model: "llama"})
	cfg.Peers = []service.PeerConfig{{ID: "lb-eu-0", Region: "local/eu", URL: ending.public}}
	busy.set(func(e *engine) { e.waiting = 1 }) // so that all is forwarded
	here := start(t, cfg, Options{})
	hc := client(t)
	testkit.Eventually(t, "the peer is ready", func() bool {
		s := here.snapshot(t)
		return len(s.Regions) == 2 && s.Regions[0].Balancers[0].State == "READY" && status(t, hc, ending.public+"/readyz") == http.StatusOK
	})

	const own, forwarded = 2, 2
	answers := make(chan string, own+forwarded)
	for i := range own + forwarded {
		public := []string{ending.public, here.public}[i%2]
		go func() { answers <- stream(hc, public, "hi") }()
	}
	testkit.Eventually(t, "all are at the engine", func() bool { return held.count() == own+forwarded })
	ending.stop()
	testkit.Eventually(t, "it reports draining", func() bool { return status(t, hc, ending.public+"/readyz") == http.StatusServiceUnavailable })
	if got := ask(t, hc, ending.public, "llama"); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "draining") {
		t.Errorf("a new request got %+v, want it rejected as draining", got)
	}
	// hc would hide the header, because it processes it.
	if closes := refusedWithClose(t, ending.public); !closes {
		t.Error("a new request does not close its connection")
	}
	busy.set(func(e *engine) { e.waiting = 0 })
	for range 5 { // a peer may not have the report yet: its forwarded requests are bounced
		if got := ask(t, hc, here.public, "llama"); got.status != http.StatusOK {
			t.Errorf("a request beside the ending balancer got %+v", got)
		}
	}
	testkit.Eventually(t, "the peer forwards nothing there any more", func() bool {
		for _, region := range here.snapshot(t).Regions {
			if region.Name == "local/eu" {
				return region.ForwardedIn == forwarded
			}
		}
		return false
	})
	close(step)
	for range own + forwarded {
		if problem := <-answers; problem != "" {
			t.Errorf("a stream that was taken: %s", problem)
		}
	}
	if err := ending.wait(); err != nil {
		t.Error(err)
	}
	if got := ask(t, hc, here.public, "llama"); got.status != http.StatusOK {
		t.Errorf("a request after the end got %+v", got)
	}
}

// As soon as a balancer has reported that it drains, its peers send it no more requests, even if
// they have no capacity themselves.
func TestNoForwardsToDrainingBalancer(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	step := make(chan struct{})
	held, busy := wordByWord(t, "llama", step), newEngine(t, "llama", "")
	ending := start(t, config("lb-eu-0", "local/eu", service.ReplicaConfig{ID: "eu-0", URL: held.URL, Model: "llama"}), Options{DrainTimeout: testkit.Timeout})
	cfg := config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: busy.URL, Model: "llama"})
	cfg.Peers = []service.PeerConfig{{ID: "lb-eu-0", Region: "local/eu", URL: ending.public}}
	here := start(t, cfg, Options{})
	state := func() service.ReplicaState { return here.snapshot(t).Balancer("lb-eu-0").State }
	testkit.Eventually(t, "the peer is ready", func() bool { return state() == "READY" })
	hc := client(t)
	answers := make(chan string, 1)
	go func() { answers <- stream(hc, ending.public, "hi") }()
	testkit.Eventually(t, "its request is at the engine", func() bool { return held.count() == 1 })
	ending.stop()
	testkit.Eventually(t, "the peer is known to drain", func() bool { return state() == "DRAINING" })

	busy.set(func(e *engine) { e.waiting = 1 })
	testkit.Eventually(t, "there is no capacity", func() bool {
		r := here.snapshot(t).Regions[1].Replicas[0]
		return r.Pending != nil && *r.Pending == 1
	})
	late := make(chan answer, 1)
	go func() { late <- ask(t, hc, here.public, "llama") }()
	testkit.Eventually(t, "it is queued", func() bool { return here.snapshot(t).Regions[1].Queued == 1 })
	busy.set(func(e *engine) { e.waiting = 0 })
	if got := <-late; got.status != http.StatusOK {
		t.Errorf("the queued request got %+v", got)
	}
	if s := here.snapshot(t).Regions[1]; s.ForwardedOut != 0 {
		t.Errorf("%d requests were forwarded", s.ForwardedOut)
	}
	close(step)
	if problem := <-answers; problem != "" {
		t.Errorf("a stream that was taken: %s", problem)
	}
	if err := ending.wait(); err != nil {
		t.Error(err)
	}
}

// refusedWithClose sends a request on a keep-alive connection and reports whether the response closes
// it.
func refusedWithClose(t *testing.T, public string) bool {
	t.Helper()
	res, err := http.DefaultTransport.(*http.Transport).Clone().RoundTrip(chatRequest(t, public))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.Close
}

func chatRequest(t *testing.T, public string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, public+"/v1/chat/completions",
		strings.NewReader(`{"model":"llama","messages":[{"role":"user","content":"hi"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// A replica whose URL is added again by /add_worker ends its drain under its own id; it is not attached twice.
func TestAddWorkerEndsDrain(t *testing.T) {
	e := newEngine(t, "llama", "")
	n := start(t, config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: e.URL, Model: "llama"}), Options{})
	hc := client(t)
	post := func(path string, want int) {
		t.Helper()
		resp, err := hc.Post(n.adminURL+path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != want {
			t.Fatalf("POST %s returned %d, want %d", path, resp.StatusCode, want)
		}
	}
	isReady := func() bool { return n.worker(t, "us-0").State == service.StateReady }
	testkit.Eventually(t, "the replica is ready", isReady)
	post("/workers/us-0/drain", http.StatusOK)
	if isReady() {
		t.Fatal("the drain has no effect")
	}
	post("/add_worker?url="+e.URL, http.StatusOK)
	testkit.Eventually(t, "the replica is ready again", isReady)
	if page := text(t, hc, n.adminURL+"/list_workers"); strings.Count(page, "http://") != 1 {
		t.Errorf("attached: %s", page)
	}
}
