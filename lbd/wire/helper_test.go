package wire

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // net/http logs the invalid input of these tests
	goleak.VerifyTestMain(m)
}

// script plays the host's side of one connection.
type script func(host net.Conn, in *bufio.Reader)

// host is a listener on loopback that plays a script on each connection.
type host struct {
	url      string
	listener net.Listener
	running  sync.WaitGroup

	mu       sync.Mutex
	accepted int
	open     map[net.Conn]bool
}

func serve(t testing.TB, play script) *host {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{url: "http://" + l.Addr().String(), listener: l, open: map[net.Conn]bool{}}
	h.running.Go(h.accept(play))
	t.Cleanup(h.stop)
	return h
}

func (h *host) accept(play script) func() {
	return func() {
		for {
			nc, err := h.listener.Accept()
			if err != nil {
				return
			}
			h.mu.Lock()
			h.accepted++
			h.open[nc] = true
			h.mu.Unlock()
			h.running.Go(func() {
				play(nc, bufio.NewReader(nc))
				nc.Close()
				h.mu.Lock()
				delete(h.open, nc)
				h.mu.Unlock()
			})
		}
	}
}

func (h *host) stop() {
	h.listener.Close()
	h.mu.Lock()
	for nc := range h.open {
		nc.Close()
	}
	h.mu.Unlock()
	h.running.Wait()
}

// connections returns how many connections were accepted so far.
func (h *host) connections() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.accepted
}

// left waits until every connection was closed by the other side.
func (h *host) left() {
	h.listener.Close()
	h.running.Wait()
}

// take reads one complete request and returns it with its body.
func take(in *bufio.Reader) (*http.Request, string, error) {
	req, err := http.ReadRequest(in)
	if err != nil {
		return nil, "", err
	}
	body, err := io.ReadAll(req.Body)
	return req, string(body), err
}

// always responds to each request on a connection with the same bytes.
func always(raw string) script {
	return func(host net.Conn, in *bufio.Reader) {
		for {
			if _, _, err := take(in); err != nil {
				return
			}
			if _, err := io.WriteString(host, raw); err != nil {
				return
			}
		}
	}
}

// once responds to one request with raw bytes, in pieces of a size, and hangs up.
func once(raw string, piece int) script {
	return func(host net.Conn, in *bufio.Reader) {
		if _, _, err := take(in); err != nil {
			return
		}
		for rest := raw; len(rest) > 0; {
			n := min(piece, len(rest))
			if _, err := io.WriteString(host, rest[:n]); err != nil {
				return
			}
			rest = rest[n:]
		}
	}
}

// piped dials hosts in memory that play a script.
func piped(play script) DialFunc {
	return func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			play(far, bufio.NewReader(far))
		}()
		return near, nil
	}
}

// transport returns a transport that must have no connections at the end of the test.
func transport(t testing.TB, o Options) *Transport {
	tr := NewTransport(o)
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func request(t testing.TB, method, url, body string) *http.Request {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, r)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// ask sends a request and reads the whole response.
func ask(t testing.TB, rt http.RoundTripper, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: reading the response: %v", req.Method, req.URL, err)
	}
	return resp, string(body)
}

func kept(tr *Transport) int {
	tr.idle.mu.Lock()
	defer tr.idle.mu.Unlock()
	return tr.idle.total
}

func closeIdle(rt http.RoundTripper) { rt.(interface{ CloseIdleConnections() }).CloseIdleConnections() }

// nobody never responds.
func nobody(context.Context, string, string) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
}
