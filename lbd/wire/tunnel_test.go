package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A connection through a proxy carries bytes in both directions, those that came with the proxy's response
// too. A refusal is an error with the proxy's text.
func TestDialThroughProxy(t *testing.T) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Host != "127.0.0.1:5557" {
			http.Error(w, fmt.Sprintf("no %s to %s", r.Method, r.Host), http.StatusForbidden)
			return
		}
		nc, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer nc.Close()
		_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\n\r\nhello")
		line, _ := buffered.ReadString('\n')
		_, _ = io.WriteString(nc, " "+line)
	}))
	defer proxy.Close()
	dial := DialThrough((&net.Dialer{}).DialContext, proxy.Listener.Addr().String())
	nc, err := dial(t.Context(), "tcp", "127.0.0.1:5557")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := io.WriteString(nc, "world\n"); err != nil {
		t.Fatal(err)
	}
	if all, err := io.ReadAll(nc); err != nil || string(all) != "hello world\n" {
		t.Errorf("got %q, %v", all, err)
	}
	if _, err := dial(t.Context(), "tcp", "127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "403 Forbidden: no CONNECT to 127.0.0.1:1") {
		t.Errorf("a refused address: %v", err)
	}
}

// The end of the context ends the exchange with a proxy that does not respond.
func TestDialThroughSilentProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		dial := DialThrough(func(context.Context, string, string) (net.Conn, error) { return near, nil }, "proxy:1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := dial(ctx, "tcp", "127.0.0.1:5557"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		far.Close()
	})
}
