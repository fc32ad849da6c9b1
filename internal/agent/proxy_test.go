package agent

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/testkit"
)

// An engine may respond before it has read the whole request. The proxy then forwards both bodies at
// the same time: it neither waits for the request nor closes the engine's connection.
func TestProxyForwardsEarlyResponses(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "data: %q %v\n\n", body, err)
	}))
	defer engine.Close()
	f, err := (&Agent{log: slog.New(slog.DiscardHandler)}).newProxy(Proxy{Upstream: engine.URL})
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(f)
	defer proxy.Close()
	defer engine.CloseClientConnections() // else Close waits for a proxy that waits for the request

	body, send := io.Pipe()
	defer send.Close()
	begun := make(chan struct{})
	go func() {
		defer close(begun)
		_, _ = io.WriteString(send, "first ")
	}()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, proxy.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = int64(len("first second"))
	resp, err := (&http.Client{Timeout: testkit.Timeout}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	const early, rest = "data: 1\n\n", "data: \"first second\" <nil>\n\n"
	got := make([]byte, len(early))
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != early {
		t.Fatalf("before the end of the request: %q (%v)", got, err)
	}
	<-begun
	if _, err := io.WriteString(send, "second"); err != nil {
		t.Fatal(err)
	}
	send.Close()
	if got, err = io.ReadAll(resp.Body); err != nil || string(got) != rest {
		t.Errorf("after it: %q (%v), want %q", got, err, rest)
	}
}

// A balancer may connect to the addresses of the engine's cache events, and to no other. Such a connection does
// not delay a drain, and ends with the proxy.
func TestProxyConnectsToCacheEvents(t *testing.T) {
	listen := func() net.Listener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		return ln
	}
	events, other := listen(), listen()
	go func() {
		for {
			nc, err := events.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(nc, nc); nc.Close() }()
		}
	}()
	w := newTestService(t)
	m, o := w.boot(t.TempDir(), &fakeRunner{}), w.operator()
	at := testkit.FreeAddr()
	d := sampleDeployment("1")
	d.Proxy = &Proxy{Listen: at, Upstream: "http://127.0.0.1:1", ConnectTargets: []string{events.Addr().String()}}
	if _, err := o.Ensure(t.Context(), m.Target, d); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the machine is ready", func() bool { return m.agent.Status().Phase == PhaseReady })
	balancer := w.party(identity.Balancer, "lb-us-0")
	connect := func(address string) (net.Conn, *bufio.Reader, int) {
		nc, err := tls.Dial("tcp", at, balancer.Client(identity.Replica))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		if err := nc.SetDeadline(time.Now().Add(testkit.Timeout)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(nc, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", address, address)
		r := bufio.NewReader(nc)
		resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
		if err != nil {
			t.Fatal(err)
		}
		return nc, r, resp.StatusCode
	}
	for _, refused := range []string{other.Addr().String(), "169.254.169.254:80", "localhost:" + strings.TrimPrefix(events.Addr().String(), "127.0.0.1:")} {
		if _, _, status := connect(refused); status != http.StatusForbidden {
			t.Errorf("%s: status %d", refused, status)
		}
	}
	nc, r, status := connect(events.Addr().String())
	if status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	for _, text := range []string{"greeting\n", "event\n"} {
		_, _ = io.WriteString(nc, text)
		if line, err := r.ReadString('\n'); err != nil || line != text {
			t.Fatalf("got %q, %v", line, err)
		}
	}
	if n := m.agent.Status().InFlight; n != 0 {
		t.Errorf("%d requests in flight", n)
	}
	d.Revision, d.Proxy = "2", nil
	if _, err := o.Ensure(t.Context(), m.Target, d); err != nil {
		t.Fatal(err)
	}
	if line, err := r.ReadString('\n'); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the proxy's end: %q, %v", line, err)
	}
}
