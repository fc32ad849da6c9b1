package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
)

// timedResponse records a response with the time of each write.
type timedResponse struct {
	*httptest.ResponseRecorder
	began  time.Time
	writes []string
	broken atomic.Bool // the client has disconnected
}

func (r *timedResponse) Write(p []byte) (int, error) {
	if r.broken.Load() {
		return 0, io.ErrClosedPipe
	}
	r.writes = append(r.writes, fmt.Sprintf("%v %s", time.Since(r.began), firstLine(p)))
	return r.ResponseRecorder.Write(p)
}

func firstLine(p []byte) string {
	line, _, _ := bytes.Cut(p, []byte("\n"))
	return string(line[:min(len(line), 24)])
}

// coldBalancer starts a balancer of a model that scales to zero, in a bubble of synctest.
func coldBalancer(t *testing.T, change func(*Options)) *balancer {
	t.Helper()
	o := testOptions(t)
	o.Self.Models[0].ScaleToZero = true
	o.Core.ScaleToZero, o.Core.MaxColdWait = map[string]bool{testModel: true}, 50*time.Second // less than MaxWait
	change(&o)
	rt, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	rt.Start(ctx)
	t.Cleanup(func() {
		stop()
		_ = rt.Close()
	})
	return &balancer{Runtime: rt, t: t}
}

// serve serves a request in the background and returns its response, which is complete once ended is
// closed.
func (b *balancer) serve(path, body string) (r *timedResponse, ended chan struct{}) {
	r, ended = &timedResponse{ResponseRecorder: httptest.NewRecorder(), began: time.Now()}, make(chan struct{})
	req := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	go func() {
		defer close(ended)
		defer func() {
			if cause := recover(); cause != nil && cause != http.ErrAbortHandler {
				panic(cause)
			}
		}()
		b.Handler().ServeHTTP(r, req)
	}()
	return r, ended
}

// replying is an engine that returns a JSON body.
func replying(status int, body string) func(context.Context, string) (*http.Response, error) {
	return func(context.Context, string) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}, nil
	}
}

// A client that requested a stream receives a comment after 5 s and every 10 s, until the response
// begins. It is then the same as without a wait, and any error is an event.
func TestStreamWaitsForAStart(t *testing.T) {
	end := strings.ReplaceAll(finished, `"c2"`, `"c"`) + doneEvent
	hello := speaking("text/event-stream", 0, chunk("hello")+end)
	comment := ": waiting for a replica"
	for name, c := range map[string]struct {
		path, body string
		first      func(context.Context, string) (*http.Response, error)
		startsAt   time.Duration // 0 = never
		writes     []string      // times and starts
		want       string        // the response without comments
	}{
		"served": {
			chatPath, streamBody, hello, 26 * time.Second,
			[]string{"5s " + comment, "15s " + comment, "25s " + comment, `26s data: {"id":"c","object"`},
			chunk("hello") + end,
		},
		"started soon": {
			chatPath, streamBody, hello, 4 * time.Second,
			[]string{`4s data: {"id":"c","object"`},
			chunk("hello") + end,
		},
		"retried": {
			chatPath, streamBody, replying(500, `{"error":{"message":"out of memory"}}`), 6 * time.Second,
			[]string{"5s " + comment, `6s data: {"id":"c","object"`},
			chunk("second") + end,
		},
		"never started": {
			chatPath, streamBody, nil, 0,
			[]string{"5s " + comment, "15s " + comment, "25s " + comment, "35s " + comment, "45s " + comment, `50s data: {"error":{"message`},
			`data: {"error":{"message":"no replica of this model became ready in time; one may still be starting","type":"server_error","param":null,"code":"start_exceeded"}}` + "\n\n",
		},
		"never started, responses": {
			"/v1/responses", `{"model":"` + testModel + `","stream":true,"input":"hello"}`, nil, 0,
			[]string{"5s " + comment, "15s " + comment, "25s " + comment, "35s " + comment, "45s " + comment, "50s event: error"},
			"event: error\n" + `data: {"error":{"message":"no replica of this model became ready in time; one may still be starting","type":"server_error","param":null,"code":"start_exceeded"}}` + "\n\n",
		},
		"refused by the engine": {
			chatPath, streamBody, replying(400, "{\"error\": {\n\"message\": \"too long\"}}"), 6 * time.Second,
			[]string{"5s " + comment, `6s data: {"error":{"message`},
			`data: {"error":{"message":"too long"}}` + "\n\n",
		},
		"refused in another format": {
			chatPath, streamBody, replying(400, `{"detail":"no"}`), 6 * time.Second,
			[]string{"5s " + comment, `6s data: {"error":{"message`},
			`data: {"error":{"message":"the engine returned status 400: \"{\\\"detail\\\":\\\"no\\\"}\"","type":"invalid_request_error","param":null,"code":"engine_error"}}` + "\n\n",
		},
		"the engine does not stream": {
			chatPath, streamBody, replying(200, "{\"choices\":[],\n\"id\":\"c\"}"), 6 * time.Second,
			[]string{"5s " + comment, "6s data: ", `6s {"choices":[],`, "6s "},
			"data: {\"choices\":[],\ndata: \"id\":\"c\"}\n\n",
		},
		"not streamed": {
			chatPath, plainBody, replying(200, plainReply), 26 * time.Second,
			[]string{"26s " + firstLine([]byte(plainReply))},
			plainReply,
		},
		"not streamed, never started": {
			chatPath, plainBody, nil, 0,
			[]string{`50s {"error":{"message":"no `},
			`{"error":{"message":"no replica of this model became ready in time; one may still be starting","type":"server_error","param":null,"code":"start_exceeded"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := coldBalancer(t, func(o *Options) {
					o.Transport = hostTransport{"first": c.first, "second": speaking("text/event-stream", 0, chunk("second")+end)}
				})
				r, ended := b.serve(c.path, c.body)
				if c.startsAt > 0 {
					time.Sleep(c.startsAt)
					b.attachAs("first", "http://first", service.EngineVLLM)
					if name == "retried" {
						synctest.Wait()
						b.attachAs("second", "http://second", service.EngineVLLM)
					}
				}
				<-ended
				if !slices.Equal(r.writes, c.writes) {
					t.Errorf("writes %q, want %q", r.writes, c.writes)
				}
				if got := strings.ReplaceAll(r.Body.String(), heartbeatComment, ""); got != c.want {
					t.Errorf("response %q, want %q", got, c.want)
				}
				held := strings.HasSuffix(c.writes[0], comment)
				if h := r.Header(); held && (r.Code != http.StatusOK || h.Get("Content-Type") != "text/event-stream; charset=utf-8" || h.Get(headerRequestID) == "" || h.Get("Content-Length") != "") {
					t.Errorf("status %d, header %v", r.Code, h)
				}
				lawful(t, b.settled())
			})
		})
	}
}

// A request that waits for capacity, not for a start, receives nothing before its response.
func TestNoHeartbeatWhileReplicasAreFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := coldBalancer(t, func(*Options) {})
		b.attachAs("first", "http://first", service.EngineVLLM)
		b.full("first")
		r, ended := b.serve(chatPath, streamBody)
		<-ended
		if r.Code != http.StatusServiceUnavailable || len(r.writes) != 1 || !strings.HasPrefix(r.writes[0], "1m0s {") {
			t.Errorf("status %d: %q", r.Code, r.writes)
		}
		lawful(t, b.settled())
	})
}

// Once the client has received a header, heartbeats continue while the started replica is full.
func TestHeartbeatsContinueUntilTheResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := strings.ReplaceAll(finished, `"c2"`, `"c"`) + doneEvent
		b := coldBalancer(t, func(o *Options) {
			o.Transport = hostTransport{"first": speaking("text/event-stream", 0, chunk("hello")+end)}
		})
		r, ended := b.serve(chatPath, streamBody)
		time.Sleep(6 * time.Second)
		if _, err := b.AddReplica(service.ReplicaConfig{ID: "first", URL: "http://first", Model: testModel}); err != nil {
			t.Fatal(err)
		}
		b.full("first")
		time.Sleep(20 * time.Second)
		b.report("first")
		<-ended
		var at []string
		for _, write := range r.writes {
			at = append(at, strings.Fields(write)[0])
		}
		if got := strings.Join(at, " "); got != "5s 15s 25s 26s" {
			t.Errorf("writes at %s: %q", got, r.writes)
		}
		lawful(t, b.settled())
	})
}

// A balancer is ready without a replica if a request can start one.
func TestReadyWithoutAReplica(t *testing.T) {
	for _, scales := range []bool{true, false} {
		o := testOptions(t)
		if scales {
			o.Core.ScaleToZero = map[string]bool{testModel: true}
		}
		want := http.StatusServiceUnavailable
		if scales {
			want = http.StatusOK
		}
		if code, body := start(t, o).get("/readyz"); code != want {
			t.Errorf("scales to zero %v: readyz returned %d %q", scales, code, body)
		}
	}
}

// A client that disconnects while it waits is noticed at the next heartbeat at the latest.
func TestHeartbeatDetectsDisconnectedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := coldBalancer(t, func(*Options) {})
		r, ended := b.serve(chatPath, streamBody)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		r.broken.Store(true)
		<-ended
		if waited := time.Since(r.began); waited != 15*time.Second {
			t.Errorf("ended after %v", waited)
		}
		c := b.settled()
		lawful(t, c)
		if c.Cancelled != 1 {
			t.Errorf("counts %+v", c)
		}
	})
}
