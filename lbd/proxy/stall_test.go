package proxy

import (
	"bufio"
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/testkit"
)

func dialPipe(t *testing.T, p *testkit.Pipes) net.Conn {
	t.Helper()
	conn, err := p.Dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// overPipes runs a test of a runtime behind pipes, with a fake clock. Its only replica is the engine.
func overPipes(t *testing.T, o Options, e *endlessEngine, test func(t *testing.T, b *balancer, p *testkit.Pipes)) {
	synctest.Test(t, func(t *testing.T) {
		e.gone = make(chan struct{}, 1)
		o.Transport = e
		rt, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		b := &balancer{Runtime: rt, t: t}
		b.attach("us-0", "http://engine")
		p := testkit.NewPipes()
		srv := &http.Server{Handler: rt.Handler(), ReadHeaderTimeout: time.Minute, Protocols: new(http.Protocols)}
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetUnencryptedHTTP2(true)
		var serving sync.WaitGroup
		serving.Go(func() { _ = srv.Serve(p) })
		test(t, b, p)
		_ = srv.Close()
		_ = p.Close()
		serving.Wait()
	})
}

// endlessEngine is an engine that streams until its request is cancelled, which it reports; without
// streaming it responds with a body of the given size.
type endlessEngine struct {
	size   int
	status int // of a response with a size; 0 = 200
	gone   chan struct{}
	word   string        // streamed repeatedly
	gap    time.Duration // between two words; 0 = one second
	delay  time.Duration // before the response
}

func (e *endlessEngine) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
	}
	select {
	case <-time.After(e.delay):
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	resp := &http.Response{StatusCode: cmp.Or(e.status, http.StatusOK), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req, Header: http.Header{}}
	if e.size > 0 {
		resp.Header.Set("Content-Type", "application/json")
		resp.Body = io.NopCloser(strings.NewReader(`{"choices":[],"pad":"` + strings.Repeat("x", e.size) + `"}`))
		return resp, nil
	}
	resp.Header.Set("Content-Type", "text/event-stream")
	resp.Body = &endlessBody{ctx: req.Context(), engine: e}
	return resp, nil
}

type endlessBody struct {
	ctx    context.Context
	engine *endlessEngine
}

func (b *endlessBody) Read(p []byte) (int, error) {
	select {
	case <-b.ctx.Done():
		return 0, context.Cause(b.ctx)
	case <-time.After(cmp.Or(b.engine.gap, time.Second)):
		return copy(p, chunk(cmp.Or(b.engine.word, "a word"))), nil
	}
}

func (b *endlessBody) Close() error {
	b.engine.gone <- struct{}{}
	return nil
}

func request(body string, headers ...string) string {
	return "POST " + chatPath + " HTTP/1.1\r\nHost: b\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n" +
		strings.Join(append(headers, ""), "\r\n") + "\r\n" + body
}

// A client that does not read for StallTimeout is disconnected, and its request is cancelled at the
// engine. No resources remain in use.
func TestStalledClientIsDisconnected(t *testing.T) {
	o := testOptions(t)
	o.Keys = limited(t, "concurrent=1 tokens_per_minute=100000")
	e := &endlessEngine{}
	overPipes(t, o, e, func(t *testing.T, b *balancer, p *testkit.Pipes) {
		conn := dialPipe(t, p)
		defer conn.Close()
		if _, err := io.WriteString(conn, request(streamBody, asAcme)); err != nil {
			t.Fatal(err)
		}
		piece := make([]byte, 2000)
		if _, err := io.ReadFull(conn, piece); err != nil {
			t.Fatal(err)
		}
		stopped := time.Now()
		<-e.gone // the engine's side is closed
		if took := time.Since(stopped); took > b.limits.StallTimeout+time.Second || took < b.limits.StallTimeout*3/4 {
			t.Errorf("the engine's request was cancelled after %v, want about %v", took, b.limits.StallTimeout)
		}
		b.isIdle("acme")
		if c := b.View().Counts; c.Cancelled != 1 || c.Outstanding != 0 || c.Queued != 0 {
			t.Errorf("counts %+v, want one cancelled and none left", c)
		}
	})
}

// A client that reads slowly but continuously is served to the end.
func TestSlowClient(t *testing.T) {
	e := &endlessEngine{}
	overPipes(t, testOptions(t), e, func(t *testing.T, b *balancer, p *testkit.Pipes) {
		conn := dialPipe(t, p)
		if _, err := io.WriteString(conn, request(streamBody)); err != nil {
			t.Fatal(err)
		}
		piece := make([]byte, 100)
		for range 100 {
			if _, err := io.ReadFull(conn, piece); err != nil {
				t.Fatalf("disconnected: %v", err)
			}
			time.Sleep(b.limits.StallTimeout / 8)
		}
		_ = conn.Close()
		<-e.gone
		b.settled()
	})
}

// No resources remain in use after a non-streamed response that its client does not read, including
// the last bytes, which the server writes itself.
func TestClientDoesNotReadWholeResponse(t *testing.T) {
	for _, size := range []int{10, 3000, 100_000} {
		overPipes(t, testOptions(t), &endlessEngine{size: size}, func(t *testing.T, b *balancer, p *testkit.Pipes) {
			conn := dialPipe(t, p)
			defer conn.Close()
			if _, err := io.WriteString(conn, request(plainBody)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * b.limits.StallTimeout)
			synctest.Wait()
			all, err := io.ReadAll(conn)
			if err != nil || len(all) >= size+50 {
				t.Errorf("%d bytes: after the client's time it still got %d bytes, %v; want a closed connection", size, len(all), err)
			}
			b.settled()
		})
	}
}

// The write deadline of a request ends with the request: the connection may be idle for longer and
// be reused.
func TestConnectionReusedAfterDeadline(t *testing.T) {
	overPipes(t, testOptions(t), &endlessEngine{size: 10}, func(t *testing.T, b *balancer, p *testkit.Pipes) {
		conn := dialPipe(t, p)
		defer conn.Close()
		r := bufio.NewReader(conn)
		for _, text := range []string{
			request(plainBody), "GET /healthz HTTP/1.1\r\nHost: b\r\n\r\n", request(plainBody), request("{"), "GET /v1/models HTTP/1.1\r\nHost: b\r\n\r\n",
		} {
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("%.30q: %v", text, err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			time.Sleep(2 * b.limits.StallTimeout)
		}
	})
}

// A response that begins later than StallTimeout after its request reaches the client, an error too.
func TestLateResponse(t *testing.T) {
	const stored = "GET /v1/responses/resp_1 HTTP/1.1\r\nHost: b\r\n\r\n"
	for _, c := range []struct {
		name, request string
		engine        endlessEngine
		status        int
	}{
		{"a response", request(plainBody), endlessEngine{size: 10}, http.StatusOK},
		{"a rejection by the engine", request(plainBody), endlessEngine{size: 10, status: http.StatusTooManyRequests}, http.StatusTooManyRequests},
		{"a client error", request(plainBody), endlessEngine{size: 10, status: http.StatusBadRequest}, http.StatusBadRequest},
		{"the timeout of a stored response", stored, endlessEngine{delay: time.Hour}, http.StatusGatewayTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := testOptions(t)
			c.engine.delay = max(c.engine.delay, 2*DefaultLimits().StallTimeout)
			overPipes(t, o, &c.engine, func(t *testing.T, b *balancer, p *testkit.Pipes) {
				b.storedResponses.putResponse(storedAt{response: responseID{id: "resp_1"}, target: "us-0", url: "http://engine"})
				conn := dialPipe(t, p)
				defer conn.Close()
				if _, err := io.WriteString(conn, c.request); err != nil {
					t.Fatal(err)
				}
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Errorf("no response: %v", err)
				} else if resp.StatusCode != c.status {
					t.Errorf("status %d, want %d", resp.StatusCode, c.status)
				}
			})
		})
	}
}

// overHTTP2 requests a stream over HTTP/2 and passes it to the client. Unread bytes remain in a
// window of 64 KiB.
func overHTTP2(t *testing.T, p *testkit.Pipes, read func(*http.Response)) {
	t.Helper()
	transport := &http.Transport{
		Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10},
		DialContext: p.Dial,
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://b"+chatPath, strings.NewReader(streamBody))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	read(resp)
}

func TestClientStopsReadingOverHTTP2(t *testing.T) {
	e := &endlessEngine{word: strings.Repeat("word ", 300)}
	overPipes(t, testOptions(t), e, func(t *testing.T, b *balancer, p *testkit.Pipes) {
		overHTTP2(t, p, func(resp *http.Response) {
			if resp.ProtoMajor != 2 {
				t.Fatalf("spoke %s", resp.Proto)
			}
			<-e.gone
			b.settled()
			if c := b.View().Counts; c.Cancelled != 1 || c.Outstanding != 0 {
				t.Errorf("counts %+v, want one cancelled and none left", c)
			}
		})
	})
}

// An engine that sends nothing for longer than StallTimeout does not count as a stalled client.
func TestSilentEngineOverHTTP2(t *testing.T) {
	o := testOptions(t)
	e := &endlessEngine{gap: 50 * time.Second}
	overPipes(t, o, e, func(t *testing.T, b *balancer, p *testkit.Pipes) {
		overHTTP2(t, p, func(resp *http.Response) {
			if _, err := io.ReadFull(resp.Body, make([]byte, 1000)); err != nil {
				t.Errorf("disconnected: %v", err)
			}
		})
		<-e.gone
		b.settled()
	})
}
