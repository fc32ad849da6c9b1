package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"skyserve/internal/service"
)

const realtime = "/v1/realtime"

// upgraded is a WebSocket as an engine accepted it.
type upgraded struct {
	conn *websocket.Conn
	req  *http.Request
	done chan struct{} // the engine's handler ends when it is closed
}

// realtimeEngine accepts WebSockets and passes them to the test, which ends each of them.
func realtimeEngine(t *testing.T, protocols ...string) (http.HandlerFunc, chan *upgraded) {
	accepted := make(chan *upgraded, 4)
	return func(w http.ResponseWriter, req *http.Request) {
		conn, err := websocket.Accept(w, req, &websocket.AcceptOptions{Subprotocols: protocols, InsecureSkipVerify: true})
		if err != nil {
			t.Error(err)
			return
		}
		u := &upgraded{conn, req, make(chan struct{})}
		accepted <- u
		<-u.done
		_ = conn.CloseNow()
	}, accepted
}

// dial opens a WebSocket.
func (b *balancer) dial(path string, protocols []string, headers ...string) (*websocket.Conn, *http.Response, error) {
	b.t.Helper()
	o := &websocket.DialOptions{HTTPClient: client, HTTPHeader: http.Header{}, Subprotocols: protocols}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		o.HTTPHeader.Set(name, value)
	}
	conn, resp, err := websocket.Dial(b.t.Context(), b.url+path, o)
	if err == nil {
		b.t.Cleanup(func() { _ = conn.CloseNow() })
	}
	return conn, resp, err
}

// open opens a WebSocket to the only engine.
func (b *balancer) open(accepted chan *upgraded) (*websocket.Conn, *upgraded) {
	b.t.Helper()
	conn, _, err := b.dial(realtime+"?model=chat-small", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return conn, <-accepted
}

// closedWith returns the code of the close frame with which a WebSocket ends.
func closedWith(t *testing.T, conn *websocket.Conn) websocket.StatusCode {
	t.Helper()
	_, _, err := conn.Read(t.Context())
	if err == nil {
		t.Fatal("a message arrived instead of the end")
	}
	return websocket.CloseStatus(err)
}

// A WebSocket reaches the engine with the model's real name, exchanges messages of any size in both
// directions, and counts as outstanding until it is closed.
func TestWebSocket(t *testing.T) {
	h, accepted := realtimeEngine(t)
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, h))
	conn, resp, err := b.dial(realtime+"?model=chat-small&intent=transcription", nil, "X-Request-ID: r1")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{headerRequestID: "r1", headerReplica: "us-0", headerRegion: "local/us"} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	u := <-accepted
	if q := u.req.URL.Query(); q.Get("model") != testModel || q.Get("intent") != "transcription" || u.req.URL.Path != realtime {
		t.Errorf("the engine receives %s", u.req.URL)
	}
	conn.SetReadLimit(1 << 20)
	u.conn.SetReadLimit(1 << 20)
	for _, size := range []int{0, 1, 125, 126, 65535, 65536, 300_000} {
		message := bytes.Repeat([]byte{0x5a, byte(size)}, size)[:size]
		for from, to := range map[*websocket.Conn]*websocket.Conn{conn: u.conn, u.conn: conn} {
			sent := make(chan error, 1)
			go func() { sent <- from.Write(t.Context(), websocket.MessageBinary, message) }()
			_, got, err := to.Read(t.Context())
			if err != nil || !bytes.Equal(got, message) || <-sent != nil {
				t.Fatalf("%d bytes became %d: %v", size, len(got), err)
			}
		}
	}
	if c := b.View().Counts; c.Outstanding != 1 || c.Finished != 0 {
		t.Errorf("an open WebSocket has counts %+v", c)
	}
	go func() {
		_, _, _ = u.conn.Read(context.Background()) // responds to the close frame
		close(u.done)
	}()
	if err := conn.Close(websocket.StatusNormalClosure, "bye"); err != nil {
		t.Error(err)
	}
	c := b.settled()
	lawful(t, c)
	if c.Finished != 1 {
		t.Errorf("a closed WebSocket has counts %+v", c)
	}
	if r := b.Requests(1)[0]; r.Status != 101 || r.OutputTokens != nil || r.PromptTokens != nil {
		t.Errorf("its record is %+v", r)
	}
}

// An engine ends a WebSocket with its own close frame.
func TestEngineClosesWebSocket(t *testing.T) {
	h, accepted := realtimeEngine(t)
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, h))
	conn, u := b.open(accepted)
	go func() {
		_ = u.conn.Close(4001, "expired")
		close(u.done)
	}()
	if code := closedWith(t, conn); code != 4001 {
		t.Errorf("the client receives %v", code)
	}
	if c := b.settled(); c.Finished != 1 {
		t.Errorf("counts %+v", c)
	}
}

// A client whose engine disappears receives a close frame.
func TestBrokenWebSocket(t *testing.T) {
	h, accepted := realtimeEngine(t)
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, h))
	conn, u := b.open(accepted)
	close(u.done)
	if code := closedWith(t, conn); code != websocket.StatusInternalError {
		t.Errorf("the client receives %v", code)
	}
	c := b.settled()
	lawful(t, c)
	if c.Finished != 0 {
		t.Errorf("counts %+v", c)
	}
}

// The engine's side ends when the client disappears.
func TestClientOfWebSocketDisappears(t *testing.T) {
	h, accepted := realtimeEngine(t)
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, h))
	conn, u := b.open(accepted)
	_ = conn.CloseNow()
	if _, _, err := u.conn.Read(t.Context()); err == nil {
		t.Error("the engine reads a message")
	}
	close(u.done)
	lawful(t, b.settled())
}

// A WebSocket is closed if neither side sends anything, and when the balancer shuts down.
func TestWebSocketTimeouts(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		o := testOptions(t)
		o.Limits.SocketIdleTimeout = time.Millisecond
		h, accepted := realtimeEngine(t)
		b := start(t, o)
		b.attach("us-0", engine(t, h))
		conn, u := b.open(accepted)
		if code := closedWith(t, conn); code != websocket.StatusGoingAway {
			t.Errorf("the client receives %v", code)
		}
		b.settled()
		close(u.done)
	})
	t.Run("drain", func(t *testing.T) {
		h, accepted := realtimeEngine(t)
		b := start(t, testOptions(t))
		b.attach("us-0", engine(t, h))
		conn, u := b.open(accepted)
		ctx, cancel := context.WithCancel(t.Context())
		drained := make(chan error, 1)
		go func() { drained <- b.Drain(ctx) }()
		b.until(func() bool { return b.draining.Load() })
		if err := u.conn.Write(t.Context(), websocket.MessageText, []byte("still open")); err != nil {
			t.Error(err)
		}
		if _, text, err := conn.Read(t.Context()); string(text) != "still open" || err != nil {
			t.Errorf("while it drains, the client receives %q, %v", text, err)
		}
		cancel()
		if code := closedWith(t, conn); code != websocket.StatusServiceRestart {
			t.Errorf("the client receives %v", code)
		}
		if err := <-drained; err != nil {
			t.Error(err)
		}
		close(u.done)
		lawful(t, b.settled())
	})
}

// A WebSocket goes to another replica if the first one fails, and to a peer if there is none here.
func TestWebSocketIsPlaced(t *testing.T) {
	us, eu := pair(t, "secret")
	h, accepted := realtimeEngine(t)
	eu.attach("eu-0", engine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
	eu.attach("eu-1", engine(t, h))
	for range 2 {
		us.receiveReport("lb-eu-0")
		conn, resp, err := us.dial(realtime+"?model=chat-small", nil, "X-Request-ID: r1")
		if err != nil {
			t.Fatal(err)
		}
		u := <-accepted
		if resp.Header.Get(headerReplica) != "eu-1" || resp.Header.Get(headerRegion) != "local/eu" || resp.Header.Get(headerRequestID) != "r1" {
			t.Errorf("the header is %v", resp.Header)
		}
		if err := u.conn.Write(t.Context(), websocket.MessageText, []byte("hi")); err != nil {
			t.Error(err)
		}
		if _, text, err := conn.Read(t.Context()); string(text) != "hi" || err != nil {
			t.Errorf("the client receives %q, %v", text, err)
		}
		close(u.done)
		_ = conn.CloseNow()
		lawful(t, us.settled())
		lawful(t, eu.settled())
		eu.report("eu-0")
		eu.report("eu-1")
	}
}

// Browsers present the key as a subprotocol. It is not sent to the engine, and the other subprotocol
// is chosen, without which browsers reject the response.
func TestKeyInSubprotocol(t *testing.T) {
	o := testOptions(t)
	o.Keys = apiKeys("sk-one concurrent=1")
	h, accepted := realtimeEngine(t)
	b := start(t, o)
	b.attach("us-0", engine(t, h))
	conn, resp, err := b.dial(realtime+"?model=chat-small", []string{"realtime", "openai-insecure-api-key.sk-one", "openai-beta.realtime-v1"})
	if err != nil {
		t.Fatal(err)
	}
	u := <-accepted
	if got := u.req.Header.Get("Sec-WebSocket-Protocol"); got != "realtime, openai-beta.realtime-v1" || u.req.Header["Authorization"] != nil {
		t.Errorf("the engine receives %q", got)
	}
	if got := resp.Header.Get("Sec-WebSocket-Protocol"); got != "realtime" || conn.Subprotocol() != "realtime" {
		t.Errorf("the balancer chooses %q", got)
	}
	for name, c := range map[string]struct {
		protocols []string
		headers   []string
		status    int
	}{
		"a second one":    {[]string{"realtime", "openai-insecure-api-key.sk-one"}, nil, 429},
		"another key":     {[]string{"realtime", "openai-insecure-api-key.sk-two"}, nil, 401},
		"no key":          {nil, nil, 401},
		"the usual way":   {nil, []string{"Authorization: Bearer sk-one"}, 429},
		"a wrong Bearer":  {[]string{"openai-insecure-api-key.sk-one"}, []string{"Authorization: Bearer sk-two"}, 401},
		"another website": {[]string{"realtime", "openai-insecure-api-key.sk-one"}, []string{"Origin: " + page}, 403},
	} {
		_, resp, err := b.dial(realtime+"?model=chat-small", c.protocols, c.headers...)
		if err == nil || resp.StatusCode != c.status {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The key is not accepted there for other requests.
	expect(t, b.post(chatPath, plainBody, "Sec-WebSocket-Protocol: openai-insecure-api-key.sk-one"), 401, "invalid_api_key")
	close(u.done)
	_ = conn.CloseNow()
	b.settled()
	if used := b.KeyUsage(); len(used) != 1 || used[0].Requests != 1 {
		t.Errorf("the usage is %+v", used)
	}
}

// Web pages may open a WebSocket if balancer.cors permits them.
func TestWebPageOpensWebSocket(t *testing.T) {
	h, accepted := realtimeEngine(t)
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, h))
	b.SetCORS(&service.CORS{Origins: []string{page}})
	conn, _, err := b.dial(realtime+"?model=chat-small", nil, "Origin: "+page)
	if err != nil {
		t.Fatal(err)
	}
	close((<-accepted).done)
	_ = conn.CloseNow()
	b.settled()
}

func TestRejectedWebSockets(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"detail":"Not Found"}`)
	}))
	for name, c := range map[string]struct {
		path   string
		status int
		code   string
	}{
		"another model":       {realtime + "?model=gpt-9", 404, "model_not_found"},
		"two models":          {realtime + "?model=a&model=b", 400, "ambiguous_key"},
		"no such engine path": {realtime + "?model=chat-small", 404, ""},
		"the only model":      {realtime, 404, ""},
	} {
		_, resp, err := b.dial(c.path, nil)
		if err == nil || resp.StatusCode != c.status {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if body, _ := io.ReadAll(resp.Body); c.code == "" && string(body) != `{"detail":"Not Found"}` || c.code != "" && !strings.Contains(string(body), c.code) {
			t.Errorf("%s: %s", name, body)
		}
	}
	status, body := b.get(realtime + "?model=chat-small")
	if _, _, code := apiErrorOf(t, body); status != 426 || code != "websocket_required" {
		t.Errorf("without an upgrade: %d %s", status, body)
	}
	b.SetModels([]service.BalancerModel{{Name: testModel}, {Name: "other"}}, nil)
	if _, resp, err := b.dial(realtime, nil); err == nil || resp.StatusCode != 404 {
		t.Errorf("without a model of two: %v", err)
	}
	expect(t, b.post(realtime, ""), 405, "method_not_allowed")
	lawful(t, b.settled())
}

// A close frame of the balancer is sent between two frames, and nothing follows it.
func TestCloseFrameIsBetweenFrames(t *testing.T) {
	client, far := net.Pipe()
	engineSide, engineFar := net.Pipe()
	s := &socket{client: client, unread: client, engine: engineSide, stall: time.Minute, idleFor: time.Hour}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.relay()
	}()
	in := bufio.NewReader(far)
	receive := func(n int) string {
		b := make([]byte, n)
		if _, err := io.ReadFull(in, b); err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	frame := "\x82\x05hello"
	go func() { _, _ = io.WriteString(engineFar, frame[:4]) }()
	if got := receive(4); got != frame[:4] {
		t.Fatalf("received %q", got)
	}
	s.shutDown(closeRestart, "bye")
	go func() { _, _ = io.WriteString(engineFar, frame[4:]+frame) }()
	if got, want := receive(3+7), frame[4:]+string(closeFrame(closeRestart, "bye")); got != want {
		t.Errorf("received %q, want %q", got, want)
	}
	_ = far.Close()
	<-ended
	if rest, err := io.ReadAll(in); len(rest) > 0 || err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("received %q, %v after the close frame", rest, err)
	}
	_ = engineFar.Close()
}

// Frames are followed equally however their bytes are divided.
func TestFrameBoundariesAreFound(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var stream []byte
		var ends []int
		closed := false
		for range 1 + random.IntN(5) {
			size := []int{0, 1, 125, 126, 1000, 65535, 65536}[random.IntN(7)]
			op := []byte{0x81, 0x02, 0x89, 0x88}[random.IntN(4)]
			closed = closed || op == 0x88
			mask := byte(random.IntN(2)) << 7
			stream = append(stream, op)
			switch {
			case size < 126:
				stream = append(stream, mask|byte(size))
			case size < 1<<16:
				stream = append(stream, mask|126, byte(size>>8), byte(size))
			default:
				stream = append(stream, mask|127, 0, 0, 0, 0, 0, byte(size>>16), byte(size>>8), byte(size))
			}
			if mask != 0 {
				stream = append(stream, 1, 2, 3, 4)
			}
			stream = append(stream, bytes.Repeat([]byte{0x88}, size)...)
			ends = append(ends, len(stream))
		}
		var f socketFrames
		var found []int
		for at := 0; at < len(stream); {
			piece := stream[at:min(len(stream), at+1+random.IntN(20_000))]
			at += f.nextBoundary(piece)
			if f.atBoundary() {
				found = append(found, at)
			}
		}
		if len(found) != len(ends) || f.closed != closed {
			t.Fatalf("boundaries %v, closed %v; want %v, %v", found, f.closed, ends, closed)
		}
		for i := range ends {
			if found[i] != ends[i] {
				t.Fatalf("boundaries %v, want %v", found, ends)
			}
		}
	}
}
