package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/record"
)

const bigBody = `{"model":"big","max_tokens":100,"messages":[{"role":"user","content":"hello"}]}`

// engineRequest is a request as an engine received it.
type engineRequest struct {
	model  string
	header http.Header
}

// recording is an engine that records requests before it responds.
type recording struct {
	mu   sync.Mutex
	seen []engineRequest
}

func (r *recording) with(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		var call struct{ Model string }
		_ = json.Unmarshal(body, &call)
		r.mu.Lock()
		r.seen = append(r.seen, engineRequest{call.Model, req.Header.Clone()})
		r.mu.Unlock()
		req.Body = io.NopCloser(strings.NewReader(string(body)))
		next(w, req)
	}
}

func (r *recording) all() []engineRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

// startFallback starts a balancer whose model big falls back to others.
func startFallback(t *testing.T, fallback ...string) *balancer {
	o := roundRobin(t)
	o.Core.MaxAttempts = 2
	o.Self.Models = []service.BalancerModel{{Name: "big", Aliases: []string{"chat"}, Fallback: fallback, FallbackAfter: 50 * time.Millisecond}, {Name: "small"}}
	return start(t, o)
}

// attachModel adds a replica of a model, with requests pending at the engine.
func (b *balancer) attachModel(id, model, url string, pending int) {
	b.t.Helper()
	if _, err := b.AddReplica(service.ReplicaConfig{ID: id, URL: url, Model: model}); err != nil {
		b.t.Fatal(err)
	}
	b.Step(core.Event{Kind: core.EventReplicaReport, Target: id, Report: &core.ProbeReport{Ready: true, Pending: policy.Known(pending), Running: policy.Known(0), KV: policy.Known(0.0)}})
}

// pricedProvider is an engine with a complete response and a usage of 1000 and 500 tokens.
func pricedProvider(w http.ResponseWriter, req *http.Request) {
	_, _ = io.Copy(io.Discard, req.Body)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Openai-Organization", "org-private")
	w.Header().Set("Set-Cookie", "account=private")
	fmt.Fprint(w, `{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"fine"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":500,"total_tokens":1500}}`)
}

// A model that cannot serve a request falls back, whatever the cause is, and the client sees it.
func TestFallbackByCause(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		big    func(b *balancer) // attaches replicas
	}{
		"no replica": {core.RejectNoReplica, func(*balancer) {}},
		"no capacity": {core.RejectWaitExceeded, func(b *balancer) {
			b.attachModel("big-0", "big", engine(b.t, pricedProvider), 9)
		}},
		"not ready": {core.RejectWaitExceeded, func(b *balancer) {
			b.attachModel("big-0", "big", engine(b.t, pricedProvider), 0)
			b.Step(core.Event{Kind: core.EventReplicaReport, Target: "big-0", Report: &core.ProbeReport{Reason: "loading"}})
		}},
		"queue full": {core.RejectQueueFull, func(b *balancer) {
			b.attachModel("big-0", "big", engine(b.t, pricedProvider), 9)
			cfg := b.coreCfg
			cfg.QueueLimit = 1
			b.Reconfigure(cfg)
			b.Step(core.Event{Kind: core.EventArrived, Request: &core.Request{ID: "held", Model: "big"}})
		}},
		"refused with 503": {core.RejectRefused, func(b *balancer) {
			b.attachModel("big-0", "big", engine(b.t, refuse(503, `{}`, nil)), 0)
		}},
		"refused with 429": {core.RejectRefused, func(b *balancer) {
			b.attachModel("big-0", "big", engine(b.t, refuse(429, `{}`, nil)), 0)
		}},
		"unknown model": {core.RejectRefused, func(b *balancer) {
			b.attachModel("big-0", "big", engine(b.t, refuse(404, refusals["404 of the model, vLLM"].body, nil)), 0)
		}},
		"rejected key": {core.RejectRefused, func(b *balancer) {
			b.attachKeyed("big-0", engine(b.t, refuse(401, `{}`, nil)), "sk-wrong")
			if _, err := b.AddReplica(service.ReplicaConfig{ID: "big-0", URL: engine(b.t, refuse(401, `{}`, nil)), Model: "big", Key: "sk-wrong"}); err != nil {
				b.t.Fatal(err)
			}
			b.report("big-0")
		}},
		"failing": {core.RejectRetriesExhausted, func(b *balancer) {
			b.attachModel("big-0", "big", engine(b.t, refuse(500, `{}`, nil)), 0)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b, small := startFallback(t, "small"), &recording{}
			if c.reason != core.RejectWaitExceeded {
				b.SetModels([]service.BalancerModel{{Name: "big", Aliases: []string{"chat"}, Fallback: []string{"small"}, FallbackAfter: time.Minute}, {Name: "small"}}, nil)
			}
			c.big(b)
			b.attachModel("small-0", "small", engine(t, small.with(pricedProvider)), 0)
			resp := b.post(chatPath, strings.Replace(bigBody, "big", "chat", 1), "X-Request-ID: r1")
			expect(t, resp, http.StatusOK, "")
			h := resp.Header
			if h.Get(headerReplica) != "small-0" || h.Get(headerDecision) != "fallback:"+c.reason {
				t.Errorf("served by %q, decision %q", h.Get(headerReplica), h.Get(headerDecision))
			}
			if got := small.all(); len(got) != 1 || got[0].model != "small" {
				t.Errorf("the fallback received %+v", got)
			}
			d, _ := b.Decision("r1")
			last := d.Attempts[len(d.Attempts)-1]
			if d.Model != "big" || d.State != record.StateFinished || last.Model != "small" || last.Target != "small-0" || d.Attempts[0].Model != "" {
				t.Errorf("its record is %+v", d)
			}
			if got := b.Fallbacks(time.Now()); len(got) != 1 || got[0].Model != "big" || got[0].To != "small" || got[0].Reason != c.reason {
				t.Errorf("fallbacks %+v", got)
			}
			if points := b.History(0); !slices.ContainsFunc(points, func(p telemetry.Point) bool { return p.Model == "big" && p.PromptTokens == 1000 }) {
				t.Errorf("the demand is not counted for the requested model: %+v", points)
			}
			lawful(t, b.View().Counts)
		})
	}
}

// When a model gets another name, requests that wait for its last replica with the earlier name are served under the new one
// once that replica is removed.
func TestRequestsForEarlierNameAreServed(t *testing.T) {
	b, renamed := startFallback(t), &recording{}
	b.attachModel("big-0", "big", engine(t, pricedProvider), 9) // it admits no request
	done := make(chan *http.Response)
	go func() { done <- b.post(chatPath, bigBody) }()
	b.until(func() bool { return b.View().Counts.Queued == 1 })
	b.attachModel("new-0", "new", engine(t, renamed.with(pricedProvider)), 0)
	b.SetModels([]service.BalancerModel{{Name: "new", Aliases: []string{"big"}}}, nil)
	if _, err := b.RemoveReplica("big-0", 0); err != nil {
		t.Fatal(err)
	}
	expect(t, <-done, http.StatusOK, "")
	if got := renamed.all(); len(got) != 1 || got[0].model != "new" {
		t.Errorf("the model with the new name received %+v", got)
	}
	lawful(t, b.View().Counts)
}

// Requests that another model must not serve get the response of their own model.
func TestNoFallback(t *testing.T) {
	for name, c := range map[string]struct {
		big          http.HandlerFunc
		path, body   string
		status       int
		wantInAnswer string
	}{
		"client error":       {refuse(400, `{"error":{"message":"too long"}}`, nil), chatPath, bigBody, 400, "too long"},
		"client's own key":   {refuse(401, `{"error":{"message":"your key"}}`, nil), chatPath, bigBody, 401, "your key"},
		"embedding":          {refuse(503, `{"error":{"message":"overloaded"}}`, nil), "/v1/embeddings", `{"model":"big","input":"hello"}`, 503, "overloaded"},
		"a stored response":  {refuse(503, `{"error":{"message":"overloaded"}}`, nil), "/v1/responses", `{"model":"big","input":"hello"}`, 503, "overloaded"},
		"after the response": {cut("text/event-stream", chunk("so")), chatPath, `{"model":"big","stream":true,"n":2,"messages":[]}`, 200, "replica_failed"},
	} {
		t.Run(name, func(t *testing.T) {
			b, small := startFallback(t, "small"), &recording{}
			b.attachModel("big-0", "big", engine(t, c.big), 0)
			b.attachModel("small-0", "small", engine(t, small.with(pricedProvider)), 0)
			resp := b.post(c.path, c.body)
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != c.status || !strings.Contains(string(body), c.wantInAnswer) || len(small.all()) != 0 {
				t.Errorf("got %d %s, the other model received %+v", resp.StatusCode, body, small.all())
			}
		})
	}
}

// provide adds a provider with the models gpt and mini.
func (b *balancer) provide(p service.Provider, h http.HandlerFunc) {
	b.t.Helper()
	p.Name, p.URL = "ext", engine(b.t, h)+"/api"
	price := &service.Price{Input: 10, Output: 20}
	p.Models = []service.ProviderModel{{Name: "gpt", Price: price}, {Name: "mini", Price: price}}
	if err := b.SetProviders([]ProviderAccess{{Provider: p, Key: "sk-provider"}}); err != nil {
		b.t.Fatal(err)
	}
}

// A provider receives the body with its model's name and its key, and nothing else about the client. The
// client receives nothing about the operator's account.
func TestProviderReceivesOnlyBody(t *testing.T) {
	b, seen := startFallback(t, "ext/gpt"), &recording{}
	b.provide(service.Provider{}, seen.with(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.String() != "/api"+chatPath {
			t.Errorf("requested %s", req.URL)
		}
		pricedProvider(w, req)
	}))
	resp := b.post(chatPath+"?trace=private", bigBody, "Authorization: Bearer sk-client", "Cookie: private", "X-Session-ID: private", "User-Agent: private", "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	expect(t, resp, http.StatusOK, "")
	got := seen.all()
	if len(got) != 1 || got[0].model != "gpt" || got[0].header.Get("Authorization") != "Bearer sk-provider" || strings.Contains(fmt.Sprint(got), "private") || strings.Contains(fmt.Sprint(got), "0af7651916cd43dd8448eb211c80319c") {
		t.Errorf("the provider received %+v", got)
	}
	if resp.Header.Get(headerReplica) != "ext/gpt" || strings.Contains(fmt.Sprint(resp.Header), "private") {
		t.Errorf("the client received %v", resp.Header)
	}
}

// Clients and peers cannot use a provider's model, and it is no replica of the service.
func TestProviderServesOnlyFallbacks(t *testing.T) {
	b := startFallback(t, "ext/gpt")
	b.provide(service.Provider{}, pricedProvider)
	for _, model := range []string{"ext/gpt", "ext/mini", "gpt"} {
		expect(t, b.post(chatPath, strings.Replace(bigBody, "big", model, 1)), http.StatusNotFound, "model_not_found")
	}
	if _, body := b.get("/v1/models"); strings.Contains(body, "ext/") {
		t.Errorf("listed: %s", body)
	}
	if len(b.Replicas()) != 0 || slices.ContainsFunc(b.ModelLoads(), func(l core.ModelLoad) bool { return strings.HasPrefix(l.Model, "ext/") }) {
		t.Errorf("replicas %v, loads for peers %v", b.Replicas(), b.ModelLoads())
	}
	if err := b.SetProviders(nil); err != nil {
		t.Fatal(err)
	}
	expect(t, b.post(chatPath, bigBody), http.StatusServiceUnavailable, core.RejectNoReplica)
}

// A failing provider leaves the client with the error of its model, or with the next fallback.
func TestFailingProvider(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]http.HandlerFunc{
		"401": refuse(401, `{"error":{"message":"sk-provider is wrong"}}`, nil),
		"402": refuse(402, `{"error":{"message":"no credit"}}`, nil),
		"429": refuse(429, `{"error":{"message":"slow down"}}`, nil),
		"500": refuse(500, `{"error":{"message":"internal"}}`, nil),
		"cut": cut("application/json", `{"id":`),
		"a page": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprint(w, loginPage)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := startFallback(t, "ext/gpt", "small")
			b.provide(service.Provider{USDPerDay: 1}, h)
			body := expect(t, b.post(chatPath, bigBody), http.StatusServiceUnavailable, core.RejectNoReplica)
			if strings.Contains(body, "sk-provider") || strings.Contains(body, "credit") {
				t.Errorf("the client received %s", body)
			}
			b.attachModel("small-0", "small", engine(t, pricedProvider), 0)
			resp := b.post(chatPath, bigBody)
			expect(t, resp, http.StatusOK, "")
			if got := resp.Header.Get(headerReplica); got != "small-0" {
				t.Errorf("served by %s", got)
			}
			b.settled()
			if p := b.providers["ext"]; p.reserved != 0 || p.spent != 0 {
				t.Errorf("%g USD are reserved and %g spent", p.reserved, p.spent)
			}
		})
	}
}

// If no fallback serves a request that every replica rejected, the client receives the rejection of its
// own model, as from its own replica.
func TestRejectionSurvivesFailedFallbacks(t *testing.T) {
	b := startFallback(t, "small")
	b.attachModel("big-0", "big", engine(t, refuse(429, `{"error":{"message":"big is busy"}}`, nil)), 0)
	b.attachModel("small-0", "small", engine(t, refuse(503, `{"error":{"message":"small is busy"}}`, nil)), 0)
	resp := b.post(chatPath, bigBody)
	body := read(t, resp)
	if resp.StatusCode != 429 || !strings.Contains(body, "big is busy") || resp.Header.Get(headerReplica) != "big-0" || strings.HasPrefix(resp.Header.Get(headerDecision), "fallback") {
		t.Errorf("got %d %s with %v", resp.StatusCode, body, resp.Header)
	}
	lawful(t, b.settled())
}

// A slow provider is given up like a slow replica.
func TestSlowProvider(t *testing.T) {
	o := roundRobin(t)
	o.Core.MaxAttempts, o.Limits.ResponseTimeout = 1, 50*time.Millisecond
	o.Self.Models = []service.BalancerModel{{Name: "big", Fallback: []string{"ext/gpt", "small"}}}
	b := start(t, o)
	b.provide(service.Provider{}, func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		<-req.Context().Done()
	})
	b.attachModel("small-0", "small", engine(t, pricedProvider), 0)
	resp := b.post(chatPath, bigBody)
	expect(t, resp, http.StatusOK, "")
	if got := resp.Header.Get(headerReplica); got != "small-0" {
		t.Errorf("served by %s", got)
	}
}

// Requests beyond a provider's limits go to the next fallback.
func TestProviderLimits(t *testing.T) {
	for name, c := range map[string]struct {
		limits service.Provider
		served int
	}{
		"requests per minute": {service.Provider{RequestsPerMinute: 2}, 2},
		"tokens per minute":   {service.Provider{TokensPerMinute: 3300}, 3}, // a request uses 1500, and about 100 are reserved before it
		"USD per day":         {service.Provider{USDPerDay: 0.05}, 3},       // a request costs 0.02, and about 0.002 are reserved before it
		"none":                {service.Provider{}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			b, provided := startFallback(t, "ext/gpt", "small"), atomic.Int64{}
			b.provide(c.limits, func(w http.ResponseWriter, req *http.Request) {
				provided.Add(1)
				pricedProvider(w, req)
			})
			b.attachModel("small-0", "small", engine(t, pricedProvider), 0)
			for range 5 {
				expect(t, b.post(chatPath, bigBody), http.StatusOK, "")
				b.settled()
			}
			if got := int(provided.Load()); got != c.served {
				t.Errorf("the provider served %d requests, want %d", got, c.served)
			}
			if p := b.providers["ext"]; p.reserved != 0 || p.spent < 0.0199*float64(c.served) || p.spent > 0.0201*float64(c.served) {
				t.Errorf("%g USD spent, %g reserved", p.spent, p.reserved)
			}
		})
	}
}

// The limit on concurrent requests holds while responses are in progress, and a reload keeps the usage.
func TestProviderConcurrency(t *testing.T) {
	b, release := startFallback(t, "ext/gpt"), make(chan struct{})
	arrived := make(chan struct{}, 4)
	b.provide(service.Provider{Concurrent: 1}, func(w http.ResponseWriter, req *http.Request) {
		arrived <- struct{}{}
		<-release
		pricedProvider(w, req)
	})
	done := make(chan int, 1)
	go func() {
		resp := b.post(chatPath, bigBody)
		_, _ = io.Copy(io.Discard, resp.Body)
		done <- resp.StatusCode
	}()
	<-arrived
	expect(t, b.post(chatPath, bigBody), http.StatusServiceUnavailable, core.RejectNoReplica)
	close(release)
	if got := <-done; got != http.StatusOK {
		t.Errorf("the first request got %d", got)
	}
	b.settled()
	expect(t, b.post(chatPath, bigBody), http.StatusOK, "")
}

// A fallback may queue a request for the rest of the maximum wait, and for a fallback's share of it while
// there is another one.
func TestFallbackWaitCountsOnce(t *testing.T) {
	b := startFallback(t, "small", "ext/gpt")
	rule := fallbackRule{models: []string{"small", "ext/gpt"}, after: 10 * time.Second}
	limit := b.coreCfg.MaxWait
	for _, c := range []struct {
		waited time.Duration
		next   int
		tier   service.Tier
		want   time.Duration
	}{
		{10 * time.Second, 1, service.TierFast, 10 * time.Second},
		{10 * time.Second, 2, service.TierFast, limit - 10*time.Second},
		{limit - 4*time.Second, 1, service.TierNormal, 4 * time.Second},
		{limit, 2, service.TierFast, time.Second},
		{10 * time.Second, 2, service.TierDeferred, 0},
	} {
		x := &exchange{rt: b.Runtime, sender: sender{tier: c.tier}, fallback: &fallback{next: c.next}}
		if got := x.remainingWait(rule, c.waited); got != c.want {
			t.Errorf("after %s, before fallback %d, %s: %s, want %s", c.waited, c.next, c.tier, got, c.want)
		}
	}
}

// Streams fall back too, before their first byte.
func TestStreamFallsBackToProvider(t *testing.T) {
	b := startFallback(t, "ext/gpt")
	b.attachModel("big-0", "big", engine(t, cut("text/event-stream", "")), 0)
	b.provide(service.Provider{}, speak("fine"))
	got := expect(t, b.post(chatPath, strings.Replace(bigBody, "{", `{"stream":true,`, 1)), http.StatusOK, "")
	if !strings.Contains(got, "fine") || !strings.HasSuffix(got, "data: [DONE]\n\n") {
		t.Errorf("the client received %q", got)
	}
	lawful(t, b.settled())
}
