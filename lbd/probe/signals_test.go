package probe

import (
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// last returns the last report since the last drain.
func (r *reports) last(t *testing.T) core.ProbeReport {
	t.Helper()
	all := r.drain()
	if len(all) == 0 {
		t.Fatal("no report")
	}
	return all[len(all)-1]
}

// served returns an engine with the given pages besides its model list and health.
func served(pages map[string]string) *engine {
	e := newEngine()
	delete(e.pages, "/metrics")
	for path, body := range pages {
		e.pages[path] = body
	}
	return e
}

// probingEngine probes one replica of an engine without a configured kind.
func probingEngine(t *testing.T, e *engine, test func(t *testing.T, p *Prober, r *reports)) {
	t.Helper()
	probing(t, service.ReplicaConfig{Model: "llama"}, e, Options{}, test)
}

const sglangPage = "sglang:num_queue_reqs{tp_rank=\"0\"} 2\nsglang:num_running_reqs{tp_rank=\"0\"} 4\nsglang:token_usage{tp_rank=\"0\"} 0.5\nsglang:gen_throughput{tp_rank=\"0\"} "

// SGLang updates its gauges only at some steps. Figures that have not moved are as old as their last
// movement, and a movement of any gauge makes them current.
func TestUnmovedGaugesAreOld(t *testing.T) {
	e := served(map[string]string{"/metrics": sglangPage + "100"})
	probingEngine(t, e, func(t *testing.T, _ *Prober, r *reports) {
		time.Sleep(2 * time.Second)
		if got := r.last(t); got.MetricsAge < 1800*time.Millisecond || got.Pending != known(2) || !got.Ready || got.Age != time.Millisecond {
			t.Errorf("after 2 s without movement: %+v", got)
		}
		e.set(func(e *engine) { e.pages["/metrics"] = sglangPage + "101" })
		time.Sleep(120 * time.Millisecond)
		if got := r.last(t); got.MetricsAge > 110*time.Millisecond || got.Pending != known(2) {
			t.Errorf("after a movement: %+v", got)
		}
	})
}

// Counters move between two updates of the gauges.
func TestCountersDoNotFreshenGauges(t *testing.T) {
	e := served(map[string]string{"/metrics": sglangPage + "100\nsglang:prompt_tokens_total 10\n"})
	probingEngine(t, e, func(t *testing.T, _ *Prober, r *reports) {
		time.Sleep(time.Second)
		e.set(func(e *engine) { e.pages["/metrics"] = sglangPage + "100\nsglang:prompt_tokens_total 20\n" })
		time.Sleep(time.Second)
		if got := r.last(t); got.MetricsAge < 1800*time.Millisecond {
			t.Errorf("got %+v, want figures of about 2 s", got)
		}
	})
}

func TestVLLMGaugesAreCurrent(t *testing.T) {
	probingEngine(t, newEngine(), func(t *testing.T, _ *Prober, r *reports) {
		time.Sleep(2 * time.Second)
		if got := r.last(t); got.MetricsAge != 0 {
			t.Errorf("got %+v", got)
		}
	})
}

// While SGLang's load endpoint responds, figures come from it, and the page is read once a second.
func TestLiveLoadsReplaceThePage(t *testing.T) {
	for path, body := range map[string]string{"/v1/loads": liveLoads, "/get_load": oldLoads} {
		e := served(map[string]string{"/metrics": sglangPage + "100", path: body})
		probingEngine(t, e, func(t *testing.T, _ *Prober, r *reports) {
			time.Sleep(time.Second)
			e.set(func(e *engine) { clear(e.asked) })
			time.Sleep(10 * time.Second)
			got := r.last(t)
			want := core.ProbeReport{Age: time.Millisecond, Ready: true, Pending: known(3), Running: known(8), KV: known(0.75)}
			if path == "/get_load" {
				want.Pending, want.Running, want.KV = known(1), known(3), known(0.5) // it has no KV utilisation
			}
			if got != want {
				t.Errorf("%s: got %+v, want %+v", path, got, want)
			}
			if n := e.count(path); n < 95 || n > 105 {
				t.Errorf("%s: asked %d times in 10 s, want about 100", path, n)
			}
			if n := e.count("/metrics"); n < 8 || n > 11 {
				t.Errorf("%s: asked for metrics %d times in 10 s, want about 10", path, n)
			}
			if n := e.count("/health"); n != 0 {
				t.Errorf("%s: asked for its health %d times", path, n)
			}
		})
	}
}

// SGLang has its load endpoint also without --enable-metrics.
func TestLoadsAreReadWithoutMetrics(t *testing.T) {
	e := served(map[string]string{"/v1/loads": liveLoads})
	probingEngine(t, e, func(t *testing.T, p *Prober, r *reports) {
		time.Sleep(2 * time.Second)
		if got := r.last(t); got.Pending != known(3) || got.MetricsAge != 0 || !got.Ready {
			t.Errorf("got %+v", got)
		}
		if kind := p.Status()[0].Replica.Kind; kind != service.EngineSGLang {
			t.Errorf("identified as %q", kind)
		}
		e.set(func(e *engine) { e.slow = map[string]time.Duration{"/v1/loads": time.Hour} })
		time.Sleep(3 * time.Second)
		if got := r.last(t); got.MetricsAge < 2*time.Second || !got.Ready {
			t.Errorf("with a scheduler that does not respond: %+v", got)
		}
		e.set(func(e *engine) { e.status["/health"] = 503 })
		time.Sleep(2 * time.Second)
		if got := r.drain(); !hasReason(got, "GET /health returned 503 Service Unavailable") {
			t.Errorf("unhealthy: %+v", got)
		}
	})
}

func TestUnusableLoadsAreNotAskedAgain(t *testing.T) {
	for name, change := range map[string]func(*engine){
		"absent":   func(*engine) {},
		"no key":   func(e *engine) { e.status["/v1/loads"], e.status["/get_load"] = 401, 401 },
		"no loads": func(e *engine) { e.pages["/v1/loads"], e.pages["/get_load"] = "{}", `{"load": 3}` },
	} {
		e := served(map[string]string{"/metrics": sglangPage + "100"})
		change(e)
		probingEngine(t, e, func(t *testing.T, _ *Prober, r *reports) {
			time.Sleep(5 * time.Second)
			if a, b := e.count("/v1/loads"), e.count("/get_load"); a != 1 || b != 1 {
				t.Errorf("%s: asked %d and %d times, want once each", name, a, b)
			}
			for _, got := range r.drain() {
				if !got.Ready || got.Pending != known(2) {
					t.Fatalf("%s: got %+v, want the page's figures", name, got)
				}
			}
		})
	}
}

// A scheduler may respond only between two steps. Meanwhile the replica is reported, with the
// figures that are known.
func TestSlowLoadsDoNotDelayReports(t *testing.T) {
	e := served(map[string]string{"/metrics": sglangPage + "100", "/v1/loads": liveLoads})
	probingEngine(t, e, func(t *testing.T, _ *Prober, r *reports) {
		time.Sleep(time.Second)
		r.drain()
		e.set(func(e *engine) { e.slow = map[string]time.Duration{"/v1/loads": time.Hour} })
		for range 20 {
			time.Sleep(500 * time.Millisecond)
			if got := r.last(t); !got.Ready || got.Pending != known(3) {
				t.Fatalf("got %+v, want the last live figures: the page has not moved", got)
			}
		}
		e.set(func(e *engine) { e.pages["/metrics"] = sglangPage + "101" })
		time.Sleep(500 * time.Millisecond)
		if got := r.last(t); got.Pending != known(2) {
			t.Errorf("got %+v, want the moved page's figures", got)
		}
		e.set(func(e *engine) { e.slow = nil })
		time.Sleep(2 * time.Second)
		if got := r.last(t); got.Pending != known(3) || got.MetricsAge != 0 {
			t.Errorf("got %+v, want live figures again", got)
		}
	})
}

// SGLang's hit rate is zero while it decodes.
func TestHitRateSurvivesDecoding(t *testing.T) {
	e := served(map[string]string{"/metrics": sglangPage + "100\nsglang:cache_hit_rate 0.75\n"})
	probingEngine(t, e, func(t *testing.T, p *Prober, _ *reports) {
		time.Sleep(time.Second)
		e.set(func(e *engine) { e.pages["/metrics"] = sglangPage + "101\nsglang:cache_hit_rate 0.0\n" })
		time.Sleep(30 * time.Second)
		if got := p.Status()[0].HitRate; got != known(0.75) {
			t.Errorf("while it decodes: %+v, want 0.75", got)
		}
		time.Sleep(2 * time.Minute)
		if got := p.Status()[0].HitRate; got.Known {
			t.Errorf("after two minutes without prefill: %+v, want unknown", got)
		}
		e.set(func(e *engine) {
			e.pages["/metrics"] = sglangPage + "102\nsglang:prompt_tokens_total 100\nsglang:cached_tokens_total 50\n"
		})
		time.Sleep(2 * time.Second)
		e.set(func(e *engine) {
			e.pages["/metrics"] = sglangPage + "103\nsglang:prompt_tokens_total 200\nsglang:cached_tokens_total 75\nsglang:cache_hit_rate 0.0\n"
		})
		time.Sleep(2 * time.Second)
		if got := p.Status()[0].HitRate; got != known(0.25) {
			t.Errorf("by its counters: %+v, want 0.25", got)
		}
	})
}

func TestSleepingEngineIsNotReady(t *testing.T) {
	const page = "vllm:num_requests_waiting 0\nvllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} "
	e := served(map[string]string{"/metrics": page + "1"})
	probingEngine(t, e, func(t *testing.T, p *Prober, r *reports) {
		time.Sleep(time.Second)
		if got := r.last(t); !got.Ready {
			t.Fatalf("awake: %+v", got)
		}
		e.set(func(e *engine) { e.pages["/metrics"] = page + "0" })
		time.Sleep(2 * time.Second)
		const reason = "the engine is asleep (vllm:engine_sleep_state): wake it with POST /wake_up, or restart it"
		if got := r.last(t); got.Ready || got.Reason != reason || p.Status()[0].Reason != reason {
			t.Errorf("asleep: %+v, %+v", got, p.Status()[0])
		}
		e.set(func(e *engine) { e.pages["/metrics"] = page + "1" })
		time.Sleep(2 * time.Second)
		if got := r.last(t); !got.Ready {
			t.Errorf("awake again: %+v", got)
		}
	})
}

// An engine of which nothing can be read is ready, and its figures are unknown, not zero.
func TestUnreadableEngineIsReadyAndUnknown(t *testing.T) {
	slots := func(n int) core.ProbeReport { return core.ProbeReport{Slots: known(n)} }
	for _, c := range []struct {
		name   string
		pages  map[string]string
		change func(*engine)
		want   core.ProbeReport
	}{
		{"nothing (Ollama)", nil, nil, core.ProbeReport{}},
		{"llama.cpp without --metrics", map[string]string{"/props": `{"total_slots": 4}`}, func(e *engine) { e.status["/metrics"] = 501 }, slots(4)},
		{"a front with a login page", nil, func(e *engine) { e.status["/metrics"] = 302 }, core.ProbeReport{}},
		{"a front that answers everything", map[string]string{"/metrics": "<html>", "/prometheus/metrics": "<html>", "/props": "<html>"}, nil, core.ProbeReport{}},
		{"metrics without figures", map[string]string{"/metrics": "# TYPE up gauge\nup 1\n"}, nil, core.ProbeReport{}},
		{"metrics that hang", map[string]string{"/metrics": ""}, func(e *engine) { e.slow = map[string]time.Duration{"/metrics": time.Hour} }, core.ProbeReport{}},
	} {
		e := served(c.pages)
		if c.change != nil {
			c.change(e)
		}
		probingEngine(t, e, func(t *testing.T, _ *Prober, r *reports) {
			time.Sleep(2 * time.Second)
			r.drain()
			time.Sleep(10 * time.Second)
			all := r.drain()
			if len(all) < 60 {
				t.Errorf("%s: %d reports in 10 s", c.name, len(all))
			}
			c.want.Age, c.want.Ready = time.Millisecond, true
			for _, got := range all {
				if got.Age = min(got.Age, time.Millisecond); got != c.want {
					t.Fatalf("%s: got %+v, want %+v", c.name, got, c.want)
				}
			}
			for _, path := range []string{"/metrics", "/prometheus/metrics", "/props", "/health"} {
				if n := e.count(path); n > 15 {
					t.Errorf("%s: asked for %s %d times in 12 s", c.name, path, n)
				}
			}
		})
	}
}

// A page that hung once may be as slow as others later.
func TestPageThatHungIsReadAsOthers(t *testing.T) {
	e := served(map[string]string{"/metrics": "vllm:num_requests_waiting 1\n"})
	e.slow = map[string]time.Duration{"/metrics": time.Hour}
	probingEngine(t, e, func(t *testing.T, _ *Prober, r *reports) {
		time.Sleep(3 * time.Second)
		e.set(func(e *engine) { e.slow = nil })
		time.Sleep(2 * time.Second)
		if got := r.last(t); got.Pending != known(1) {
			t.Fatalf("got %+v", got)
		}
		e.set(func(e *engine) { e.slow = map[string]time.Duration{"/metrics": 400 * time.Millisecond} })
		time.Sleep(5 * time.Second)
		for _, got := range r.drain() {
			if !got.Ready || got.Pending != known(1) {
				t.Fatalf("got %+v", got)
			}
		}
	})
}

// A page that was rejected for its rate, or timed out at a proxy, exists: it is read again a second later.
func TestRejectedPageIsReadAgain(t *testing.T) {
	for _, status := range []int{408, 429} {
		e := newEngine()
		probingEngine(t, e, func(t *testing.T, _ *Prober, r *reports) {
			time.Sleep(time.Second)
			e.set(func(e *engine) { e.status["/metrics"] = status })
			time.Sleep(time.Second)
			e.set(func(e *engine) { delete(e.status, "/metrics"); clear(e.asked) })
			time.Sleep(1200 * time.Millisecond)
			for _, got := range r.drain() {
				if !got.Ready || got.Pending != known(1) {
					t.Fatalf("%d: got %+v", status, got)
				}
			}
			e.set(func(e *engine) { e.status["/metrics"], e.status["/health"] = status, 503 })
			time.Sleep(3 * time.Second)
			if got := r.drain(); !hasReason(got, "GET /health returned 503 Service Unavailable") {
				t.Errorf("%d: unhealthy: %+v", status, got)
			}
		})
	}
}

// An engine without metrics need not have /props either, and a gateway may close the connection for it.
func TestBrokenPropsAreIgnored(t *testing.T) {
	e := served(nil)
	e.broken = "/props"
	probingEngine(t, e, func(t *testing.T, _ *Prober, r *reports) {
		time.Sleep(10 * time.Second)
		all := r.drain()
		if len(all) < 90 {
			t.Errorf("%d reports in 10 s", len(all))
		}
		for _, got := range all {
			if !got.Ready || got.Slots.Known {
				t.Fatalf("got %+v", got)
			}
		}
	})
}

// An engine that creates its gauges with its first request is read from then on.
func TestFiguresThatAppearLaterAreRead(t *testing.T) {
	e := served(map[string]string{"/metrics": "up 1\n"})
	probingEngine(t, e, func(t *testing.T, _ *Prober, r *reports) {
		time.Sleep(5 * time.Second)
		e.set(func(e *engine) { e.pages["/metrics"] = sglangPage + "1" })
		time.Sleep(1500 * time.Millisecond)
		if got := r.last(t); got.Pending != known(2) {
			t.Errorf("got %+v", got)
		}
	})
}

// llama.cpp responds to /metrics between two steps, which may take longer than a probe.
func TestBusyLlamaCPPStaysReady(t *testing.T) {
	e := served(map[string]string{"/metrics": "llamacpp:requests_processing 4\nllamacpp:requests_deferred 2\n"})
	probingEngine(t, e, func(t *testing.T, _ *Prober, r *reports) {
		time.Sleep(time.Second)
		if got := r.last(t); got.Pending != known(2) || got.MetricsAge != 0 {
			t.Fatalf("got %+v", got)
		}
		e.set(func(e *engine) { e.slow = map[string]time.Duration{"/metrics": time.Hour} })
		for i := range 10 {
			time.Sleep(800 * time.Millisecond)
			if got := r.last(t); !got.Ready || got.Pending != known(2) || got.MetricsAge < time.Duration(i)*800*time.Millisecond-time.Second/2 {
				t.Fatalf("busy for %v: %+v", time.Duration(i+1)*800*time.Millisecond, got)
			}
		}
		e.set(func(e *engine) { e.slow = map[string]time.Duration{"/metrics": time.Hour, "/health": time.Hour} })
		time.Sleep(3 * time.Second)
		r.drain()
		time.Sleep(3 * time.Second)
		if all := r.drain(); len(all) > 0 && all[len(all)-1].Ready {
			t.Errorf("a dead engine is ready: %+v", all[len(all)-1])
		}
	})
}

// The reason of a replica that is not ready has the timeout of the request that failed.
func TestReasonHasTheTimeoutOfTheRequest(t *testing.T) {
	e := served(map[string]string{"/metrics": "llamacpp:requests_processing 4\nllamacpp:requests_deferred 2\n"})
	probingEngine(t, e, func(t *testing.T, p *Prober, _ *reports) {
		time.Sleep(time.Second)
		e.set(func(e *engine) { e.slow = map[string]time.Duration{"/metrics": time.Hour, "/health": time.Hour} })
		for range 60 {
			time.Sleep(50 * time.Millisecond)
			if s := p.Status()[0]; !s.Ready {
				if s.Reason != "no response within 250ms" {
					t.Errorf("reason %q", s.Reason)
				}
				return
			}
		}
		t.Error("a silent engine is ready")
	})
}

func TestTensorRTIsReadFromEitherPage(t *testing.T) {
	const step = `[{"numActiveRequests": 5, "numQueuedRequests": 3}]`
	e := served(map[string]string{"/metrics": step})
	probingEngine(t, e, func(t *testing.T, _ *Prober, r *reports) {
		time.Sleep(3 * time.Second)
		if got := r.last(t); got.Pending != known(3) || got.Running != known(5) || got.MetricsAge != 0 {
			t.Errorf("JSON: %+v", got)
		}
		// Without a step there is nothing new.
		e.set(func(e *engine) { e.pages["/metrics"] = "[]" })
		time.Sleep(time.Second)
		if got := r.last(t); got.Pending != known(3) || got.MetricsAge < 800*time.Millisecond || !got.Ready {
			t.Errorf("idle: %+v", got)
		}
	})
	e = served(map[string]string{"/metrics": step, "/prometheus/metrics": "trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 2\n"})
	probingEngine(t, e, func(t *testing.T, _ *Prober, r *reports) {
		time.Sleep(5 * time.Second)
		if got := r.last(t); got.Pending != known(1) || got.Running != known(2) {
			t.Errorf("Prometheus: %+v", got)
		}
		if n := e.count("/metrics"); n > 1 {
			t.Errorf("took steps from other readers %d times", n)
		}
	})
}

// Each rank's figures have an age of their own.
func TestRanksAgeSeparately(t *testing.T) {
	page := func(first, second string) string {
		return "sglang:num_queue_reqs{dp_rank=\"0\"} " + first + "\nsglang:num_queue_reqs{dp_rank=\"1\"} " + second + "\n"
	}
	e := served(map[string]string{"/metrics": page("1", "1")})
	probing(t, service.ReplicaConfig{Model: "llama", DataParallel: 2}, e, Options{}, func(t *testing.T, _ *Prober, r *reports) {
		time.Sleep(time.Second)
		e.set(func(e *engine) { e.pages["/metrics"] = page("1", "2") })
		time.Sleep(120 * time.Millisecond)
		all := r.drain()
		first, second := all[len(all)-2], all[len(all)-1]
		if first.MetricsAge < 900*time.Millisecond || second.MetricsAge > 110*time.Millisecond {
			t.Errorf("got %+v and %+v", first, second)
		}
		if want := (policy.Maybe[int]{Value: 2, Known: true}); second.Pending != want {
			t.Errorf("got %+v", second)
		}
	})
}
