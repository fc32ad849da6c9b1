package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/testkit"
)

const helloPage = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"

// maxTestPage is the maximum body of pollers here.
const maxTestPage = 1 << 20

func poller(t testing.TB, url string, o Options) *Poller {
	p := NewPoller(o, url, maxTestPage)
	t.Cleanup(p.Close)
	return p
}

// untilSoon is a deadline that no test here reaches.
func untilSoon() time.Time { return time.Now().Add(time.Minute) }

// wantPage requests a path and fails unless the response is 200 with this body.
func wantPage(t testing.TB, p *Poller, path, want string) {
	t.Helper()
	status, body, err := p.Get(t.Context(), path, untilSoon())
	if err != nil || status != 200 || string(body) != want {
		t.Fatalf("GET %s: got %d %.80q (%d bytes), %v, want 200 %.80q", path, status, body, len(body), err, want)
	}
}

// asTransport fails unless a poller receives the same response as a transport.
func asTransport(t *testing.T, raw string, ours *Poller, theirs seen) {
	t.Helper()
	status, body, err := ours.Get(t.Context(), "/", untilSoon())
	failed := theirs.headErr
	if failed == nil {
		failed = theirs.bodyErr
	}
	switch {
	case (err == nil) != (failed == nil):
		t.Errorf("%.200q: the poller fails with %v, the transport with %v", raw, err, failed)
	case err == nil && (status != theirs.Code || string(body) != theirs.Body):
		t.Errorf("%.200q: got %d %q, by the transport %d %q", raw, status, body, theirs.Code, theirs.Body)
	case errors.Is(failed, ErrMalformed) && !errors.Is(err, ErrMalformed):
		t.Errorf("%.200q: %v, want the error of Transport: %v", raw, err, failed)
	}
}

func TestPollerMatchesTransport(t *testing.T) {
	testkit.Slow(t)
	for _, all := range []map[string]string{answers, refused} {
		for name, raw := range all {
			for _, piece := range []int{1, 7, 1 << 20} {
				t.Run(fmt.Sprintf("%s/%d", name, piece), func(t *testing.T) {
					o := Options{DialContext: piped(once(raw, piece)), MaxHeadBytes: 8 << 10}
					asTransport(t, raw, poller(t, "http://engine", o), observe(transport(t, o), request(t, "GET", "http://engine/", "")))
				})
			}
			h := serve(t, once(raw, 1<<20))
			o := Options{MaxHeadBytes: 8 << 10}
			asTransport(t, raw, poller(t, h.url, o), observe(transport(t, o), request(t, "GET", h.url+"/", "")))
		}
	}
}

func FuzzPollerMatchesTransport(f *testing.F) {
	for _, raw := range answers {
		f.Add(raw, 3)
	}
	f.Fuzz(func(t *testing.T, raw string, piece int) {
		o := Options{DialContext: piped(once(raw, max(piece, 1))), MaxHeadBytes: 8 << 10}
		asTransport(t, raw, poller(t, "http://engine", o), observe(transport(t, o), request(t, "GET", "http://engine/", "")))
	})
}

func TestPollerReusesOneConnection(t *testing.T) {
	h := serve(t, func(host net.Conn, in *bufio.Reader) {
		for {
			req, _, err := take(in)
			if err != nil {
				return
			}
			// A different body for each path, each time under a head of another length.
			body := strings.Repeat(req.Host+req.URL.Path, len(req.URL.Path))
			if _, err := fmt.Fprintf(host, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
				return
			}
		}
	})
	p := poller(t, h.url+"/", Options{})
	for i := range 20 {
		path := "/metrics"[:1+i%8]
		wantPage(t, p, path, strings.Repeat(strings.TrimPrefix(h.url, "http://")+path, len(path)))
	}
	if n := h.connections(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

func TestPollerKeepsThePathOfItsURL(t *testing.T) {
	h := serve(t, func(host net.Conn, in *bufio.Reader) {
		req, _, err := take(in)
		if err == nil && req.RequestURI == "/a/metrics?x=1" {
			_, _ = io.WriteString(host, helloPage)
		}
	})
	wantPage(t, poller(t, h.url+"/a/", Options{}), "/metrics?x=1", "hello")
}

func TestPollerReplacesAConnection(t *testing.T) {
	goOn := make(chan struct{})
	for name, play := range map[string]script{
		"closed after each response": once(helloPage, 100),
		"with Connection: close":     once(strings.Replace(helloPage, "\r\n", "\r\nConnection: close\r\n", 1), 100),
		"with data while idle": func(host net.Conn, in *bufio.Reader) {
			_, _, err := take(in)
			_, err2 := io.WriteString(host, helloPage+"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
			if err == nil && err2 == nil {
				_, _, _ = take(in) // must never arrive
			}
		},
		"reset": func(host net.Conn, in *bufio.Reader) {
			_, _, _ = take(in)
			_, _ = io.WriteString(host, helloPage)
			<-goOn
			_ = host.(*net.TCPConn).SetLinger(0)
		},
		"closed at the next request": func(host net.Conn, in *bufio.Reader) {
			_, _, err := take(in)
			_, err2 := io.WriteString(host, helloPage)
			if err == nil && err2 == nil {
				_, _, _ = take(in)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := serve(t, play)
			p := poller(t, h.url, Options{})
			for i := range 3 {
				wantPage(t, p, "/", "hello")
				if name == "reset" && i < 2 {
					goOn <- struct{}{}
				}
			}
			if name == "reset" {
				close(goOn)
			}
			if n := h.connections(); n != 3 {
				t.Errorf("%d connections, want 3", n)
			}
		})
	}
}

func TestPollerLimitsBody(t *testing.T) {
	for _, size := range []int{maxTestPage - 1, maxTestPage, maxTestPage + 1} {
		body := strings.Repeat("a", size)
		for form, raw := range map[string]string{
			"sized":       fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", size, body),
			"chunked":     fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", size, body),
			"until close": "HTTP/1.1 200 OK\r\n\r\n" + body,
		} {
			p := poller(t, serve(t, once(raw, len(raw))).url, Options{})
			if size <= maxTestPage {
				wantPage(t, p, "/", body)
				continue
			}
			if status, got, err := p.Get(t.Context(), "/", untilSoon()); !errors.Is(err, ErrTooLong) || got != nil || status != 200 {
				t.Errorf("%s: %d, %d bytes and %v, want 200 and %v", form, status, len(got), err, ErrTooLong)
			}
		}
	}
}

func TestPollerRespectsDeadline(t *testing.T) {
	silent := func(_ net.Conn, in *bufio.Reader) { _, _ = in.ReadByte(); _, _ = io.Copy(io.Discard, in) }
	t.Run("in memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := poller(t, "http://engine", Options{DialContext: piped(silent)})
			began := time.Now()
			_, _, err := p.Get(t.Context(), "/", began.Add(time.Second))
			if took := time.Since(began); took != time.Second || !timedOut(err) {
				t.Errorf("after %s: %v, want a time-out after 1s", took, err)
			}
			p.Close()
		})
	})
	t.Run("over a socket", func(t *testing.T) {
		p := poller(t, serve(t, silent).url, Options{})
		for range 3 {
			if _, _, err := p.Get(t.Context(), "/", time.Now().Add(time.Millisecond)); !timedOut(err) {
				t.Errorf("%v, want a time-out", err)
			}
		}
	})
	t.Run("connecting", func(t *testing.T) {
		p := poller(t, "http://engine", Options{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
		}})
		if _, _, err := p.Get(t.Context(), "/", time.Now().Add(time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want a time-out", err)
		}
	})
}

func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestPollerAbort(t *testing.T) {
	asked := make(chan struct{})
	play := func(_ net.Conn, in *bufio.Reader) {
		if _, _, err := take(in); err == nil {
			asked <- struct{}{}
			_, _ = in.ReadByte()
		}
	}
	for name, o := range map[string]Options{"in memory": {DialContext: piped(play)}, "over a socket": {}} {
		t.Run(name, func(t *testing.T) {
			h := serve(t, play)
			p := poller(t, h.url, o)
			go func() {
				<-asked
				p.Abort()
			}()
			if _, _, err := p.Get(t.Context(), "/", untilSoon()); err == nil || timedOut(err) {
				t.Errorf("%v, want a connection that was closed", err)
			}
			if _, _, err := p.Get(t.Context(), "/", untilSoon()); err == nil {
				t.Error("it responds after it was aborted")
			}
			if n := h.connections(); n > 1 {
				t.Errorf("%d connections, want no other after it was aborted", n)
			}
		})
	}
}

func TestPollerReportsDialError(t *testing.T) {
	p := poller(t, "http://"+testkit.FreeAddr(), Options{})
	if _, _, err := p.Get(t.Context(), "/", untilSoon()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
	gone, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("not needed any more")
	cancel(cause)
	if _, _, err := p.Get(gone, "/", untilSoon()); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
	for _, url := range []string{"https://engine", "http://", "http://a b", "engine:1"} {
		if _, _, err := poller(t, url, Options{DialContext: nobody}).Get(t.Context(), "/", untilSoon()); err == nil {
			t.Errorf("%s can be polled", url)
		}
	}
}

func TestPollerAllocatesNothing(t *testing.T) {
	h := serve(t, answering(helloPage))
	p := poller(t, h.url, Options{})
	deadline := untilSoon()
	n := testing.AllocsPerRun(200, func() {
		if _, _, err := p.Get(t.Context(), "/metrics", deadline); err != nil {
			t.Fatal(err)
		}
	})
	if n >= 1 { // the pool's memory may be collected now and then
		t.Errorf("%v allocations an answer, want none", n)
	}
}

// answering responds to each request on a connection with the same bytes, and does not allocate.
func answering(raw string) script {
	answer := []byte(raw)
	return func(host net.Conn, in *bufio.Reader) {
		for {
			for end := false; !end; {
				line, err := in.ReadSlice('\n')
				if err != nil {
					return
				}
				end = len(line) <= len("\r\n")
			}
			if _, err := host.Write(answer); err != nil {
				return
			}
		}
	}
}

// BenchmarkPoller is comparable to BenchmarkPost; it includes the host's own share.
func BenchmarkPoller(b *testing.B) {
	for _, size := range []int{300, 60 << 10} {
		raw := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("a", size))
		h := serve(b, answering(raw))
		b.Run(fmt.Sprintf("poller/bytes=%d", size), func(b *testing.B) {
			p := poller(b, h.url, Options{})
			b.ReportAllocs()
			for b.Loop() {
				if _, body, err := p.Get(b.Context(), "/metrics", untilSoon()); err != nil || len(body) != size {
					b.Fatal(len(body), err)
				}
			}
		})
		b.Run(fmt.Sprintf("transport/bytes=%d", size), func(b *testing.B) {
			tr := transport(b, Options{})
			req := request(b, "GET", h.url+"/metrics", "")
			b.ReportAllocs()
			for b.Loop() {
				if _, body := ask(b, tr, req); len(body) != size {
					b.Fatal(len(body))
				}
			}
		})
	}
}
