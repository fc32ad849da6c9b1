package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"skyserve/internal/testkit"
	"skyserve/lbd/core"
	"skyserve/lbd/openai"
	"skyserve/lbd/policy"
	"skyserve/lbd/record"
)

// roundRobin returns options with the round-robin policy, us-0 first.
func roundRobin(t *testing.T) Options {
	o := testOptions(t)
	p, err := policy.New("round-robin")
	if err != nil {
		t.Fatal(err)
	}
	o.Core.Policy = p
	return o
}

// cut is an engine that sends a text and then closes the connection.
func cut(contentType, sent string) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, sent)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, `{"error":{"message":"engine"}}`)
	}
}

// refusing returns the URL of a port without a listener.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

// The cause of a response with an error status is complete: no error follows it.
func TestFailedAttemptLogsNoEmptyError(t *testing.T) {
	for name, e := range map[string]http.HandlerFunc{"returned 500": status(500), "err=": cut("application/json", "{")} {
		var log bytes.Buffer
		o := roundRobin(t)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		b := start(t, o)
		b.attach("us-0", engine(t, e))
		_ = read(t, b.post(chatPath, plainBody))
		if got := log.String(); !strings.Contains(got, "upstream attempt failed") || !strings.Contains(got, name) || strings.Contains(got, "<nil>") {
			t.Errorf("got %s", got)
		}
	}
}

func TestFailureBeforeFirstByteIsRetried(t *testing.T) {
	bad := map[string]func(*testing.T) string{
		"refused": refusing,
		"500":     func(t *testing.T) string { return engine(t, status(500)) },
		"503":     func(t *testing.T) string { return engine(t, status(503)) },
		"429":     func(t *testing.T) string { return engine(t, status(429)) },
		"cut before header": func(t *testing.T) string {
			return engine(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		},
		"cut before event": func(t *testing.T) string { return engine(t, cut("text/event-stream", "")) },
		"cut in event":     func(t *testing.T) string { return engine(t, cut("text/event-stream", "data: {\"choi")) },
		"empty stream":     func(t *testing.T) string { return engine(t, speakRaw("")) },
		"cut in answer":    func(t *testing.T) string { return engine(t, cut("application/json", plainReply[:50])) },
	}
	for name, url := range bad {
		for kind, body := range map[string]string{"stream": streamBody, "plain": plainBody} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				b := start(t, roundRobin(t))
				b.attach("us-0", url(t))
				b.attach("us-1", engine(t, speakRaw(chunk("x")+doneEvent)))
				resp := b.post(chatPath, body, "X-Request-ID: r1")
				if got := expect(t, resp, http.StatusOK, ""); got != chunk("x")+doneEvent {
					t.Errorf("got %q", got)
				}
				if got := resp.Header.Get(headerReplica); got != "us-1" {
					t.Errorf("served by %q, want us-1", got)
				}
				c := b.settled()
				lawful(t, c)
				d, _ := b.Decision("r1")
				if c.Finished != 1 || len(d.Attempts) != 2 || d.Attempts[0].Failure == "" || d.State != record.StateFinished || d.Status != 200 {
					t.Errorf("counts %+v, decision %+v: want a failed attempt and one that served", c, d)
				}
				if name == "refused" && b.View().Replicas[0].Ready {
					t.Error("a replica that refuses connections still counts as ready")
				}
			})
		}
	}
}

// speakRaw streams a text unchanged.
func speakRaw(stream string) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, stream)
	}
}

func TestInterruptedStreamEndsInErrorEvent(t *testing.T) {
	t.Parallel()
	broken := map[string]http.HandlerFunc{
		"cut":                cut("text/event-stream", chunk("a")),
		"cut in event":       cut("text/event-stream", chunk("a")+"data: {\"cho"),
		"ends without done":  speakRaw(chunk("a")),
		"ends in half event": speakRaw(chunk("a") + "data: {\"cho"),
	}
	for name, h := range broken {
		t.Run(name, func(t *testing.T) {
			b := start(t, roundRobin(t))
			b.attach("us-0", engine(t, h))
			b.attach("us-1", engine(t, speak("never")))
			resp := b.post(chatPath, streamBody)
			body := read(t, resp)
			rest, ok := strings.CutPrefix(body, chunk("a"))
			if !ok || strings.Contains(body, "[DONE]") {
				t.Fatalf("got %q", body)
			}
			data, ok := strings.CutPrefix(rest, "data: ")
			if !ok || !strings.HasSuffix(data, "\n\n") {
				t.Fatalf("the stream ends in %q, want one event", rest)
			}
			if _, kind, code := apiErrorOf(t, data); kind != openai.TypeServer || code != "replica_failed" {
				t.Errorf("error %s %s, want %s replica_failed", kind, code, openai.TypeServer)
			}
			c := b.settled()
			lawful(t, c)
			if c.Rejected != 1 {
				t.Errorf("counts %+v, want one that failed", c)
			}
		})
	}
}

func TestTruncatedLargeResponseIsDetected(t *testing.T) {
	o := roundRobin(t)
	o.Limits.MaxBufferedResponse = 100
	b := start(t, o)
	b.attach("us-0", engine(t, cut("application/json", strings.Repeat("x", 5000))))
	resp := b.post(chatPath, plainBody)
	body, err := io.ReadAll(resp.Body)
	if err == nil {
		t.Errorf("a broken answer of %d bytes ended like a whole one", len(body))
	}
	lawful(t, b.settled())
}

func TestLargeResponseIsForwarded(t *testing.T) {
	o := roundRobin(t)
	o.Limits.MaxBufferedResponse = 100
	b := start(t, o)
	want := strings.Repeat("0123456789", 5000)
	b.attach("us-0", engine(t, whole(want)))
	if got := expect(t, b.post(chatPath, plainBody), http.StatusOK, ""); got != want {
		t.Errorf("got %d bytes, want %d as sent", len(got), len(want))
	}
	if c := b.settled(); c.Finished != 1 {
		t.Errorf("counts %+v", c)
	}
}

func TestEveryAttemptFails(t *testing.T) {
	b := start(t, roundRobin(t))
	b.attach("us-0", engine(t, status(500)))
	b.attach("us-1", engine(t, status(503)))
	body := expect(t, b.post(chatPath, plainBody, "X-Request-ID: r1"), http.StatusBadGateway, core.RejectRetriesExhausted)
	if message, _, _ := apiErrorOf(t, body); !strings.Contains(message, "returned 50") {
		t.Errorf("message %q does not contain the failure", message)
	}
	d, _ := b.Decision("r1")
	if want := b.coreCfg.MaxAttempts; len(d.Attempts) != want+1 {
		t.Errorf("%d attempts and a rejection, want %d", len(d.Attempts), want)
	}
	lawful(t, b.settled())
}

// hang is an engine that sends some bytes and then nothing until its client disconnects, which it
// reports.
func hang(sent string, left chan<- struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		if sent != "" {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, sent)
			_ = http.NewResponseController(w).Flush()
		}
		<-req.Context().Done()
		left <- struct{}{}
	}
}

func TestSilentEngine(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	left := make(chan struct{}, 20)
	t.Run("before the first byte", func(t *testing.T) {
		o := roundRobin(t)
		o.Limits.FirstByteTimeout, o.Limits.ResponseTimeout = 5*time.Millisecond, 5*time.Millisecond
		for _, body := range []string{streamBody, plainBody} {
			b := start(t, o)
			var reached atomic.Int64 // on a busy machine an attempt may end before it reaches the engine
			silent := hang("", left)
			b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) { reached.Add(1); silent(w, req) }))
			expect(t, b.post(chatPath, body), http.StatusGatewayTimeout, "deadline")
			lawful(t, b.settled())
			testkit.Eventually(t, "every attempt that reached the engine ended there", func() bool { return int64(len(left)) >= reached.Load() })
			for range len(left) {
				<-left
			}
		}
	})
	t.Run("between events", func(t *testing.T) {
		o := roundRobin(t)
		o.Limits.IdleTimeout = 20 * time.Millisecond
		b := start(t, o)
		b.attach("us-0", engine(t, hang(chunk("a"), left)))
		body := read(t, b.post(chatPath, streamBody))
		if !strings.HasPrefix(body, chunk("a")) || !strings.Contains(body, "did not respond in time") {
			t.Errorf("got %q, want an error event", body)
		}
		<-left
		lawful(t, b.settled())
	})
}

func TestClientDisconnectStopsEngine(t *testing.T) {
	for name, sent := range map[string]string{"before the first byte": "", "in the middle": chunk("a")} {
		t.Run(name, func(t *testing.T) {
			left := make(chan struct{}, 1)
			requested := make(chan struct{})
			b := start(t, testOptions(t))
			h := hang(sent, left)
			b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) { close(requested); h(w, req) }))
			ctx, leave := context.WithCancel(t.Context())
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, b.url+chatPath, strings.NewReader(streamBody))
			req.Header.Set("X-Request-ID", "r1")
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				resp, err := client.Do(req)
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			}()
			<-requested
			b.until(func() bool { return sent == "" || b.TrafficStats().TTFT != nil })
			leave()
			<-answered
			<-left // the engine has detected the disconnect
			c := b.settled()
			lawful(t, c)
			d, _ := b.Decision("r1")
			if c.Cancelled != 1 || c.Outstanding != 0 || d.State != record.StateCancelled || d.Status != statusClientClosed {
				t.Errorf("counts %+v, decision %+v: want one cancelled", c, d)
			}
		})
	}
}

// Clients disconnect at the end marker of a stream, which may be before the engine closes its response.
func TestClientLeavesAfterEndMarker(t *testing.T) {
	for path, sent := range map[string]string{
		chatPath:     chunk("a") + doneEvent,
		messagesPath: messageStop,
	} {
		left := make(chan struct{}, 1)
		b := start(t, testOptions(t))
		b.attach("us-0", engine(t, hang(sent, left)))
		resp := b.post(path, streamBody)
		if _, err := io.ReadFull(resp.Body, make([]byte, len(sent))); err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		<-left
		c := b.settled()
		lawful(t, c)
		if c.Finished != 1 {
			t.Errorf("%s: counts %+v, want one finished", path, c)
		}
	}
}

func TestQueuedRequestOfDisconnectedClient(t *testing.T) {
	b := start(t, testOptions(t))
	if _, err := b.AddReplica(replicaAt("us-0", "http://127.0.0.1:1")); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, b.url+chatPath, strings.NewReader(streamBody))
	answered := make(chan error)
	go func() {
		_, err := client.Do(req)
		answered <- err
	}()
	b.until(func() bool { return b.View().Counts.Queued == 1 })
	leave()
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v", err)
	}
	c := b.settled()
	lawful(t, c)
	if c.Cancelled != 1 || c.Queued != 0 {
		t.Errorf("counts %+v, want one cancelled and an empty queue", c)
	}
}

func TestRejections(t *testing.T) {
	t.Run("no replica", func(t *testing.T) {
		b := start(t, testOptions(t))
		resp := b.post(chatPath, plainBody)
		expect(t, resp, http.StatusServiceUnavailable, core.RejectNoReplica)
		if resp.Header.Get("Retry-After") == "" {
			t.Error("Retry-After is missing")
		}
	})
	t.Run("waited too long", func(t *testing.T) {
		o := testOptions(t)
		o.Core.MaxWait = time.Millisecond
		b := start(t, o)
		if _, err := b.AddReplica(replicaAt("us-0", "http://127.0.0.1:1")); err != nil {
			t.Fatal(err)
		}
		resp := b.post(chatPath, plainBody)
		body := expect(t, resp, http.StatusServiceUnavailable, core.RejectWaitExceeded)
		if message, _, _ := apiErrorOf(t, body); !strings.Contains(message, "no replica of the model is ready") {
			t.Errorf("without a ready replica: %s", message)
		}
		if resp.Header.Get("Retry-After") == "" {
			t.Error("Retry-After is missing")
		}
	})
	t.Run("queue full", func(t *testing.T) {
		o := testOptions(t)
		o.Core.QueueLimit = 0
		b := start(t, o)
		b.attach("us-0", engine(t, whole(plainReply)))
		resp := b.post(chatPath, plainBody)
		expect(t, resp, http.StatusTooManyRequests, core.RejectQueueFull)
		if resp.Header.Get("Retry-After") == "" {
			t.Error("Retry-After is missing")
		}
	})
}
