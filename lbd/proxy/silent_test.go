package proxy

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// hostTransport is a transport to engines in memory, by host.
type hostTransport map[string]func(ctx context.Context, body string) (*http.Response, error)

func (h hostTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	resp, err := h[req.URL.Host](req.Context(), string(body))
	if err == nil {
		resp.Proto, resp.ProtoMajor, resp.ProtoMinor, resp.Request = "HTTP/1.1", 1, 1, req
		resp.StatusCode = cmp.Or(resp.StatusCode, http.StatusOK)
	}
	return resp, err
}

// piecemeal is a body of pieces, each after a delay; the last one ends it, and an empty one never
// arrives.
type piecemeal struct {
	ctx    context.Context
	after  time.Duration
	pieces []string
}

func (b *piecemeal) Read(p []byte) (int, error) {
	if len(b.pieces) == 0 {
		return 0, io.EOF
	}
	wait := time.After(b.after)
	if b.pieces[0] == "" {
		wait = nil
	}
	select {
	case <-wait:
	case <-b.ctx.Done():
		return 0, context.Cause(b.ctx)
	}
	n := copy(p, b.pieces[0])
	b.pieces = b.pieces[1:]
	return n, nil
}

func (b *piecemeal) Close() error { return nil }

// speaking responds with pieces.
func speaking(kind string, after time.Duration, pieces ...string) func(context.Context, string) (*http.Response, error) {
	return func(ctx context.Context, _ string) (*http.Response, error) {
		return &http.Response{Header: http.Header{"Content-Type": {kind}}, Body: &piecemeal{ctx, after, append([]string(nil), pieces...)}}, nil
	}
}

// vanishedReplica never responds.
func vanishedReplica(ctx context.Context, _ string) (*http.Response, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// A replica stops sending within a stream, before it, or before a non-streamed response. While it
// responds to probes, or sends tokens of another response, it counts as busy. Otherwise its requests
// are retried at other replicas.
func TestVanishedReplicaIsAbandoned(t *testing.T) {
	const events, json = "text/event-stream", "application/json"
	end := strings.ReplaceAll(finished, `"c2"`, `"c"`) + doneEvent
	rest := speaking(events, 0, chunk(" b")+end)
	for name, c := range map[string]struct {
		body          string
		old           func(context.Context, string) (*http.Response, error)
		next          func(context.Context, string) (*http.Response, error)
		probed, talks bool // the replica's probes succeed; another response of it continues
		want          string
		tries         int
		after, limit  time.Duration
		unreachable   bool // its probes fail because the network does not reach its host
	}{
		"within a stream":                  {streamBody, speaking(events, 0, chunk("a"), ""), rest, false, false, "a b", 2, 5 * time.Second, 6 * time.Second, false},
		"no route to its host":             {streamBody, speaking(events, 0, chunk("a"), ""), rest, false, false, "a b", 2, 5 * time.Second, 6 * time.Second, true},
		"before a stream":                  {streamBody, vanishedReplica, rest, false, false, " b", 2, 5 * time.Second, 6 * time.Second, false},
		"before a response":                {plainBody, vanishedReplica, speaking(json, 0, plainReply), false, false, plainReply, 2, 5 * time.Second, 6 * time.Second, false},
		"busy, probes succeed":             {streamBody, speaking(events, 20*time.Second, chunk("a"), chunk(" b")+end), rest, true, false, "a b", 1, 40 * time.Second, 41 * time.Second, false},
		"busy, another response continues": {plainBody, speaking(json, 20*time.Second, plainReply), rest, false, true, plainReply, 1, 20 * time.Second, 21 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := testOptions(t)
				o.Transport = hostTransport{"old": c.old, "next": c.next}
				rt, err := New(o)
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				rt.Start(ctx)
				b := &balancer{Runtime: rt, t: t}
				b.attachAs("old", "http://old", service.EngineVLLM)
				began := time.Now()
				answer, ended := httptest.NewRecorder(), make(chan struct{})
				go func() {
					defer close(ended)
					rt.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodPost, chatPath, strings.NewReader(c.body)))
				}()
				synctest.Wait()
				b.attachAs("next", "http://next", service.EngineVLLM)
				ticker := time.NewTicker(100 * time.Millisecond)
				defer ticker.Stop()
				for open := true; open; {
					select {
					case <-ended:
						open = false
					case <-ticker.C:
						b.report("next")
						if c.probed {
							b.report("old")
						}
						if c.unreachable {
							b.Step(core.Event{Kind: core.EventReplicaReport, Target: "old", Report: &core.ProbeReport{Reason: "no route to host", NoResponse: true}})
						}
						if c.talks {
							rt.mu.Lock()
							rt.ranks["old"].tokens().Add(1)
							rt.mu.Unlock()
						}
					}
				}
				got := answer.Body.String()
				if c.body == streamBody {
					if all := parseStream(t, got); all.ends == 1 && all.finishes == 1 && all.broken == "" {
						got = all.text
					}
				}
				if got != c.want {
					t.Errorf("the response is %q, want %q", got, c.want)
				}
				if took := time.Since(began); took < c.after || took > c.limit {
					t.Errorf("after %s, want %s to %s", took, c.after, c.limit)
				}
				if d, _ := b.Decision(answer.Header().Get(headerRequestID)); len(d.Attempts) != c.tries || c.tries > 1 && !strings.Contains(d.Attempts[0].Failure, "did not respond in time") {
					t.Errorf("attempts %+v", d.Attempts)
				}
				stop()
				if err := rt.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// After this process was paused for an hour, missing responses do not count.
func TestBalancerPauseIsNotReplicaSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(t)
		o.Transport = hostTransport{"old": speaking("application/json", 2*time.Hour, plainReply)}
		o.Limits.ResponseTimeout = 3 * time.Hour
		rt, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		b := &balancer{Runtime: rt, t: t}
		b.attachAs("old", "http://old", service.EngineVLLM)
		answer, ended := httptest.NewRecorder(), make(chan struct{})
		go func() {
			defer close(ended)
			rt.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodPost, chatPath, strings.NewReader(plainBody)))
		}()
		time.Sleep(time.Hour)
		rt.tick()
		<-ended
		if d, _ := b.Decision(answer.Header().Get(headerRequestID)); answer.Body.String() != plainReply || len(d.Attempts) != 1 {
			t.Errorf("the response is %q after attempts %+v", answer.Body, d.Attempts)
		}
	})
}
