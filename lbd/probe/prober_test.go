package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is a fake replica: it responds by path, after a delay, or with an error.
type engine struct {
	mu     sync.Mutex
	pages  map[string]string // path to body; absent = 404
	status map[string]int
	err    error
	delay  time.Duration
	slow   map[string]time.Duration // additional delay, by path
	broken string                   // a path at which connections are closed
	asked  map[string]int
}

func newEngine() *engine {
	return &engine{
		pages: map[string]string{
			"/v1/models": `{"data":[{"id":"llama"},{"id":"adapter"}]}`,
			"/metrics":   "vllm:num_requests_waiting 1\nvllm:num_requests_running 2\n",
			"/health":    "",
		},
		status: map[string]int{},
		delay:  2 * time.Millisecond,
		asked:  map[string]int{},
	}
}

func (e *engine) set(change func(*engine)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e)
}

func (e *engine) count(path string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked[path]
}

func (e *engine) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	e.asked[r.URL.Path]++
	body, ok := e.pages[r.URL.Path]
	status, err, delay := e.status[r.URL.Path], e.err, e.delay+e.slow[r.URL.Path]
	e.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if err != nil {
		return nil, err
	}
	if e.broken == r.URL.Path {
		return nil, io.ErrUnexpectedEOF
	}
	switch {
	case status != 0:
	case ok:
		status = http.StatusOK
	default:
		status = http.StatusNotFound
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// reports collects the reports of a Prober.
type reports struct {
	mu  sync.Mutex
	all []core.Event
}

func (r *reports) take(ev core.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := *ev.Report
	ev.Report = &own
	r.all = append(r.all, ev)
}

// drain returns the reports since the last drain.
func (r *reports) drain() []core.ProbeReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []core.ProbeReport
	for _, ev := range r.all {
		out = append(out, *ev.Report)
	}
	r.all = nil
	return out
}

func refused() error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// probing runs a test with fake time and one replica of one engine.
func probing(t *testing.T, cfg service.ReplicaConfig, e *engine, opts Options, test func(t *testing.T, p *Prober, r *reports)) {
	synctest.Test(t, func(t *testing.T) {
		var r reports
		opts.Sink, opts.Transport = r.take, e
		p := New(opts)
		defer p.Close()
		cfg.ID, cfg.URL = "us-0", "http://engine:1/"
		p.Start(cfg)
		test(t, p, &r)
	})
}

func TestReadyReplica(t *testing.T) {
	e := newEngine()
	probing(t, service.ReplicaConfig{Model: "adapter"}, e, Options{Seed: 7}, func(t *testing.T, p *Prober, r *reports) {
		time.Sleep(10 * time.Second)
		all := r.drain()
		if n := len(all); n < 98 || n > 102 {
			t.Errorf("got %d reports in 10 s, want about 100", n)
		}
		want := core.ProbeReport{Age: time.Millisecond, Ready: true, Pending: known(1), Running: known(2)}
		for _, got := range all {
			if got != want {
				t.Fatalf("got %+v, want %+v", got, want)
			}
		}
		if n := e.count("/v1/models"); n < 4 || n > 5 {
			t.Errorf("asked for the models %d times, want every 3 s", n)
		}
	})
}

func TestIntervalsAreJittered(t *testing.T) {
	e := newEngine()
	e.delay = 0
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		p := New(Options{Transport: e, Seed: 1, Sink: func(core.Event) { at = append(at, time.Now()) }})
		p.Start(service.ReplicaConfig{ID: "us-0", URL: "http://engine:1", Model: "llama"})
		time.Sleep(5 * time.Second)
		p.Close()
		seen := map[time.Duration]bool{}
		for i := 1; i < len(at); i++ {
			gap := at[i].Sub(at[i-1])
			seen[gap] = true
			if gap < 90*time.Millisecond || gap > 110*time.Millisecond {
				t.Errorf("gap %d is %s, want 90..110 ms", i, gap)
			}
		}
		if len(seen) < 10 {
			t.Errorf("%d different gaps, want jitter", len(seen))
		}
	})
}

func TestConnectionRefusedThenRecovered(t *testing.T) {
	e := newEngine()
	probing(t, service.ReplicaConfig{Model: "llama"}, e, Options{}, func(t *testing.T, p *Prober, r *reports) {
		time.Sleep(time.Second)
		r.drain()
		e.set(func(e *engine) { e.err = refused() })
		time.Sleep(150 * time.Millisecond)
		got := r.drain()
		if last := got[len(got)-1]; last.Ready || last.Reason != "connection refused" {
			t.Fatalf("got %+v", last)
		}
		time.Sleep(20 * time.Second)
		if n := len(r.drain()); n < 18 || n > 26 {
			t.Errorf("%d reports in 20 s of death, want about one a second", n)
		}
		e.set(func(e *engine) { e.err = nil })
		before := e.count("/v1/models")
		time.Sleep(1200 * time.Millisecond)
		got = r.drain()
		if len(got) == 0 || !got[len(got)-1].Ready {
			t.Fatalf("not ready again: %+v", got)
		}
		if e.count("/v1/models") != before+1 {
			t.Error("became ready again without its model having answered")
		}
	})
}

func TestTimeoutReportsNothing(t *testing.T) {
	e := newEngine()
	probing(t, service.ReplicaConfig{Model: "llama"}, e, Options{}, func(t *testing.T, p *Prober, r *reports) {
		time.Sleep(time.Second)
		e.set(func(e *engine) { e.delay = time.Hour })
		time.Sleep(200 * time.Millisecond)
		r.drain()
		time.Sleep(10 * time.Second)
		if got := r.drain(); len(got) > 0 {
			t.Errorf("a silent replica was reported: %+v", got)
		}
		if s := p.Status()[0]; s.Ready || !s.WasReady || s.Reason != "no response within 1s" {
			t.Errorf("got %+v", s)
		}
	})
}

// A host that drops connections is named with its address, the limit and what to check. The limit of the first probes is
// that of connecting, also where a request may take longer.
func TestUnacceptedConnectionIsNamed(t *testing.T) {
	for timeout, limit := range map[time.Duration]string{5 * time.Second: "1s", 100 * time.Millisecond: "100ms"} {
		e := newEngine()
		e.err = &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
		probing(t, service.ReplicaConfig{Model: "llama"}, e, Options{Timeout: timeout}, func(t *testing.T, p *Prober, r *reports) {
			time.Sleep(time.Second)
			if got := r.drain(); len(got) > 0 {
				t.Errorf("a silent replica was reported: %+v", got)
			}
			want := "engine:1 accepts no connection within " + limit + ": check that the engine listens there and that firewalls allow it"
			if s := p.Status()[0]; s.Ready || s.Reason != want {
				t.Errorf("got %q, want %q", s.Reason, want)
			}
		})
	}
}

func TestNotReady(t *testing.T) {
	for _, c := range []struct {
		name, model string
		change      func(*engine)
		reason      string
	}{
		{"loading", "llama", func(e *engine) { e.status["/v1/models"] = 503 }, "GET /v1/models returned 503 Service Unavailable"},
		{"another model", "gpt", func(*engine) {}, `GET /v1/models returned llama, adapter, not "gpt"`},
		{"no model", "llama", func(e *engine) { e.pages["/v1/models"] = `{"data":[]}` }, "GET /v1/models returned no model"},
		{"no list", "llama", func(e *engine) { e.pages["/v1/models"] = `<html>` }, "GET /v1/models returned an invalid model list"},
		{"many models", "gpt", func(e *engine) {
			e.pages["/v1/models"] = `{"data":[{"id":"a"},{"id":"b"},{"id":"c"},{"id":"d"},{"id":"e"},{"id":"f"}]}`
		}, `GET /v1/models returned a, b, c, d and 2 more, not "gpt"`},
		{"metrics broken", "llama", func(e *engine) { e.status["/metrics"] = 500 }, "GET /metrics returned 500 Internal Server Error"},
		{"unhealthy", "llama", func(e *engine) { e.status["/metrics"], e.status["/health"] = 404, 503 }, "GET /health returned 503 Service Unavailable"},
		{"elsewhere", "llama", func(e *engine) { e.status["/v1/models"] = 302 }, "GET /v1/models returned 302 Found"},
		{"reset", "llama", func(e *engine) { e.err = errors.New("connection reset") }, "connection reset"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine()
			c.change(e)
			probing(t, service.ReplicaConfig{Model: c.model}, e, Options{}, func(t *testing.T, p *Prober, r *reports) {
				time.Sleep(1500 * time.Millisecond)
				got := r.drain()
				if len(got) == 0 {
					t.Fatal("no report")
				}
				if !hasReason(got, c.reason) {
					t.Errorf("no report with reason %q: %+v", c.reason, got)
				}
			})
		})
	}
}

// vLLM serves its metrics for seconds after its engine has died. After a failed request the probes
// request /health too, and the replica is not ready until it succeeds.
func TestSuspectIsProbedForHealth(t *testing.T) {
	e := newEngine()
	probing(t, service.ReplicaConfig{Model: "llama"}, e, Options{}, func(t *testing.T, p *Prober, r *reports) {
		time.Sleep(time.Second)
		if n := e.count("/health"); n != 0 {
			t.Errorf("asked for /health %d times before any failure", n)
		}
		p.Suspect("us-0")
		p.Suspect("nobody")
		time.Sleep(3 * time.Second)
		if n := e.count("/health"); n < 8 || n > 12 || hasReason(r.drain(), "GET /health returned 503 Service Unavailable") {
			t.Errorf("asked for /health %d times in the second after a failure, want about 10", n)
		}
		e.set(func(e *engine) { e.status["/health"] = 503 })
		p.Suspect("us-0")
		time.Sleep(200 * time.Millisecond)
		if got := r.drain(); !hasReason(got, "GET /health returned 503 Service Unavailable") {
			t.Errorf("with a dead engine: %+v", got)
		}
		time.Sleep(10 * time.Second)
		for _, got := range r.drain() {
			if got.Ready {
				t.Fatal("it is ready again while its engine is dead")
			}
		}
		e.set(func(e *engine) { e.status["/health"] = 200 })
		time.Sleep(3 * time.Second)
		if got := r.drain(); !got[len(got)-1].Ready {
			t.Errorf("with a new engine: %+v", got[len(got)-1])
		}
	})
}

// An engine whose /health generates a token (SGLang) may exceed the timeout of a probe. It is
// nevertheless reported alive, also after a failure, with or without metrics.
func TestSlowHealthIsNotDeath(t *testing.T) {
	for name, metrics := range map[string]bool{"metrics": true, "no metrics": false} {
		t.Run(name, func(t *testing.T) {
			e := newEngine()
			e.slow = map[string]time.Duration{"/health": 1200 * time.Millisecond}
			if !metrics {
				delete(e.pages, "/metrics")
			}
			probing(t, service.ReplicaConfig{Model: "llama"}, e, Options{}, func(t *testing.T, p *Prober, r *reports) {
				time.Sleep(time.Second)
				r.drain()
				p.Suspect("us-0")
				for i := range 20 {
					time.Sleep(800 * time.Millisecond)
					got := r.drain()
					if len(got) == 0 || !got[len(got)-1].Ready {
						t.Fatalf("%v after a failure: reports %+v, want it ready", time.Duration(i+1)*800*time.Millisecond, got)
					}
				}
			})
		})
	}
}

func hasReason(all []core.ProbeReport, reason string) bool {
	for _, r := range all {
		if !r.Ready && r.Reason == reason {
			return true
		}
	}
	return false
}

func TestEngineWithoutMetrics(t *testing.T) {
	for _, health := range []bool{true, false} {
		e := newEngine()
		delete(e.pages, "/metrics")
		if !health {
			delete(e.pages, "/health")
		}
		probing(t, service.ReplicaConfig{Model: "llama"}, e, Options{}, func(t *testing.T, p *Prober, r *reports) {
			time.Sleep(10 * time.Second)
			all := r.drain()
			if n := len(all); n < 95 || n > 105 {
				t.Errorf("%d reports in 10 s, want about 100", n)
			}
			for _, got := range all {
				if want := (core.ProbeReport{Age: time.Millisecond, Ready: true}); got != want {
					t.Fatalf("got %+v, want %+v", got, want)
				}
			}
			if n := e.count("/health"); n < 8 || n > 11 {
				t.Errorf("asked for its health %d times in 10 s, want about 10", n)
			}
			if n := e.count("/v1/models"); !health && n < 8 {
				t.Errorf("asked for its models %d times, want about 10", n)
			}
			if n := e.count("/metrics"); n != 1 {
				t.Errorf("asked for metrics %d times, want once", n)
			}
		})
	}
}

func TestModelIsLearned(t *testing.T) {
	e := newEngine()
	var found []service.ReplicaConfig
	opts := Options{Identified: func(c service.ReplicaConfig) { found = append(found, c) }}
	probing(t, service.ReplicaConfig{GPU: "L4"}, e, opts, func(t *testing.T, p *Prober, r *reports) {
		time.Sleep(time.Second)
		synctest.Wait()
		want := service.ReplicaConfig{ID: "us-0", URL: "http://engine:1/", Model: "llama", GPU: "L4"}
		if len(found) != 2 || found[0] != want {
			t.Fatalf("found %+v, want %+v, and then its kind", found, want)
		}
		if want.Kind = service.EngineVLLM; found[1] != want {
			t.Fatalf("found %+v, want %+v", found[1], want)
		}
		if got := p.Status()[0].Replica; got != want {
			t.Errorf("status shows %+v", got)
		}
		e.set(func(e *engine) { e.err = refused() })
		time.Sleep(time.Second)
		e.set(func(e *engine) { e.err = nil; e.pages["/v1/models"] = `{"data":[{"id":"qwen"}]}` })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(found) != 4 || found[2].Model != "qwen" || found[3].Model != "qwen" || found[3].Kind != service.EngineVLLM {
			t.Errorf("found %+v, want qwen after the restart", found)
		}
	})
}

func TestHitRateOfTheLastMinute(t *testing.T) {
	var h hitWindow
	start := time.Unix(0, 0)
	page := func(hits, queries float64) EngineFigures {
		return EngineFigures{HitTokens: known(hits), QueryTokens: known(queries)}
	}
	h.addFigures(start, page(100, 1000))
	if got := h.rate(); got.Known {
		t.Errorf("no prompt came, got %v", got)
	}
	for s := range 200 {
		h.addFigures(start.Add(time.Duration(s)*time.Second), page(100+float64(s)*5, 1000+float64(s)*10))
	}
	if got := h.rate(); got != known(0.5) {
		t.Errorf("got %v, want 0.5", got)
	}
	if n := len(h.samples); n > 62 {
		t.Errorf("%d samples kept, want a minute's", n)
	}
	h.addFigures(start.Add(201*time.Second), page(9, 10)) // restarted
	h.addFigures(start.Add(203*time.Second), page(18, 20))
	if got := h.rate(); got != known(0.9) {
		t.Errorf("after a restart: got %v, want 0.9", got)
	}
	h.addFigures(start.Add(204*time.Second), EngineFigures{HitRate: known(0.25)})
	if got := h.rate(); got != known(0.25) {
		t.Errorf("the engine's own: got %v, want 0.25", got)
	}
}

func TestStopAndRestart(t *testing.T) {
	e := newEngine()
	probing(t, service.ReplicaConfig{Model: "llama"}, e, Options{}, func(t *testing.T, p *Prober, r *reports) {
		time.Sleep(time.Second)
		p.Start(service.ReplicaConfig{ID: "us-0", URL: "http://engine:1/", Model: "llama", Epoch: 2})
		time.Sleep(time.Second)
		if n := e.count("/v1/models"); n != 1 {
			t.Errorf("a start that changed nothing probed anew: %d", n)
		}
		p.Start(service.ReplicaConfig{ID: "us-0", URL: "http://engine:2/", Model: "llama"})
		time.Sleep(time.Second)
		if n := e.count("/v1/models"); n != 2 {
			t.Errorf("moved replica: models asked %d times, want 2", n)
		}
		p.Stop("us-0")
		synctest.Wait()
		r.drain()
		time.Sleep(5 * time.Second)
		if got := r.drain(); len(got) > 0 || len(p.Status()) > 0 {
			t.Errorf("a stopped replica is still reported: %+v", got)
		}
	})
}

// Without its configured kind, an engine is identified.
func TestChangedKindIsIdentified(t *testing.T) {
	probing(t, service.ReplicaConfig{Model: "llama", Kind: service.EngineSGLang}, newEngine(), Options{}, func(t *testing.T, p *Prober, _ *reports) {
		time.Sleep(time.Second)
		if kind := p.Status()[0].Replica.Kind; kind != service.EngineSGLang {
			t.Fatalf("kind %q, want the configured one", kind)
		}
		p.Start(service.ReplicaConfig{ID: "us-0", URL: "http://engine:1/", Model: "llama"})
		time.Sleep(time.Second)
		if kind := p.Status()[0].Replica.Kind; kind != service.EngineVLLM {
			t.Errorf("kind %q, want %q", kind, service.EngineVLLM)
		}
	})
}

// Close waits for a Start in progress, whose probes it would not wait for.
func TestCloseWaitsForStart(t *testing.T) {
	p := New(Options{Sink: func(core.Event) {}})
	p.mu.Lock() // as Start does
	started, closed := make(chan struct{}), make(chan struct{})
	go func() {
		close(started)
		p.Close()
		close(closed)
	}()
	<-started
	for range 1000 {
		runtime.Gosched()
	}
	select {
	case <-closed:
		t.Error("closed during a Start")
	default:
	}
	p.mu.Unlock()
	<-closed
}

func TestOverTheWire(t *testing.T) {
	pages := newEngine().pages
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, pages[r.URL.Path])
	}))
	defer srv.Close()
	got := make(chan core.Event, 100)
	p := New(Options{Interval: time.Millisecond, Sink: func(ev core.Event) {
		own := *ev.Report
		ev.Report = &own
		select {
		case got <- ev:
		default:
		}
	}})
	defer p.Close()
	p.Start(service.ReplicaConfig{ID: "us-0", URL: srv.URL, Model: "llama"})
	for range 3 {
		ev := <-got
		if ev.Kind != core.EventReplicaReport || ev.Target != "us-0" || !ev.Report.Ready || ev.Report.Pending != known(1) {
			t.Fatalf("got %+v %+v", ev, ev.Report)
		}
	}
}

// A network that does not find the host is no sign of life of the replica; a refused connection is.
func TestUnreachableHostDoesNotRespond(t *testing.T) {
	for err, silent := range map[error]bool{syscall.EHOSTUNREACH: true, syscall.ENETUNREACH: true, syscall.EHOSTDOWN: true, syscall.ECONNREFUSED: false, io.EOF: false} {
		e := newEngine()
		e.err = &net.OpError{Op: "dial", Net: "tcp", Err: err}
		probing(t, service.ReplicaConfig{Model: "llama"}, e, Options{}, func(t *testing.T, _ *Prober, r *reports) {
			time.Sleep(time.Second)
			if got := r.drain(); len(got) == 0 || got[0].Ready || got[0].NoResponse != silent {
				t.Errorf("%v: got %+v", err, got)
			}
		})
	}
}

func TestDeadOverTheWire(t *testing.T) {
	addr := testkit.FreeAddr()
	got := make(chan core.ProbeReport, 100)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p := New(Options{Sink: func(ev core.Event) {
		select {
		case got <- *ev.Report:
		case <-ctx.Done():
		}
	}})
	defer p.Close()
	p.Start(service.ReplicaConfig{ID: "us-0", URL: "http://" + addr, Model: "llama"})
	if r := <-got; r.Ready || r.Reason != "connection refused" {
		t.Errorf("got %+v", r)
	}
	cancel()
}
