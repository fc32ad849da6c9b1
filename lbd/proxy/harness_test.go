package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/buffer"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

func TestMain(m *testing.M) {
	buffer.Poison = true
	// Tests of timeouts wait: more of them than processors run at once.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

const testModel = "meta-llama/Llama-3.1-8B-Instruct"

// balancer is a runtime behind a listener.
type balancer struct {
	*Runtime
	t   *testing.T
	url string
	srv *httptest.Server
}

// testOptions returns options with which no report becomes stale, and retries wait only briefly.
func testOptions(t testing.TB) Options {
	t.Helper()
	p, err := policy.New("skylb")
	if err != nil {
		t.Fatal(err)
	}
	cfg := core.DefaultConfig(p)
	cfg.ProbeInterval, cfg.RetryBackoff, cfg.KillProbeTime = time.Hour, time.Millisecond, time.Millisecond
	return Options{
		Self: service.BalancerConfig{
			Service: "chat", ID: "lb-us-0", Region: "local/us",
			Models: []service.BalancerModel{{Name: testModel, Aliases: []string{"chat-small"}}},
		},
		Core: cfg,
	}
}

// apiKeys returns keys without limits.
func apiKeys(secrets ...string) []service.APIKey {
	keys, err := service.ParseKeys(strings.Join(secrets, "\n"), service.KeyLimits{})
	if err != nil {
		panic(err)
	}
	return keys
}

// start serves a runtime until the test ends.
func start(t *testing.T, o Options) *balancer {
	t.Helper()
	transport := NewTransport(nil)
	if o.Transport == nil {
		o.Transport = transport
	}
	rt, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	rt.Start(ctx)
	t.Cleanup(func() {
		cancel()
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
		transport.CloseIdleConnections()
	})
	return serveWith(t, rt)
}

// serveWith puts a runtime that the caller starts behind a listener.
func serveWith(t *testing.T, rt *Runtime) *balancer {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/", rt.Handler())
	mux.HandleFunc("GET "+PathHasResponse, rt.ServeHasResponse)
	srv := httptest.NewServer(mux)
	t.Cleanup(func() {
		srv.Close()
		if tr, ok := rt.transport.(interface{ CloseIdleConnections() }); ok {
			tr.CloseIdleConnections()
		}
	})
	return &balancer{Runtime: rt, t: t, url: srv.URL, srv: srv}
}

// engine serves h as a replica until the test ends and returns its URL.
func engine(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv.URL
}

// attach adds a replica and reports it ready with nothing pending.
func (b *balancer) attach(id, url string) {
	b.t.Helper()
	if _, err := b.AddReplica(service.ReplicaConfig{ID: id, URL: url, Model: testModel}); err != nil {
		b.t.Fatal(err)
	}
	b.report(id)
}

func (b *balancer) report(id string) {
	b.Step(core.Event{Kind: core.EventReplicaReport, Target: id, Report: &core.ProbeReport{
		Ready: true, Pending: policy.Known(0), Running: policy.Known(0), KV: policy.Known(0.0),
	}})
}

// post sends a body with header lines "Name: value" and returns the open response.
func (b *balancer) post(path, body string, headers ...string) *http.Response {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, b.url+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	return b.do(req, headers...)
}

func (b *balancer) do(req *http.Request, headers ...string) *http.Response {
	b.t.Helper()
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// client keeps no connections, so that none outlives its test.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}

func (b *balancer) get(path string, headers ...string) (int, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.url+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	resp := b.do(req, headers...)
	return resp.StatusCode, read(b.t, resp)
}

func read(t *testing.T, resp *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("reading a response: %v after %q", err, body)
	}
	_ = resp.Body.Close()
	return string(body)
}

// apiErrorOf parses an error in OpenAI's format.
func apiErrorOf(t *testing.T, body string) (message, kind, code string) {
	t.Helper()
	var e struct {
		Error struct {
			Message, Type string
			Param, Code   *string
		}
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatalf("%q is not an error in OpenAI's format: %v", body, err)
	}
	if e.Error.Code != nil {
		code = *e.Error.Code
	}
	return e.Error.Message, e.Error.Type, code
}

// expect checks a response's status and, for an error, its code.
func expect(t *testing.T, resp *http.Response, status int, code string) string {
	t.Helper()
	body := read(t, resp)
	if resp.StatusCode != status {
		t.Fatalf("status %d, want %d: %s", resp.StatusCode, status, body)
	}
	if code != "" {
		if _, _, got := apiErrorOf(t, body); got != code {
			t.Fatalf("code %q, want %q: %s", got, code, body)
		}
	}
	return body
}

// settled waits until nothing is in flight and returns the counts.
func (b *balancer) settled() core.Counts {
	b.t.Helper()
	b.until(func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.inFlight) == 0
	})
	return b.View().Counts
}

// until waits for a condition that another goroutine makes true.
func (b *balancer) until(ok func() bool) {
	b.t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(20 * time.Second); !ok(); <-ticker.C {
		if time.Now().After(deadline) {
			b.t.Fatal("the condition was not met in time")
		}
	}
}

// tallied sums all points, because a test may run across the end of a minute.
func (b *balancer) tallied() (sum telemetry.Point) {
	for _, p := range b.History(0) {
		sum.Requests += p.Requests
		sum.PromptTokens += p.PromptTokens
		sum.CachedTokens += p.CachedTokens
		sum.OutputTokens += p.OutputTokens
	}
	return sum
}

// lawful checks that every request has exactly one result.
func lawful(t *testing.T, c core.Counts) {
	t.Helper()
	if sum := c.Finished + c.Rejected + c.Cancelled + c.Bounced + int64(c.Queued+c.Outstanding); c.Arrived != sum {
		t.Errorf("%d requests arrived, %d are accounted for: %+v", c.Arrived, sum, c)
	}
}

func chunk(content string) string {
	c, _ := json.Marshal(content)
	return fmt.Sprintf(`data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":%s},"finish_reason":null}]}`+"\n\n", c)
}

func usageEvent(prompt, cached, output int) string {
	return fmt.Sprintf(`data: {"id":"c","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`+"\n\n",
		prompt, output, prompt+output, cached)
}

const doneEvent = "data: [DONE]\n\n"

// speak is an engine that streams a response word by word and, on request, the usage.
func speak(words ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, value := range words {
			_, _ = io.WriteString(w, chunk(value))
			_ = http.NewResponseController(w).Flush()
		}
		if bytes.Contains(body, []byte(`"include_usage":true`)) {
			_, _ = io.WriteString(w, usageEvent(100, 64, len(words)))
		}
		_, _ = io.WriteString(w, doneEvent)
	}
}

// whole is an engine with non-streamed responses.
func whole(answer string) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	}
}

const (
	chatPath   = "/v1/chat/completions"
	streamBody = `{"model":"` + testModel + `","stream":true,"messages":[{"role":"user","content":"hello"}]}`
	plainBody  = `{"model":"` + testModel + `","messages":[{"role":"user","content":"hello"}]}`
	plainReply = `{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi there"},"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":2,"total_tokens":14}}`
)

const textPath = "/v1/completions"
