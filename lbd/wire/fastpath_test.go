package wire

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// behaviours are handlers by path: everything a handler can do with a response.
var behaviours = map[string]http.HandlerFunc{
	"/echo": func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s %d %v %q %v\n%s", r.Method, r.RequestURI, r.URL.Path, r.Host, r.ContentLength, r.Close, sortedFields(r.Header), err, body)
	},
	"/flush": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
		}
	},
	"/flush-first": func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Flusher).Flush()
		fmt.Fprint(w, "<html>later")
	},
	"/sized": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		fmt.Fprint(w, "hello")
	},
	"/short": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "9")
		fmt.Fprint(w, "hello")
	},
	"/long": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "3")
		_, err := fmt.Fprint(w, "hello")
		if err != http.ErrContentLength { //nolint:errorlint // as documented
			panic(err)
		}
		fmt.Fprint(w, "hel")
	},
	"/nothing":    func(http.ResponseWriter, *http.Request) {},
	"/none":       func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
	"/unmodified": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) },
	"/odd":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(599); fmt.Fprint(w, "odd") },
	"/html":       func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html><body>") },
	"/encoded": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		fmt.Fprint(w, "not really")
	},
	"/big": func(w http.ResponseWriter, _ *http.Request) {
		for range 100 {
			fmt.Fprint(w, strings.Repeat("x", 1000))
		}
	},
	"/bye": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		fmt.Fprint(w, "bye")
	},
	"/late": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Early", "1")
		w.WriteHeader(http.StatusAccepted)
		w.Header().Set("X-Late", "1")
		w.WriteHeader(http.StatusOK)
		fmt.Fprint(w, "ok")
	},
	"/fields": func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h["X-Many"] = []string{"a", "b"}
		h["X-Break"] = []string{"a\r\nX-Evil: 1"}
		h["Bad Name"] = []string{"x"}
		h["X-Space"] = []string{"  x  "}
		h["Date"] = []string{"today"}
		h["Content-Type"] = nil
		fmt.Fprint(w, "ok")
	},
	"/abort": func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	},
	"/panic": func(http.ResponseWriter, *http.Request) { panic("on purpose") },
	"/peek": func(w http.ResponseWriter, r *http.Request) {
		var two [2]byte
		n, err := io.ReadFull(r.Body, two[:])
		fmt.Fprintf(w, "%d %v", n, err)
	},
}

func sortedFields(h http.Header) []string {
	var out []string
	for name, values := range h {
		out = append(out, name+"="+strings.Join(values, "|"))
	}
	slices.Sort(out)
	return out
}

func serveBehaviour(w http.ResponseWriter, r *http.Request) {
	if h := behaviours[r.URL.Path]; h != nil {
		h(w, r)
		return
	}
	http.NotFound(w, r)
}

// startFastPath serves a handler through a FastPath, with net/http behind it.
func startFastPath(t testing.TB, h http.Handler, o FastPathOptions) (*FastPath, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent := log.New(io.Discard, "", 0)
	if o.Log == nil {
		o.Log = silent
	}
	f, err := NewFastPath(l, h, o)
	if err != nil {
		t.Fatal(err)
	}
	rest := &http.Server{Handler: h, ErrorLog: silent, ReadHeaderTimeout: o.HeadTimeout, MaxHeaderBytes: defaultRequestHead, Protocols: new(http.Protocols)}
	rest.Protocols.SetHTTP1(true)
	rest.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = rest.Serve(f)
	}()
	t.Cleanup(func() {
		_ = rest.Close()
		f.CloseConnections()
		<-ended
		<-f.drained
	})
	return f, l.Addr().String()
}

// writeReply sends bytes to a server and returns the response until the connection ends.
func writeReply(t testing.TB, addr, raw string) []byte {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	go func() {
		_, _ = io.WriteString(nc, raw)
		_ = nc.(*net.TCPConn).CloseWrite()
	}()
	answer, _ := io.ReadAll(nc) // a reset truncates it
	return answer
}

// describe returns the responses to the requests in raw as text, without their dates. What is not a
// response stays as it is.
func describe(raw string, received []byte) string {
	var out strings.Builder
	asked, in := bufio.NewReader(strings.NewReader(raw)), bufio.NewReader(bytes.NewReader(received))
	for {
		if _, err := in.Peek(1); err != nil {
			return out.String()
		}
		req, _ := http.ReadRequest(asked) // nil: the response has a body
		var cut error
		if req != nil {
			_, cut = io.Copy(io.Discard, req.Body)
		}
		resp, err := http.ReadResponse(in, req)
		if err != nil {
			rest, _ := io.ReadAll(in)
			fmt.Fprintf(&out, "no answer: %v %q\n", err, rest)
			return out.String()
		}
		body, err := io.ReadAll(resp.Body)
		if cut != nil {
			resp.Close = true // whether that was known when the response started does not matter
		}
		if resp.Header.Get("Date") != "today" {
			resp.Header.Del("Date")
		}
		fmt.Fprintf(&out, "%s %d %v %v %q %q %v\n", resp.Status, resp.ContentLength, resp.TransferEncoding, resp.Close, sortedFields(resp.Header), body, err)
	}
}

// twins starts a FastPath and a net/http server with the same handler.
func twins(t testing.TB) (fast, plain string) {
	t.Helper()
	_, fast = startFastPath(t, http.HandlerFunc(serveBehaviour), FastPathOptions{HeadTimeout: 5 * time.Second})
	s := httptest.NewUnstartedServer(http.HandlerFunc(serveBehaviour))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.MaxHeaderBytes = defaultRequestHead
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return fast, s.Listener.Addr().String()
}

// rawRequests returns requests of all kinds, valid and invalid.
func rawRequests() []string {
	var out []string
	for path := range behaviours {
		out = append(out, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n", "HEAD "+path+" HTTP/1.1\r\nHost: x\r\n\r\n",
			"POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", "POST "+path+" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
	}
	slices.Sort(out)
	return append(out,
		"GET /echo?a=b%20c#d HTTP/1.1\r\nHost: x\r\n\r\n", "GET /e%63ho HTTP/1.1\r\nHost: x\r\n\r\n", "GET //echo HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://y/echo HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET * HTTP/1.1\r\nHost: x\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT /echo HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /echo HTTP/1.0\r\n\r\n", "GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "GET /echo HTTP/1.2\r\nHost: x\r\n\r\n", "GET /echo HTTP/2.0\r\nHost: x\r\n\r\n", "GET /echo\r\n\r\n", "GET  /echo HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /echo HTTP/1.1\r\n\r\n", "GET /echo HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "GET /echo HTTP/1.1\r\nHost: a b\r\n\r\n", "GET /echo HTTP/1.1\r\nHost:\r\n\r\n", "GET /echo HTTP/1.1\nHost: x\n\n", "\r\nGET /echo HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "GET /echo HTTP/1.1\r\nHost: x\r\nConnection: Keep-Alive\r\n\r\n", "GET /echo HTTP/1.1\r\nHost: x\r\nConnection: x-a, close\r\n\r\n",
		"GET /echo HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nx-a: 2\r\nX-B:\t 3 \r\n\r\n", "GET /echo HTTP/1.1\r\nHost: x\r\nX A: 1\r\n\r\n", "GET /echo HTTP/1.1\r\nHost: x\r\nX-A : 1\r\n\r\n", "GET /echo HTTP/1.1\r\nHost: x\r\nX-A: 1\r\n folded\r\n\r\n",
		"GET /echo HTTP/1.1\r\nHost: x\r\nX-A: a\x00b\r\n\r\n", "GET /echo HTTP/1.1\r\nHost: x\r\nX-A: \xff\r\n\r\n", "GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n", "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", "G T /echo HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nhello", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\nhello", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\nhello", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
		"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: x\r\n\r\nhello",
		"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhello", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "POST /echo HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /echo HTTP/1.1\r\nHost: x\r\nPragma: no-cache\r\n\r\n", "GET /echo HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", "GET /echo HTTP/1.1\r\nHost: x\r\nTrailer: X\r\n\r\n",
		"GET /echo HTTP/1.1\r\nHost: x\r\nCookie: "+strings.Repeat("x", 5000)+"\r\n\r\n", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 40000\r\n\r\n"+strings.Repeat("y", 40000), "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n"+strings.Repeat("y", 200000),
		"GET /echo HTTP/1.1\r\nHost: x\r\n", "GET", "", "\x16\x03\x01\x02\x00\x01",
	)
}

// Clients get the same responses from a FastPath as from net/http's server alone.
func TestFastPathMatchesNetHTTP(t *testing.T) {
	fast, plain := twins(t)
	all := rawRequests()
	sessions := slices.Clone(all)
	for i, raw := range all { // each after and before others, on one connection
		sessions = append(sessions, all[(i*7+3)%len(all)]+raw+all[(i*5+1)%len(all)], "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"+raw)
	}
	for _, raw := range sessions {
		got, want := describe(raw, writeReply(t, fast, raw)), describe(raw, writeReply(t, plain, raw))
		if got != want {
			t.Errorf("%.300q:\ngot  %.600s\nwant %.600s", raw, got, want)
		}
	}
}

func FuzzFastPath(f *testing.F) {
	fast, plain := twins(f)
	for _, raw := range rawRequests() {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if bytes.Contains(raw, []byte("PRI *")) {
			return // HTTP/2 frames are not compared
		}
		got, want := describe(string(raw), writeReply(t, fast, string(raw))), describe(string(raw), writeReply(t, plain, string(raw)))
		if got != want {
			t.Errorf("%q:\ngot  %s\nwant %s", raw, got, want)
		}
	})
}

// A client that hangs up cancels its request, whether it was being read or not. A client that is cut
// off can detect a partial response.
func TestFastPathReportsHangups(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	_, addr := startFastPath(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	}), FastPathOptions{})
	for range 3 {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := io.WriteString(nc, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"); err != nil {
				t.Fatal(err)
			}
		}
		<-began
		nc.Close()
		<-ended
		<-began // the request after it has lost its client before it starts
		<-ended
	}
}

// HTTP/2 without TLS works on the same port.
func TestFastPathHandsOffHTTP2(t *testing.T) {
	_, addr := startFastPath(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }), FastPathOptions{})
	tr := &http.Transport{Protocols: new(http.Protocols)}
	defer tr.CloseIdleConnections()
	tr.Protocols.SetUnencryptedHTTP2(true)
	for want, c := range map[string]*http.Client{"HTTP/2.0": {Transport: tr}, "HTTP/1.1": {Transport: NewTransport(Options{})}} {
		resp, err := c.Get("http://" + addr)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != want {
			t.Errorf("got %s, want %s", body, want)
		}
		c.CloseIdleConnections()
	}
}

// Connections of clients that are slow to send a request are closed.
func TestFastPathClosesIdleConnections(t *testing.T) {
	_, addr := startFastPath(t, http.HandlerFunc(serveBehaviour), FastPathOptions{HeadTimeout: 20 * time.Millisecond, IdleTimeout: 30 * time.Millisecond})
	for _, begun := range []string{"", "GET /echo HT", "GET /sized HTTP/1.1\r\nHost: x\r\n\r\n", "GET /sized HTTP/1.1\r\nHost: x\r\n\r\nGET /"} {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if _, err := io.WriteString(nc, begun); err != nil {
			t.Fatal(err)
		}
		if received, err := io.ReadAll(nc); err != nil || strings.Contains(begun, "\r\n\r\n") != strings.HasSuffix(string(received), "hello") {
			t.Errorf("%q: got %q, %v", begun, received, err)
		}
	}
}

// A client that does not read is disconnected at the deadline, and its request ends.
func TestFastPathLimitsWrites(t *testing.T) {
	done := make(chan error, 1)
	_, addr := startFastPath(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		piece, ctl := make([]byte, 64<<10), http.NewResponseController(w)
		for {
			_ = ctl.SetWriteDeadline(time.Now().Add(30 * time.Millisecond))
			if _, err := w.Write(piece); err != nil {
				<-r.Context().Done()
				done <- ctl.Flush()
				return
			}
		}
	}), FastPathOptions{})
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := io.WriteString(nc, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("writing went on")
	}
}

// A body that arrives too slowly times out at the handler's deadline.
func TestFastPathLimitsReads(t *testing.T) {
	_, addr := startFastPath(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		_, err := io.ReadAll(r.Body)
		fmt.Fprint(w, err != nil)
	}), FastPathOptions{})
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := io.WriteString(nc, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf"); err != nil {
		t.Fatal(err)
	}
	if received, err := io.ReadAll(nc); err != nil || !strings.HasSuffix(string(received), "true") {
		t.Errorf("got %q, %v", received, err)
	}
}

// A request that is rejected unread receives a response, regardless of its size.
func TestFastPathRespondsBeforeBody(t *testing.T) {
	_, addr := startFastPath(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }), FastPathOptions{})
	raw := "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + strings.Repeat("y", 300000)
	if received := string(writeReply(t, addr, raw)); !strings.HasPrefix(received, "HTTP/1.1 401 ") || !strings.Contains(received, "Connection: close\r\n") {
		t.Errorf("got %q", received)
	}
}

// At shutdown idle connections close at once, current responses are sent completely and end their
// connections, and no new connection is accepted.
func TestFastPathShutdown(t *testing.T) {
	began, finish := make(chan struct{}), make(chan struct{})
	f, addr := startFastPath(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		began <- struct{}{}
		<-finish
		fmt.Fprint(w, "whole")
	}), FastPathOptions{})
	idle, err1 := net.Dial("tcp", addr)
	busy, err2 := net.Dial("tcp", addr)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	defer idle.Close()
	defer busy.Close()
	if _, err := io.WriteString(busy, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-began
	hurried, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Shutdown(hurried); err != context.Canceled { //nolint:errorlint // it is the context's own
		t.Errorf("Shutdown: %v while a request is in flight", err)
	}
	if received, err := io.ReadAll(idle); err != nil || len(received) > 0 {
		t.Errorf("idle connection: got %q, %v", received, err)
	}
	if nc, err := net.Dial("tcp", addr); err == nil {
		nc.Close()
		t.Error("a connection is accepted after the end")
	}
	close(finish)
	if err := f.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if received, _ := io.ReadAll(busy); !strings.Contains(string(received), "Connection: close\r\n") || !strings.HasSuffix(string(received), "whole") {
		t.Errorf("request in flight: got %q", received)
	}
}

// Requests on one connection do not share state, whether their heads are equal or not.
func TestFastPathIsolatesRequests(t *testing.T) {
	var seen []string
	_, addr := startFastPath(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen = append(seen, r.Header.Get("X-N")+string(body))
		w.Header().Set("X-"+string(body), "1")
	}), FastPathOptions{})
	var raw strings.Builder
	for i := range 6 {
		fmt.Fprintf(&raw, "POST / HTTP/1.1\r\nHost: x\r\nX-N: %d\r\nContent-Length: 1\r\n\r\n%c", i/2, 'a'+i)
	}
	received := string(writeReply(t, addr, raw.String()))
	if got := strings.Join(seen, " "); got != "0a 0b 1c 1d 2e 2f" {
		t.Errorf("requests: got %s", got)
	}
	if n := strings.Count(received, ": 1\r\n"); n != 6 {
		t.Errorf("%d fields of handlers, want 6 in\n%s", n, received)
	}
}
