package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/record"
)

// cannedEngine is a transport that responds from memory, so that only the proxy is measured.
type cannedEngine struct {
	contentType string
	answer      string
}

func (c cannedEngine) RoundTrip(req *http.Request) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, req.Body)
	_ = req.Body.Close()
	return &http.Response{
		StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header: http.Header{"Content-Type": []string{c.contentType}}, Body: io.NopCloser(&slowly{c.answer}),
	}, nil
}

// slowly returns one event per read.
type slowly struct{ rest string }

func (s *slowly) Read(p []byte) (int, error) {
	if s.rest == "" {
		return 0, io.EOF
	}
	end := strings.Index(s.rest, "\n\n")
	if end < 0 {
		end = len(s.rest) - 2
	}
	n := copy(p, s.rest[:end+2])
	s.rest = s.rest[n:]
	return n, nil
}

// sink is a client that accepts everything.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header              { return s.header }
func (s *sink) Write(p []byte) (int, error)      { return len(p), nil }
func (s *sink) WriteHeader(int)                  {}
func (s *sink) Flush()                           {}
func (s *sink) SetWriteDeadline(time.Time) error { return nil }

// ready returns a runtime with one replica that accepts every request.
func ready(b *testing.B, transport http.RoundTripper, url string) *Runtime {
	b.Helper()
	p, err := policy.New("skylb")
	if err != nil {
		b.Fatal(err)
	}
	cfg := core.DefaultConfig(p)
	cfg.ProbeInterval, cfg.Push = time.Hour, core.PushMode{Kind: core.PushBlind}
	rt, err := New(Options{Self: service.BalancerConfig{ID: "lb", Region: "local/us"}, Core: cfg, Transport: transport})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := rt.AddReplica(service.ReplicaConfig{ID: "us-0", URL: url, Model: testModel, Kind: service.EngineVLLM}); err != nil {
		b.Fatal(err)
	}
	rt.Step(core.Event{Kind: core.EventReplicaReport, Target: "us-0", Report: &core.ProbeReport{Ready: true}})
	return rt
}

func promptBody(bytes int, stream bool) string {
	return fmt.Sprintf(`{"model":"%s","stream":%v,"messages":[{"role":"user","content":"%s"}]}`, testModel, stream, strings.Repeat("lorem ipsum ", bytes/12))
}

func serveCanned(b *testing.B, rt *Runtime, body string) {
	req := httptest.NewRequestWithContext(context.Background(), http.MethodPost, chatPath, nil)
	b.ReportAllocs()
	for b.Loop() {
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		rt.serveRequest(&sink{http.Header{}}, req)
	}
}

// BenchmarkRequest measures the proxy's own work for a request, without sockets.
func BenchmarkRequest(b *testing.B) {
	for _, size := range []int{256, 4 << 10, 32 << 10} {
		b.Run(fmt.Sprintf("prompt=%d", size), func(b *testing.B) {
			serveCanned(b, ready(b, cannedEngine{"application/json", plainReply}, "http://engine"), promptBody(size, false))
		})
	}
}

// BenchmarkEvent measures the proxy's own work for an event of a stream, without sockets.
func BenchmarkEvent(b *testing.B) {
	const events = 1000
	answer := strings.Repeat(chunk(" word"), events) + doneEvent
	serveCanned(b, ready(b, cannedEngine{"text/event-stream", answer}, "http://engine"), promptBody(256, true))
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/events, "ns/event")
}

// BenchmarkCountedEvent is BenchmarkEvent with an engine that reports the usage so far in each event,
// which is hidden from the client.
func BenchmarkCountedEvent(b *testing.B) {
	const events = 1000
	var answer strings.Builder
	for i := range events {
		answer.WriteString(strings.Replace(chunk(" word"), "}]}\n", fmt.Sprintf(`}],"usage":{"prompt_tokens":100,"total_tokens":%d,"completion_tokens":%d}}`+"\n", 101+i, 1+i), 1))
	}
	serveCanned(b, ready(b, cannedEngine{"text/event-stream", answer.String() + doneEvent}, "http://engine"), promptBody(256, true))
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/events, "ns/event")
}

// BenchmarkThroughSockets sends requests over loopback to an engine that does nothing; all parties
// share the CPUs. Without the proxy (direct) it shows the share of client and engine.
func BenchmarkThroughSockets(b *testing.B) {
	for name, h := range map[string]http.HandlerFunc{"plain": whole(plainReply), "stream": speak("a", " b", " c", " d", " e", " f", " g", " h")} {
		b.Run(name+"/direct", func(b *testing.B) {
			engine := httptest.NewServer(h)
			defer engine.Close()
			askAll(b, engine.URL, name == "stream")
		})
		b.Run(name+"/proxied", func(b *testing.B) {
			engine := httptest.NewServer(h)
			defer engine.Close()
			transport := NewTransport(nil)
			defer transport.CloseIdleConnections()
			front := httptest.NewServer(ready(b, transport, engine.URL).Handler())
			defer front.Close()
			askAll(b, front.URL, name == "stream")
		})
	}
}

// askAll sends one request after the other over one connection.
func askAll(b *testing.B, url string, stream bool) {
	lookup := &http.Client{Transport: NewTransport(nil)}
	defer lookup.CloseIdleConnections()
	body := promptBody(256, stream)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := lookup.Post(url+chatPath, "application/json", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

// BenchmarkRequests measures the cost of listing the newest requests of a full ring: in total, and the
// longest time for which a decision waits for it (hold).
func BenchmarkRequests(b *testing.B) {
	rt := ready(b, cannedEngine{"application/json", plainReply}, "http://engine")
	body := promptBody(256, false)
	req := httptest.NewRequestWithContext(context.Background(), http.MethodPost, chatPath, nil)
	for range rt.limits.MaxDecisions {
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		rt.serveRequest(&sink{http.Header{}}, req)
	}
	for _, limit := range []int{100, 1000} {
		b.Run(fmt.Sprintf("limit=%d", limit), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rt.Requests(limit)
			}
		})
	}
	b.Run("hold", func(b *testing.B) {
		records, rows := make([]*record.RequestRecord, summaryBatch), make([]telemetry.RequestSummary, summaryBatch)
		rt.ring.newest(records)
		for b.Loop() {
			rt.summarize(rows, records)
		}
	})
}
