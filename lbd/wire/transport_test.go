package wire

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"skyserve/internal/testkit"
)

const hi = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"

func TestConnectionsAreReused(t *testing.T) {
	again := map[string]struct {
		raw, method string
		change      func(*http.Request)
		conns       int
	}{
		"sized":            {raw: hi, conns: 1},
		"chunked":          {raw: chunkedHead + "\r\n2\r\nhi\r\n0\r\n\r\n", conns: 1},
		"trailers":         {raw: chunkedHead + "\r\n2\r\nhi\r\n0\r\nX: y\r\n\r\n", conns: 1},
		"head":             {raw: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", method: http.MethodHead, conns: 1},
		"204":              {raw: "HTTP/1.1 204 No Content\r\n\r\n", conns: 1},
		"1.0 keep-alive":   {raw: "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi", conns: 1},
		"1.0":              {raw: "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", conns: 3},
		"answer closes":    {raw: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", conns: 3},
		"request closes":   {raw: hi, change: func(r *http.Request) { r.Close = true }, conns: 3},
		"more than asked":  {raw: hi + "HTTP/1.1 200 OK\r\n\r\n", conns: 3},
		"204 with a body":  {raw: "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nhi", conns: 3},
		"a late surprise":  {raw: chunkedHead + "\r\n2\r\nhi\r\n0\r\n\r\n!", conns: 3},
		"large upload":     {raw: hi, change: streamed(200000), conns: 1},
		"unknown upload":   {raw: hi, change: streamed(-1), conns: 1},
		"a body of chunks": {raw: chunkedHead + "\r\n" + strings.Repeat("3e8\r\n"+strings.Repeat("x", 1000)+"\r\n", 50) + "0\r\n\r\n", conns: 1},
	}
	for name, a := range again {
		t.Run(name, func(t *testing.T) {
			h := serve(t, always(a.raw))
			tr := transport(t, Options{})
			for range 3 {
				if a.method == "" {
					a.method = http.MethodPost
				}
				req := request(t, a.method, h.url, "hello")
				if a.change != nil {
					a.change(req)
				}
				ask(t, tr, req)
			}
			if n := h.connections(); n != a.conns {
				t.Errorf("3 requests took %d connections, want %d", n, a.conns)
			}
		})
	}
}

func streamed(size int64) func(*http.Request) {
	return func(r *http.Request) {
		r.GetBody = nil
		r.ContentLength = size
		r.Body = io.NopCloser(plainReader{strings.NewReader(strings.Repeat("x", int(max(size, 100))))})
	}
}

func TestEarlyCloseClosesConnection(t *testing.T) {
	h := serve(t, always("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("x", 100000)))
	tr := transport(t, Options{})
	for range 2 {
		resp, err := tr.RoundTrip(request(t, http.MethodGet, h.url, ""))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		resp.Body.Close()
		if n, err := resp.Body.Read(make([]byte, 10)); n != 0 || !errors.Is(err, http.ErrBodyReadAfterClose) {
			t.Errorf("reading after Close: %d, %v", n, err)
		}
	}
	if n := h.connections(); n != 2 || kept(tr) != 0 {
		t.Errorf("2 responses that were not read to their end took %d connections, %d are kept", n, kept(tr))
	}
}

func TestClosedIdleConnectionIsNotUsed(t *testing.T) {
	closed := make(chan struct{}, 8)
	h := serve(t, func(host net.Conn, in *bufio.Reader) {
		if _, _, err := take(in); err == nil {
			_, _ = io.WriteString(host, hi)
			host.Close()
			closed <- struct{}{}
		}
	})
	tr := transport(t, Options{})
	for range 4 {
		req := request(t, http.MethodPost, h.url, "not to be repeated")
		req.GetBody = nil
		if _, body := ask(t, tr, req); body != "hi" {
			t.Errorf("got %q", body)
		}
		<-closed
	}
	if n := h.connections(); n != 4 {
		t.Errorf("%d connections for 4 requests", n)
	}
}

// dying responds to the first request of each connection and hangs up on the second, after sending
// partial, before or after it reads the request.
func dying(reads bool, partial string, deaths *atomic.Int32) script {
	return func(host net.Conn, in *bufio.Reader) {
		if _, _, err := take(in); err != nil {
			return
		}
		_, _ = io.WriteString(host, hi)
		if reads {
			if _, _, err := take(in); err != nil {
				return
			}
			_, _ = io.WriteString(host, partial)
			deaths.Add(1)
		}
	}
}

func TestRequestOnFailingConnection(t *testing.T) {
	get := func(r *http.Request) { r.Method, r.Body, r.GetBody, r.ContentLength = http.MethodGet, nil, nil, 0 }
	key := func(r *http.Request) { r.Header["Idempotency-Key"] = nil }
	once := func(r *http.Request) { r.GetBody = nil }
	ways := map[string]struct {
		change  []func(*http.Request)
		read    bool
		partial string
		served  bool
	}{
		"GET":                           {[]func(*http.Request){get}, true, "", true},
		"POST":                          {nil, true, "", false},
		"POST with key":                 {[]func(*http.Request){key}, true, "", true},
		"POST with key, body once":      {[]func(*http.Request){key, once}, true, "", false},
		"GET, answer begun":             {[]func(*http.Request){get}, true, "H", false},
		"POST with key, answer begun":   {[]func(*http.Request){key}, true, "HTTP/1.1 200", false},
		"POST, nothing written":         {nil, false, "", true},
		"POST, nothing written, unique": {[]func(*http.Request){once}, false, "", false},
	}
	for name, w := range ways {
		t.Run(name, func(t *testing.T) {
			var deaths, dials atomic.Int32
			dial := piped(dying(w.read, w.partial, &deaths))
			tr := transport(t, Options{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				dials.Add(1)
				return dial(ctx, network, addr)
			}})
			ask(t, tr, request(t, http.MethodPost, "http://engine", "first"))
			req := request(t, http.MethodPost, "http://engine", "second")
			for _, change := range w.change {
				change(req)
			}
			got := observe(tr, req)
			if served := got.headErr == nil && got.Body == "hi"; served != w.served {
				t.Errorf("served: %v, want %v (%v)", served, w.served, got.headErr)
			}
			if want := map[bool]int32{true: 2, false: 1}[w.served]; dials.Load() != want {
				t.Errorf("%d connections, want %d", dials.Load(), want)
			}
		})
	}
}

// A host that crashes on a request cannot be connected to again: the error contains both the failure
// of the first connection and of the dial.
func TestRetryErrorKeepsBothErrors(t *testing.T) {
	var deaths, dials atomic.Int32
	dial := piped(dying(true, "", &deaths))
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	tr := transport(t, Options{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) > 1 {
			return nil, refused
		}
		return dial(ctx, network, addr)
	}})
	ask(t, tr, request(t, http.MethodPost, "http://engine", "first"))
	req := request(t, http.MethodPost, "http://engine", "second")
	req.Header["Idempotency-Key"] = nil
	_, err := tr.RoundTrip(req)
	var again *RetryError
	var op *net.OpError
	if !errors.As(err, &again) || !errors.Is(again.First, io.ErrUnexpectedEOF) || !errors.As(err, &op) || op.Op != "dial" {
		t.Errorf("got %v, want the break and the refused connection", err)
	}
	_, err = tr.RoundTrip(req)
	if errors.As(err, &again) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("with no connection at all: got %v", err)
	}
}

func TestRequestIsRetriedOnce(t *testing.T) {
	var asked atomic.Int32
	tr := transport(t, Options{DialContext: piped(func(host net.Conn, in *bufio.Reader) {
		for {
			if _, _, err := take(in); err != nil || asked.Add(1) > 1 {
				return
			}
			_, _ = io.WriteString(host, hi)
		}
	})})
	ask(t, tr, request(t, http.MethodGet, "http://engine", ""))
	_, err := tr.RoundTrip(request(t, http.MethodGet, "http://engine", ""))
	if !errors.Is(err, io.ErrUnexpectedEOF) || asked.Load() != 3 {
		t.Errorf("got %v after %d requests, want an unexpected EOF after 3", err, asked.Load())
	}
}

func TestResponseBeforeRequestIsSent(t *testing.T) {
	const refusal = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno"
	for _, stays := range []bool{false, true} {
		for _, size := range []int{1, maxInlineBody, 32 << 20} {
			t.Run(fmt.Sprintf("stays %v, %d bytes", stays, size), func(t *testing.T) {
				end := make(chan struct{})
				h := serve(t, func(host net.Conn, in *bufio.Reader) {
					if _, err := http.ReadRequest(in); err != nil {
						return
					}
					_, _ = io.WriteString(host, refusal)
					if stays {
						<-end
					}
				})
				defer close(end)
				tr := transport(t, Options{})
				resp, err := tr.RoundTrip(request(t, http.MethodPost, h.url, strings.Repeat("x", size)))
				if err != nil {
					t.Fatal(err)
				}
				body := make([]byte, 2)
				if _, err := io.ReadFull(resp.Body, body); err != nil || resp.StatusCode != 413 || string(body) != "no" {
					t.Errorf("got %d %q, %v", resp.StatusCode, body, err)
				}
				resp.Body.Close()
				if size > maxInlineBody && kept(tr) != 0 {
					t.Error("a connection with half a request in flight is kept")
				}
			})
		}
	}
}

func TestNoIdleConnections(t *testing.T) {
	h := serve(t, always(hi))
	tr := transport(t, Options{MaxIdlePerHost: -1})
	for range 2 {
		ask(t, tr, request(t, http.MethodGet, h.url, ""))
	}
	if n := h.connections(); n != 2 {
		t.Errorf("%d connections for 2 requests, want 2", n)
	}
}

func TestNoConnection(t *testing.T) {
	body := noted{strings.NewReader("x"), make(chan struct{})}
	req := request(t, http.MethodPost, "http://"+testkit.FreeAddr(), "")
	req.Body, req.ContentLength = body, 1
	_, err := NewTransport(Options{}).RoundTrip(req)
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "dial" || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v, want a refused dial", err)
	}
	<-body.closed
}

func TestHTTPSHosts(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hi") }))
	defer s.Close()
	trusted := x509.NewCertPool()
	trusted.AddCert(s.Certificate())
	tr := transport(t, Options{TLS: &tls.Config{RootCAs: trusted}})
	if _, body := ask(t, tr, request(t, http.MethodGet, s.URL, "")); body != "hi" {
		t.Errorf("got %q", body)
	}
}

// TestNothingLeaks sends requests that end in every way, many concurrently, and checks that the host
// has only closed connections; goleak checks the goroutines.
func TestNothingLeaks(t *testing.T) {
	h := serve(t, func(host net.Conn, in *bufio.Reader) {
		for {
			req, _, err := take(in)
			if err != nil {
				return
			}
			switch raw := hi; req.URL.Path {
			case "/cut":
				_, _ = io.WriteString(host, raw[:len(raw)-1])
				return
			case "/silent":
				return
			default:
				if _, err := io.WriteString(host, raw); err != nil {
					return
				}
			}
		}
	})
	tr := transport(t, Options{MaxIdlePerHost: 5})
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			for j := range 30 {
				way := (i + j) % 6
				ctx, cancel := context.WithCancel(t.Context())
				body := strings.Repeat("x", way*30000)
				req, _ := http.NewRequestWithContext(ctx, http.MethodPost, h.url+[]string{"/", "/", "/cut", "/silent", "/", "/"}[way], strings.NewReader(body))
				if way == 4 {
					cancel()
				}
				resp, err := tr.RoundTrip(req)
				if err == nil {
					if way != 1 {
						_, _ = io.Copy(io.Discard, resp.Body)
					}
					resp.Body.Close()
				}
				if (err == nil) != (way != 3 && way != 4) {
					t.Errorf("way %d: %v", way, err)
				}
				cancel()
			}
		})
	}
	clients.Wait()
	ask(t, tr, request(t, http.MethodGet, h.url, ""))
	if n := kept(tr); n == 0 || n > 5 {
		t.Errorf("%d idle connections, want 1 to 5", n)
	}
	tr.CloseIdleConnections()
	h.left()
}

func TestResponsesOverSockets(t *testing.T) {
	for name, raw := range answers {
		for _, piece := range []int{1 << 20, 100} {
			h := serve(t, once(raw, piece))
			tr := transport(t, Options{MaxHeadBytes: 8 << 10})
			us := observe(tr, request(t, http.MethodGet, h.url, ""))
			inMemory, _ := both(t, http.MethodGet, raw, 1<<20)
			if diff := differs(us, inMemory); diff != "" {
				t.Errorf("%s: sockets and pipes differ: %s", name, diff)
			}
		}
	}
}

func ExampleNew() {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ready") }))
	defer engine.Close()
	transport := NewTransport(Options{})
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get(engine.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	fmt.Println(resp.Status, string(text))
	// Output: 200 OK ready
}

// Addresses that Allow rejects are not connected to, by no client and under no name.
func TestAllowRefusesAddresses(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer server.Close()
	refusal := errors.New("not there")
	seen := map[netip.Addr]bool{}
	o := Options{Allow: func(a netip.Addr) error {
		seen[a.Unmap()] = true
		return refusal
	}}
	byName := strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	for _, url := range []string{server.URL, byName, strings.Replace(server.URL, "http:", "https:", 1)} {
		_, err := (&http.Client{Transport: NewTransport(o)}).Get(url)
		if !errors.Is(err, refusal) {
			t.Errorf("%s: got %v, want %v", url, err, refusal)
		}
		p := NewPoller(o, strings.Replace(url, "https:", "http:", 1), 100)
		if _, _, err := p.Get(t.Context(), "/", time.Now().Add(time.Minute)); !errors.Is(err, refusal) {
			t.Errorf("polling %s: got %v, want %v", url, err, refusal)
		}
	}
	if asked > 0 || !seen[netip.MustParseAddr("127.0.0.1")] {
		t.Errorf("%d requests arrived, Allow was called for %v", asked, seen)
	}
}
