package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/internal/service"
)

// fakeTracer is a Tracer that records spans when they end: the path of names, their attributes and
// failures.
type fakeTracer struct {
	mu   sync.Mutex
	ends []fakeSpan
	open int
}

type fakeSpan struct {
	tracks     *fakeTracer
	path       string
	attributes map[string]any
	failure    string
	begun      time.Time
}

func (k *fakeTracer) StartSpan(http.Header, time.Time) TraceSpan {
	return k.begin("request", time.Now())
}

func (k *fakeTracer) begin(path string, at time.Time) *fakeSpan {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open++
	return &fakeSpan{tracks: k, path: path, attributes: map[string]any{}, begun: at}
}

func (s *fakeSpan) StartChild(name string, _ bool, at time.Time) TraceSpan {
	return s.tracks.begin(s.path+"/"+name, at)
}
func (s *fakeSpan) Inject(h http.Header)               { h.Set("traceparent", s.path) }
func (s *fakeSpan) SetAttribute(key string, value any) { s.attributes[key] = value }
func (s *fakeSpan) Fail(why string)                    { s.failure = why }
func (s *fakeSpan) Trace() string                      { return "t1" }
func (s *fakeSpan) End(at time.Time) {
	k := s.tracks
	k.mu.Lock()
	defer k.mu.Unlock()
	if at.Before(s.begun) {
		s.failure = fmt.Sprintf("ended %s before it began", s.begun.Sub(at))
	}
	k.open--
	k.ends = append(k.ends, *s)
}

// closed reports whether every started span has ended, and at least one did.
func (k *fakeTracer) closed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.open == 0 && len(k.ends) > 0
}

// paths returns the ended spans, each with the compared part.
func (k *fakeTracer) paths() (all []string) {
	for _, s := range k.ends {
		line := s.path
		for _, key := range []string{keyReplica, keyStatus, keyOutcome} {
			if v, ok := s.attributes[key]; ok {
				line += fmt.Sprintf(" %v", v)
			}
		}
		if s.failure != "" {
			line += ": " + s.failure
		}
		all = append(all, line)
	}
	return all
}

func TestSpansOfRequest(t *testing.T) {
	failing := func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusInternalServerError) }
	for name, c := range map[string]struct {
		engine http.HandlerFunc
		body   string
		want   []string
	}{
		"served":  {speak("a", " b"), streamBody, []string{"request/queue", "request/dispatch us-0 200", "request 200 finished"}},
		"refused": {speak("a"), `{"model":"nothing"}`, []string{"request 404 refused"}},
		"fails": {failing, plainBody, []string{
			"request/queue", "request/dispatch us-0 500: us-0 returned 500", "request/queue", "request 502 rejected: rejected",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			k := &fakeTracer{}
			o := testOptions(t)
			o.Tracer, o.Core.MaxAttempts = k, 1
			b := start(t, o)
			received := make(chan string, 1)
			b.attach("us-0", engine(t, func(w http.ResponseWriter, r *http.Request) {
				received <- r.Header.Get("traceparent")
				c.engine(w, r)
			}))
			resp := b.post(chatPath, c.body, "traceparent: given")
			_, _ = io.Copy(io.Discard, resp.Body)
			b.until(k.closed)
			if got := k.paths(); !slices.Equal(got, c.want) {
				t.Errorf("spans\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			if len(c.want) > 1 {
				if got := <-received; got != "request/dispatch" {
					t.Errorf("the engine received %q", got)
				}
			}
		})
	}
}

// A stream that another replica continues is one request with two attempts.
func TestSpansOfContinuedStream(t *testing.T) {
	k := &fakeTracer{}
	o := testOptions(t)
	o.Tracer = k
	b := start(t, o)
	dies := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, chunk("one"))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	var turn sync.Mutex
	first := true
	either := func(w http.ResponseWriter, r *http.Request) {
		turn.Lock()
		mine := first
		first = false
		turn.Unlock()
		if mine {
			dies(w, r)
		}
		speak(" two")(w, r)
	}
	url := engine(t, either)
	for _, id := range []string{"us-0", "us-1"} {
		b.attachAs(id, url, service.EngineSim)
	}
	read(t, b.post(chatPath, streamBody))
	b.until(k.closed)
	var tries []fakeSpan
	for _, s := range k.ends {
		if s.path == "request/dispatch" {
			tries = append(tries, s)
		}
	}
	if len(tries) != 2 || !strings.Contains(tries[0].failure, "closed the connection early") || tries[1].attributes[keyContinued] != true || tries[1].failure != "" {
		t.Errorf("attempts %+v", tries)
	}
}

// logCapture is a log that can be read during writes.
type logCapture struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logCapture) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// requests returns the lines of requests.
func (l *logCapture) requests(t *testing.T) (all []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.text.Bytes()) {
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		if m["msg"] == "request" {
			all = append(all, m)
		}
	}
	return all
}

func TestOneAccessLogLinePerRequest(t *testing.T) {
	for _, c := range []struct {
		access bool
		level  slog.Level
		lines  int
		want   string
	}{
		{true, slog.LevelInfo, 2, "INFO"},
		{false, slog.LevelInfo, 0, ""},
		{false, slog.LevelDebug, 2, "DEBUG"},
		{true, slog.LevelWarn, 0, ""},
	} {
		var log logCapture
		o := testOptions(t)
		o.AccessLog, o.Tracer = c.access, &fakeTracer{}
		o.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: c.level}))
		b := start(t, o)
		b.attach("us-0", engine(t, speak("a", " b")))
		read(t, b.post(chatPath, streamBody, headerRequestID+": r1"))
		b.settled()
		read(t, b.post(chatPath, `{"model":"nothing"}`, headerRequestID+": r2"))
		b.until(func() bool { return len(log.requests(t)) >= c.lines })
		got := log.requests(t)
		if len(got) != c.lines {
			t.Fatalf("%+v: lines %v", c, got)
		}
		if c.lines == 0 {
			continue
		}
		for key, want := range map[string]any{
			"level": c.want, "request": "r1", "path": chatPath, "status": 200.0, "outcome": "finished", "model": testModel, "tier": "IW-F",
			"target": "us-0", "policy": "skylb", "reason": "prefix_miss", "tries": 1.0, "prompt_tokens": 100.0, "cached_tokens": 64.0, "output_tokens": 2.0, "trace": "t1",
		} {
			if got[0][key] != want {
				t.Errorf("%s is %v, want %v", key, got[0][key], want)
			}
		}
		for _, key := range []string{"queue_ms", "ttft_ms", "e2e_ms"} {
			if v, ok := got[0][key].(float64); !ok || v < 0 {
				t.Errorf("%s is %v", key, got[0][key])
			}
		}
		if got[1]["request"] != "r2" || got[1]["status"] != 404.0 || got[1]["outcome"] != "refused" || got[1]["code"] != "model_not_found" || got[0]["code"] != nil || got[1]["model"] != nil || got[1]["target"] != nil {
			t.Errorf("the line of a rejected request: %v", got[1])
		}
	}
}
