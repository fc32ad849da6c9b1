package wire

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// written returns what a host reads when req is sent.
func written(t *testing.T, req *http.Request, rt func(DialFunc) http.RoundTripper) (*http.Request, string, string) {
	t.Helper()
	type arrived struct {
		req       *http.Request
		body, raw string
	}
	got := make(chan arrived, 1)
	tr := rt(piped(func(host net.Conn, in *bufio.Reader) {
		var raw bytes.Buffer
		in.Reset(io.TeeReader(host, &raw))
		r, body, err := take(in)
		if err != nil {
			t.Errorf("the host cannot read the request: %v", err)
		}
		got <- arrived{r, body, raw.String()}
		_, _ = io.WriteString(host, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
	}))
	ask(t, tr, req)
	closeIdle(tr)
	a := <-got
	return a.req, a.body, a.raw
}

func ours(d DialFunc) http.RoundTripper { return NewTransport(Options{DialContext: d}) }
func theirs(d DialFunc) http.RoundTripper {
	return &http.Transport{DialContext: d, DisableCompression: true}
}

func TestRequestOnTheWire(t *testing.T) {
	req := request(t, http.MethodPost, "http://engine:8000/v1/a%20b?c=d", "hello")
	req.Header = http.Header{
		"X-B": {"2", "  3\t"}, "x-a": {"1"}, "Content-Length": {"99"}, "transfer-encoding": {"gzip"}, "Host": {"elsewhere"}, "Trailer": {"X"},
		"Idempotency-Key": nil, "User-Agent": {""},
	}
	_, _, raw := written(t, req, ours)
	want := "POST /v1/a%20b?c=d HTTP/1.1\r\nHost: engine:8000\r\nContent-Length: 5\r\nX-B: 2\r\nX-B: 3\r\nX-A: 1\r\n\r\nhello"
	if raw != want {
		t.Errorf("got\n%q, want\n%q", raw, want)
	}
}

// plainReader hides the type of a body.
type plainReader struct{ r io.Reader }

func (p plainReader) Read(b []byte) (int, error) { return p.r.Read(b) }

func TestRequestsMatchNetHTTP(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 10000)
	bodies := map[string]func() io.Reader{
		"none":            func() io.Reader { return nil },
		"no body":         func() io.Reader { return http.NoBody },
		"in memory":       func() io.Reader { return strings.NewReader("hello") },
		"medium":          func() io.Reader { return strings.NewReader(long[:20000]) },
		"large":           func() io.Reader { return strings.NewReader(long) },
		"unknown":         func() io.Reader { return plainReader{strings.NewReader("hello")} },
		"unknown, large":  func() io.Reader { return plainReader{strings.NewReader(long)} },
		"unknown, pieces": func() io.Reader { return io.MultiReader(strings.NewReader("a"), strings.NewReader("bc")) },
	}
	changes := map[string]func(*http.Request){
		"as is":        func(*http.Request) {},
		"host":         func(r *http.Request) { r.Host = "model.example" },
		"close":        func(r *http.Request) { r.Close = true },
		"close header": func(r *http.Request) { r.Header.Set("Connection", "close") },
		"chunked":      func(r *http.Request) { r.TransferEncoding = []string{"chunked"} },
		"zone":         func(r *http.Request) { r.URL.Host = "[fe80::1%25eth0]:80"; r.Host = "[fe80::1%eth0]:80" },
		"query":        func(r *http.Request) { r.URL.RawQuery = "a=b&c=%0d"; r.URL.Path = "/ä b" },
		"user agent":   func(r *http.Request) { r.Header["User-Agent"] = []string{"one", "two"} },
		"repeatable":   func(r *http.Request) { r.Header["Idempotency-Key"] = nil },
	}
	for bodyName, body := range bodies {
		for changeName, change := range changes {
			for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, ""} {
				both := make([]*http.Request, 2)
				text := make([]string, 2)
				for i, rt := range []func(DialFunc) http.RoundTripper{ours, theirs} {
					req, err := http.NewRequestWithContext(t.Context(), method, "http://engine/", body())
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Content-Type", "text/plain")
					req.Header.Set("User-Agent", "test")
					change(req)
					req.Method = method
					both[i], text[i], _ = written(t, req, rt)
				}
				a, b := both[0], both[1]
				same := text[0] == text[1] && a.Method == b.Method && a.RequestURI == b.RequestURI && a.Host == b.Host && a.ContentLength == b.ContentLength &&
					reflect.DeepEqual(a.Header, b.Header) && reflect.DeepEqual(a.TransferEncoding, b.TransferEncoding) && a.Close == b.Close
				if !same {
					t.Errorf("body %s, %s, %q: ours arrives as %+v, theirs as %+v", bodyName, changeName, method, a, b)
				}
			}
		}
	}
}

// noted is a body that records whether it was closed.
type noted struct {
	io.Reader
	closed chan struct{}
}

func (n noted) Close() error {
	close(n.closed)
	return nil
}

func TestInvalidRequests(t *testing.T) {
	wrong := map[string]struct {
		change func(*http.Request)
		words  string
	}{
		"no URL":           {func(r *http.Request) { r.URL = nil }, "URL is required"},
		"scheme":           {func(r *http.Request) { r.URL.Scheme = "ftp" }, `"ftp"`},
		"no host":          {func(r *http.Request) { r.URL.Host = "" }, "a host"},
		"method":           {func(r *http.Request) { r.Method = "GET / HTTP/1.1\r\n" }, "method"},
		"connect":          {func(r *http.Request) { r.Method = http.MethodConnect }, "method"},
		"name":             {func(r *http.Request) { r.Header["X A"] = []string{"b"} }, "X A"},
		"name with break":  {func(r *http.Request) { r.Header["X\r\nA"] = []string{"b"} }, "name"},
		"value with break": {func(r *http.Request) { r.Header.Set("X-A", "b\r\nX-C: d") }, "X-A"},
		"value with LF":    {func(r *http.Request) { r.Header.Set("X-A", "b\nc") }, "X-A"},
		"value with NUL":   {func(r *http.Request) { r.Header.Set("X-A", "b\x00") }, "X-A"},
		"host with break":  {func(r *http.Request) { r.Host = "a\r\nX: y" }, "host"},
		"host with slash":  {func(r *http.Request) { r.Host = "a/b" }, "host"},
		"host not ASCII":   {func(r *http.Request) { r.Host = "ä" }, "host"},
		"query with break": {func(r *http.Request) { r.URL.RawQuery = "a\r\nb" }, "target"},
		"query with space": {func(r *http.Request) { r.URL.RawQuery = "a b" }, "target"},
		"opaque":           {func(r *http.Request) { r.URL.Opaque = "a\nb" }, "target"},
		"trailer":          {func(r *http.Request) { r.Trailer = http.Header{"X": nil} }, "trailers"},
	}
	for name, w := range wrong {
		req := request(t, http.MethodPost, "http://engine/", "x")
		body := noted{strings.NewReader("x"), make(chan struct{})}
		req.Body = body
		w.change(req)
		_, err := NewTransport(Options{DialContext: nobody}).RoundTrip(req)
		if err == nil || !strings.Contains(err.Error(), w.words) || !strings.HasPrefix(err.Error(), "checking the request: ") {
			t.Errorf("%s: got %v, want an error about %q", name, err, w.words)
		}
		<-body.closed
	}
	req := request(t, http.MethodPost, "http://engine/", "")
	req.ContentLength = 5
	if _, err := NewTransport(Options{DialContext: nobody}).RoundTrip(req); err == nil || !strings.Contains(err.Error(), "without a body") {
		t.Errorf("length without a body: got %v", err)
	}
}

// broken is a body whose reads fail.
type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

func TestBodyWithWrongLength(t *testing.T) {
	disk := errors.New("disk on fire")
	bodies := map[string]struct {
		body   io.Reader
		length int64
		words  string
	}{
		"short":          {strings.NewReader("hell"), 5, "1 bytes shorter"},
		"long":           {strings.NewReader("hello!"), 5, "longer"},
		"fails":          {io.MultiReader(strings.NewReader("he"), broken{disk}), 5, "disk on fire"},
		"unknown, fails": {io.MultiReader(strings.NewReader("he"), broken{disk}), -1, "disk on fire"},
	}
	for name, b := range bodies {
		for _, inMemory := range []bool{true, false} {
			h := serve(t, always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"))
			tr := transport(t, Options{})
			req := request(t, http.MethodPost, h.url, "")
			body := noted{b.body, make(chan struct{})}
			req.Body, req.ContentLength = body, b.length
			if inMemory {
				req.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("asked for twice") }
			}
			_, err := tr.RoundTrip(req)
			if err == nil || !strings.Contains(err.Error(), b.words) || b.words == disk.Error() && !errors.Is(err, disk) {
				t.Errorf("%s: got %v, want an error with %q", name, err, b.words)
			}
			<-body.closed
			if n := kept(tr); n != 0 {
				t.Errorf("%s: %d connections kept after half a request", name, n)
			}
			b.body = strings.NewReader("") // read by the first; an empty one is short or fails as well
			if b.length < 0 {
				break
			}
			b.words = "shorter"
		}
	}
}
