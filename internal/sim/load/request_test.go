package load

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/sim/workload"
)

// serveOnce sends one request to a handler over a real connection.
func serveOnce(t *testing.T, c Config, handler http.HandlerFunc) (result, *Report) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c.Targets = []Target{{"us", server.URL}}
	r, err := newRun(context.Background(), c, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	res := r.serveRequest(c.Targets[0], (&looped{}).Next()[0])
	return res, r.record.report(time.Second, false)
}

// stream writes pieces of a stream and flushes each.
func stream(w http.ResponseWriter, pieces ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, p := range pieces {
		_, _ = io.WriteString(w, p) // the test checks the received data
		w.(http.Flusher).Flush()
	}
}

// cut closes the connection in the middle of the response.
func cut(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

func TestRequestOutcomes(t *testing.T) {
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		outcome outcome
		status  int
		reason  string
		detail  string
	}{
		{
			name: "completed",
			handler: func(w http.ResponseWriter, _ *http.Request) {
				stream(w, contentEvent("a"), contentEvent("b"), doneEvent)
			},
			status: 200,
		},
		{
			name: "over limit", outcome: outcomeRejected, status: 429, reason: reasonStatus, detail: "status 429: slow down",
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "1.5")
				http.Error(w, `{"error":{"message":"slow down"}}`, http.StatusTooManyRequests)
			},
		},
		{
			name: "nothing can serve", outcome: outcomeRejected, status: 503, reason: reasonStatus, detail: "status 503: ",
			handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) },
		},
		{
			name: "bad gateway", outcome: outcomeFailed, status: 502, reason: reasonStatus, detail: "status 502: oh",
			handler: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "oh", http.StatusBadGateway) },
		},
		{
			name: "unknown model", outcome: outcomeFailed, status: 404, reason: reasonStatus, detail: "status 404: ",
			handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) },
		},
		{
			name: "silence instead of [DONE]", outcome: outcomeFailed, status: 200, reason: reasonBroken, detail: "stream ended without [DONE]",
			handler: func(w http.ResponseWriter, _ *http.Request) { stream(w, contentEvent("a")) },
		},
		{
			name: "not a stream", outcome: outcomeFailed, status: 200, reason: reasonBroken, detail: "stream ended without [DONE]",
			handler: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"choices":[]}`) },
		},
		{
			name: "connection lost", outcome: outcomeFailed, status: 200, reason: reasonBroken, detail: "unexpected EOF",
			handler: func(w http.ResponseWriter, _ *http.Request) { stream(w, contentEvent("a")); cut(w) },
		},
		{
			name: "connection lost before the response", outcome: outcomeFailed, reason: reasonConnect, detail: "EOF",
			handler: func(w http.ResponseWriter, _ *http.Request) { cut(w) },
		},
		{
			name: "error event", outcome: outcomeFailed, status: 200, reason: reasonError, detail: "replica us-0 died",
			handler: func(w http.ResponseWriter, _ *http.Request) {
				stream(w, contentEvent("a"), `data: {"error":{"message":"replica us-0 died"}}`+"\n\n", doneEvent)
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, report := serveOnce(t, Config{}, c.handler)
			if res.outcome != c.outcome || res.status != c.status || res.reason != c.reason || !strings.Contains(res.detail, c.detail) {
				t.Errorf("outcome %d, status %d, reason %q, detail %q", res.outcome, res.status, res.reason, res.detail)
			}
			checkLaw(t, report)
			if report.FirstError != res.detail {
				t.Errorf("first error %q, want %q", report.FirstError, res.detail)
			}
		})
	}
}

func TestTimeoutIsAFailure(t *testing.T) {
	for name, r := range map[string]reply{
		"before the response": {hang: true},
		"in the stream":       {chunks: streamed(5, time.Second, time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := oneRegion(newFake(func(int, seen) reply { return r }))
				c.Timeout = 3*time.Second + 1
				run, err := newRun(context.Background(), c, time.Hour)
				if err != nil {
					t.Fatal(err)
				}
				defer run.close()
				begin := time.Now()
				res := run.serveRequest(c.Targets[0], (&looped{}).Next()[0])
				if took := time.Since(begin); took != c.Timeout || res.outcome != outcomeFailed || res.reason != reasonTimeout || res.detail != "the request timed out" {
					t.Errorf("after %s: outcome %d, reason %q, detail %q", took, res.outcome, res.reason, res.detail)
				}
				if !r.hang && res.events != 3 {
					t.Errorf("%d events before the timeout, want 3", res.events)
				}
			})
		})
	}
}

func TestConnectionErrorIsAFailure(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	url := server.URL
	server.Close() // its port is free now
	r, err := newRun(context.Background(), Config{Targets: []Target{{"us", url}}}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	res := r.serveRequest(Target{"us", url}, (&looped{}).Next()[0])
	if res.outcome != outcomeFailed || res.reason != reasonConnect || !strings.Contains(res.detail, "refused") {
		t.Errorf("outcome %d, reason %q, detail %q", res.outcome, res.reason, res.detail)
	}
}

func TestRetryAfterIsBounded(t *testing.T) {
	for header, want := range map[string]time.Duration{"1.5": 1500 * time.Millisecond, "9999": maxBackoff, "-1": 0, "soon": 0} {
		res, _ := serveOnce(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", header)
			w.WriteHeader(429)
		})
		if res.retryAfter != want {
			t.Errorf("Retry-After %q: %s, want %s", header, res.retryAfter, want)
		}
	}
}

func TestForwardedResponsesAreCounted(t *testing.T) {
	for header, want := range map[string]bool{"": false, "us": false, "local/us": false, "eu": true, "aws/eu-west-1": true} {
		res, _ := serveOnce(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
			if header != "" {
				w.Header().Set("X-Skyserve-Region", header)
			}
			stream(w, doneEvent)
		})
		if res.forwarded != want {
			t.Errorf("X-Skyserve-Region %q: forwarded %v", header, res.forwarded)
		}
	}
}

func TestResponsesAndUsage(t *testing.T) {
	res, report := serveOnce(t, Config{HonorEOS: true}, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "ignore_eos") {
			http.Error(w, "ignore_eos was sent", 400)
			return
		}
		stream(w, ": ping\n\n", contentEvent("one\n"), contentEvent("\"two\" ü"), usageEvent(50, 7, 30), doneEvent)
	})
	if string(res.response) != "one\n\"two\" ü" || res.events != 2 || res.outputTokens() != 7 {
		t.Errorf("response %q of %d events and %d tokens", res.response, res.events, res.outputTokens())
	}
	if report.OutputTokens != 7 || *report.PrefixHitRate != 0.6 || report.TPOT == nil || report.ITL == nil {
		t.Errorf("report %+v", report.ClientFigures)
	}
	wantClose(t, "tokens/s of two events with 3.5 tokens each in a second", report.OutputTokensPerSecond, 7, 1e-9)
	res, report = serveOnce(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
		stream(w, contentEvent("a"), contentEvent("b"), contentEvent("c"), doneEvent)
	})
	if res.outputTokens() != 3 || report.PrefixHitRate != nil || report.CachedTokens != nil {
		t.Errorf("without usage: %d tokens, report %+v", res.outputTokens(), report.ClientFigures)
	}
}

// A balancer that hides cached tokens omits the header and reports 0 cached tokens: the hit rate is
// unknown, not 0.
func TestHiddenCachedTokensAreUnknown(t *testing.T) {
	for header, known := range map[string]bool{"": false, "0.000": true} {
		_, report := serveOnce(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Skyserve-Region", "local/us")
			if header != "" {
				w.Header().Set("X-Skyserve-Prefix-Match", header)
			}
			stream(w, contentEvent("a"), usageEvent(50, 1, 0), doneEvent)
		})
		if (report.PrefixHitRate != nil) != known || (report.CachedTokens != nil) != known || report.PromptTokens != 50 {
			t.Errorf("with the header %q: %+v, want a hit rate: %v", header, report.ClientFigures, known)
		}
	}
}

func TestConnectionsAreReused(t *testing.T) {
	conns := map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conns[r.RemoteAddr] = true // requests are sequential
		stream(w, contentEvent("a"), doneEvent)
	}))
	defer server.Close()
	target := Target{"us", server.URL}
	r, err := newRun(context.Background(), Config{Targets: []Target{target}}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if res := r.serveRequest(target, (&looped{}).Next()[0]); res.outcome != outcomeOK {
			t.Fatalf("%+v", res)
		}
	}
	r.close()
	if len(conns) != 1 {
		t.Errorf("20 requests in a row took %d connections", len(conns))
	}
}

func TestFirstModel(t *testing.T) {
	for _, c := range []struct {
		status     int
		body, want string
		err        string
	}{
		{200, `{"data":[{"id":"llama"},{"id":"qwen"}]}`, "llama", ""},
		{200, `{"data":[]}`, "", "/v1/models returned no models"},
		{200, `<html>`, "", "invalid character"},
		{401, `{"error":{"message":"no key"}}`, "", "/v1/models returned 401: no key"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/models" || r.Header.Get("Authorization") != "Bearer k" {
				w.WriteHeader(418)
				return
			}
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}))
		got, err := FirstModel(context.Background(), Config{APIKey: "k"}, Target{"us", server.URL})
		if got != c.want || (err == nil) != (c.err == "") {
			t.Errorf("%s: model %q, error %v", c.body, got, err)
		}
		if url := server.URL + "/v1/models"; err != nil &&
			(!strings.HasPrefix(err.Error(), "listing the models: ") || !strings.Contains(err.Error(), url) || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("error %v, want %s", err, c.err)
		}
		server.Close()
	}
	if _, err := FirstModel(context.Background(), Config{}, Target{"us", "http://%zz"}); err == nil {
		t.Error("no error for an invalid URL")
	}
}

func BenchmarkEncode4KB(b *testing.B) {
	c := Config{Model: "m"}
	row := workload.TraceRow{Number: 1, InputTokens: 1024, OutputTokens: 100}
	request := row.Request(1, "")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.encode(request); err != nil {
			b.Fatal(err)
		}
	}
}
