package lbd

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

func TestMain(m *testing.M) {
	// Tests of intervals and stores wait: more of them than processors run at once.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	// Further goroutines that cannot be stopped: a test CA, for 5 s a lock file, and a rate limit per account.
	goleak.VerifyTestMain(m, append(testkit.NATSLeaks(),
		goleak.IgnoreAnyFunction("github.com/letsencrypt/pebble/v2/va.VAImpl.processTasks"),
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"),
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*RingBufferRateLimiter).loop"))...)
}

// engine is a fake replica of one model.
type engine struct {
	*httptest.Server
	model string

	mu      sync.Mutex
	waiting int
	served  int
	failing bool          // every second response is 500
	hold    chan struct{} // responses wait until it is closed; nil = no wait
}

// newEngine starts an engine at addr, or at a free port if addr is empty.
func newEngine(t *testing.T, model, addr string) *engine {
	e := &engine{model: model}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model"}]}`, e.model)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		fmt.Fprintf(w, "vllm:num_requests_waiting %d\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0.25\n", e.waiting)
	})
	mux.HandleFunc("POST /v1/chat/completions", e.chat)
	e.Server = httptest.NewUnstartedServer(rejectChecks(mux))
	if addr != "" {
		e.Listener.Close()
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		e.Listener = ln
	}
	e.Start()
	t.Cleanup(e.Close)
	return e
}

// rejectChecks rejects the balancer's checks of continuations, so that only requests of clients count.
func rejectChecks(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("X-Request-ID"), "continuation-check-") {
			http.Error(w, "no", http.StatusUnprocessableEntity)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (e *engine) chat(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	e.mu.Lock()
	e.served++
	hold, fail := e.hold, e.failing && e.served%2 == 0
	e.mu.Unlock()
	if fail {
		http.Error(w, "out of memory", http.StatusInternalServerError)
		return
	}
	if hold != nil {
		select {
		case <-hold:
		case <-r.Context().Done():
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"id":"x","object":"chat.completion","model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}`, e.model)
}

func (e *engine) set(change func(*engine)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e)
}

func (e *engine) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.served
}

// node is a running balancer.
type node struct {
	public   string
	adminURL string
	admin    *telemetry.Client
	stop     context.CancelFunc
	ended    chan error
}

// start runs a balancer on free ports until the test ends.
func start(t *testing.T, cfg service.BalancerConfig, opts Options) *node {
	t.Helper()
	cfg.Service = cmp.Or(cfg.Service, "chat")
	cfg.Listen, cfg.Admin = "127.0.0.1:0", "127.0.0.1:0"
	ctx, stop := context.WithCancel(context.Background())
	type urls struct{ public, admin string }
	listening := make(chan urls, 1)
	opts.OnListening = func(public, admin string) { listening <- urls{public, admin} }
	n := &node{stop: stop, ended: make(chan error, 1)}
	go func() { n.ended <- Run(ctx, cfg, opts) }()
	t.Cleanup(func() {
		stop()
		if err := n.wait(); err != nil {
			t.Errorf("balancer %s: %v", cfg.ID, err)
		}
	})
	select {
	case u := <-listening:
		n.public, n.adminURL = u.public, u.admin
		n.admin = telemetry.NewClient(u.admin, client(t))
	case err := <-n.ended:
		n.ended <- err
		t.Fatalf("balancer %s: %v", cfg.ID, err)
	}
	return n
}

// wait returns the error with which the balancer ended.
func (n *node) wait() error {
	err := <-n.ended
	n.ended <- err
	return err
}

// client returns a client that leaves no open connections.
func client(t *testing.T) *http.Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: testkit.Timeout}
}

// answer is the response that a client received.
type answer struct {
	status int
	header http.Header
	body   string
}

// ask sends one chat request and returns the response.
func ask(t *testing.T, hc *http.Client, public, model string, headers ...string) answer {
	return askAbout(t, hc, public, model, strings.Repeat("hi ", 50), headers...)
}

// askAbout is ask with a prompt.
func askAbout(t *testing.T, hc *http.Client, public, model, prompt string, headers ...string) answer {
	body, err := json.Marshal(map[string]any{"model": model, "messages": []map[string]string{{"role": "user", "content": prompt}}})
	if err != nil {
		t.Error(err)
	}
	req, err := http.NewRequest("POST", public+"/v1/chat/completions", strings.NewReader(string(body)))
	if err != nil {
		t.Error(err)
		return answer{}
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := hc.Do(req)
	if err != nil {
		t.Error(err)
		return answer{}
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

// status returns the status of a GET.
func status(t *testing.T, hc *http.Client, url string) int {
	res, err := hc.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// snapshot fetches the snapshot.
func (n *node) snapshot(t *testing.T) *telemetry.Snapshot {
	s, err := n.admin.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// worker returns a replica as listed by the admin API; zero if it is not listed.
func (n *node) worker(t *testing.T, id string) telemetry.Worker {
	workers, err := n.admin.Workers(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workers {
		if w.ID == id {
			return w
		}
	}
	return telemetry.Worker{}
}

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
