package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// errEnough is the cause of cancelled contexts in these tests.
var errEnough = errors.New("the client has had enough")

// spying counts the open connections.
type spying struct {
	net.Conn
	open *atomic.Int32
}

func (s spying) Close() error {
	err := s.Conn.Close()
	s.open.Add(-1)
	return err
}

// stuck waits for the other side to hang up.
func stuck(host net.Conn, in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) }

func TestContextEndsRequestsInFlight(t *testing.T) {
	sends := func(text string) script {
		return func(host net.Conn, in *bufio.Reader) {
			if _, _, err := take(in); err == nil {
				_, _ = io.WriteString(host, text)
				stuck(host, in)
			}
		}
	}
	far := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("operation was canceled")}
	}
	places := map[string]struct {
		dial DialFunc
		body string
		read bool // the response has started
	}{
		"dialling":             {dial: far},
		"writing":              {dial: piped(func(host net.Conn, in *bufio.Reader) { <-time.After(time.Hour) }), body: "x"},
		"writing a large body": {dial: piped(func(host net.Conn, in *bufio.Reader) { <-time.After(time.Hour) }), body: strings.Repeat("x", 1<<20)},
		"no response":          {dial: piped(sends("")), body: "x"},
		"truncated header":     {dial: piped(sends("HTTP/1.1 200 OK\r\nX"))},
		"interim":              {dial: piped(sends("HTTP/1.1 103 Early Hints\r\n\r\n"))},
		"no body":              {dial: piped(sends("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")), read: true},
		"truncated body":       {dial: piped(sends("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe")), read: true},
		"truncated chunk":      {dial: piped(sends(chunkedHead + "\r\n5\r\nhe")), read: true},
		"until close":          {dial: piped(sends("HTTP/1.1 200 OK\r\n\r\nhe")), read: true},
	}
	for name, p := range places {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				tr := NewTransport(Options{DialContext: p.dial})
				time.AfterFunc(time.Minute, func() { cancel(errEnough) })
				req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://engine/", strings.NewReader(p.body))
				began := time.Now()
				resp, err := tr.RoundTrip(req)
				if p.read {
					if err != nil {
						t.Fatal(err)
					}
					_, err = io.ReadAll(resp.Body)
				}
				if !errors.Is(err, errEnough) || time.Since(began) != time.Minute {
					t.Errorf("got %v after %v", err, time.Since(began))
				}
				if resp != nil {
					resp.Body.Close()
				}
				if kept(tr) != 0 {
					t.Error("the connection is kept")
				}
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

func TestEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errEnough)
	body := noted{strings.NewReader("x"), make(chan struct{})}
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://engine/", body)
	if _, err := NewTransport(Options{DialContext: nobody}).RoundTrip(req); !errors.Is(err, errEnough) {
		t.Errorf("got %v", err)
	}
	<-body.closed
}

func TestContextEndAfterResponseHasNoEffect(t *testing.T) {
	h := serve(t, always(hi))
	tr := transport(t, Options{})
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, h.url, nil)
		if _, body := ask(t, tr, req); body != "hi" {
			t.Fatalf("got %q", body)
		}
		cancel()
	}
	if n := h.connections(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

func TestResponseHeaderTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := time.Minute
		tr := NewTransport(Options{ResponseHeaderTimeout: time.Hour, DialContext: piped(func(host net.Conn, in *bufio.Reader) {
			for {
				if _, _, err := take(in); err != nil {
					return
				}
				time.Sleep(wait)
				_, _ = io.WriteString(host, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
				time.Sleep(100 * time.Hour) // a body may take a while
				_, _ = io.WriteString(host, "hi")
			}
		})})
		if _, body := ask(t, tr, request(t, http.MethodGet, "http://engine/", "")); body != "hi" {
			t.Errorf("got %q", body)
		}
		wait = 2 * time.Hour
		began := time.Now()
		_, err := tr.RoundTrip(request(t, http.MethodGet, "http://engine/", ""))
		var timeout net.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() || time.Since(began) != time.Hour {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		time.Sleep(200 * time.Hour)
	})
}

func TestIdleConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int32
		dial := piped(always(hi))
		tr := NewTransport(Options{MaxIdlePerHost: 3, MaxIdle: 5, IdleTimeout: time.Minute, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := dial(ctx, network, addr)
			open.Add(1)
			return spying{nc, &open}, err
		}})
		for _, host := range []string{"a", "b", "c"} {
			var answers []*http.Response
			for range 4 { // concurrently
				resp, err := tr.RoundTrip(request(t, http.MethodGet, "http://"+host, ""))
				if err != nil {
					t.Fatal(err)
				}
				answers = append(answers, resp)
			}
			for _, resp := range answers {
				_, _ = io.ReadAll(resp.Body)
				time.Sleep(time.Second)
			}
		}
		counts := [3]int{}
		tr.idle.mu.Lock()
		for i, host := range []string{"a:80", "b:80", "c:80"} {
			counts[i] = len(tr.idle.hosts[host])
		}
		tr.idle.mu.Unlock()
		if counts != [3]int{0, 2, 3} || open.Load() != 5 {
			t.Errorf("kept %v, %d open: want the latest 5, 3 a host", counts, open.Load())
		}
		time.Sleep(2 * time.Minute)
		if open.Load() != 0 || kept(tr) != 0 {
			t.Errorf("%d open, %d kept after the idle timeout", open.Load(), kept(tr))
		}
	})
}

func TestSweepFindsClosedConnections(t *testing.T) {
	closed := make(chan struct{})
	h := serve(t, func(host net.Conn, in *bufio.Reader) {
		if _, _, err := take(in); err == nil {
			_, _ = io.WriteString(host, hi)
			host.Close()
			close(closed)
		}
	})
	tr := transport(t, Options{})
	ask(t, tr, request(t, http.MethodGet, h.url, ""))
	<-closed
	for kept(tr) > 0 { // the end of a connection takes a moment to arrive
		tr.idle.sweep()
	}
}

func TestCloseEndsBlockedRead(t *testing.T) {
	for _, dial := range []DialFunc{nil, piped(func(host net.Conn, in *bufio.Reader) {
		if _, _, err := take(in); err == nil {
			_, _ = io.WriteString(host, eventStream)
			stuck(host, in)
		}
	})} {
		h := serve(t, func(host net.Conn, in *bufio.Reader) {
			if _, _, err := take(in); err == nil {
				_, _ = io.WriteString(host, eventStream)
				stuck(host, in)
			}
		})
		tr := transport(t, Options{DialContext: dial})
		for _, size := range []int{1, 4096} {
			resp, err := tr.RoundTrip(request(t, http.MethodGet, h.url, ""))
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error)
			go func() {
				_, err := resp.Body.Read(make([]byte, size))
				ended <- err
			}()
			for resp.Body.(*body).state.Load() != bodyReading {
				runtime.Gosched()
			}
			if _, err := resp.Body.Read(make([]byte, 1)); !errors.Is(err, errConcurrentRead) {
				t.Errorf("a second reader gets %v", err)
			}
			resp.Body.Close()
			if err := <-ended; !errors.Is(err, http.ErrBodyReadAfterClose) {
				t.Errorf("got %v", err)
			}
		}
	}
}

const eventStream = chunkedHead + "Content-Type: text/event-stream\r\n\r\n"

func TestEventsArriveOneByOne(t *testing.T) {
	turn := make(chan struct{})
	play := func(host net.Conn, in *bufio.Reader) {
		if _, _, err := take(in); err != nil {
			return
		}
		_, _ = io.WriteString(host, eventStream)
		for range turn {
			_, _ = io.WriteString(host, "8\r\ndata: x\n\r\n")
		}
	}
	h := serve(t, play)
	defer close(turn)
	resp, err := transport(t, Options{}).RoundTrip(request(t, http.MethodGet, h.url, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for range 5 {
		turn <- struct{}{}
		p := make([]byte, 100)
		if n, err := io.ReadFull(resp.Body, p[:8]); err != nil || string(p[:n]) != "data: x\n" {
			t.Errorf("got %q, %v", p[:n], err)
		}
	}
	if b := resp.Body.(*body); b.conn.buf != nil {
		t.Error("an idle stream keeps a buffer")
	}
}

func TestReadSizeDoesNotMatter(t *testing.T) {
	for name, raw := range answers {
		want, _ := both(t, http.MethodGet, raw, 1<<20)
		if want.headErr != nil || len(raw) > 20000 {
			continue
		}
		for _, size := range []int{1, 3, directRead - 1, directRead, 5000, 0} { // 0: the default of io.Copy
			resp, err := NewTransport(Options{DialContext: piped(once(raw, 11))}).RoundTrip(request(t, http.MethodGet, "http://engine", ""))
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if size == 0 {
				_, _ = resp.Body.Read(nil) // reads nothing and does not wait
				_, err = io.Copy(&got, struct{ io.Reader }{resp.Body})
			} else {
				for p := make([]byte, size); err == nil; {
					var n int
					n, err = resp.Body.Read(p)
					got.Write(p[:n])
				}
				if err == io.EOF {
					err = nil
				}
			}
			if got.String() != want.Body && want.bodyErr == nil || (err == nil) != (want.bodyErr == nil) {
				t.Errorf("%s, %d bytes at a time: got %q, %v, want %q, %v", name, size, got.String(), err, want.Body, want.bodyErr)
			}
			resp.Body.Close()
		}
	}
}

// full is a writer that accepts a few bytes and then no more.
type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if len(p) > f.room {
		return 0, errEnough
	}
	f.room -= len(p)
	return len(p), nil
}

func TestWriteTo(t *testing.T) {
	for name, raw := range answers {
		want, _ := both(t, http.MethodGet, raw, 1<<20)
		h := serve(t, once(raw, 1000))
		tr := transport(t, Options{MaxHeadBytes: 8 << 10})
		resp, err := tr.RoundTrip(request(t, http.MethodGet, h.url, ""))
		if err != nil {
			continue
		}
		var got bytes.Buffer
		n, err := io.Copy(&got, resp.Body)
		if n != int64(got.Len()) || (err == nil) != (want.bodyErr == nil) || err == nil && got.String() != want.Body {
			t.Errorf("%s: got %d bytes %q, %v, want %q, %v", name, n, got.String(), err, want.Body, want.bodyErr)
		}
		resp.Body.Close()
	}
	resp, err := NewTransport(Options{DialContext: piped(once(answers["events"], 100))}).RoundTrip(request(t, http.MethodGet, "http://engine", ""))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(&full{40}, resp.Body); !errors.Is(err, errEnough) || n > 40 {
		t.Errorf("a writer that fails: %d bytes, %v", n, err)
	}
	if _, err := resp.Body.Read(make([]byte, 9)); err == nil {
		t.Error("the response can be read after its writer failed")
	}
	resp.Body.Close()
}
