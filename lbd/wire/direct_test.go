package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// secureHost serves h over TLS and returns a transport's options to connect to it.
func secureHost(t testing.TB, h http.HandlerFunc) (*httptest.Server, Options) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = true // offered, and must not be used
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s, Options{Direct: true, TLS: &tls.Config{RootCAs: roots}}
}

func TestDirectUsesHTTPS(t *testing.T) {
	release := make(chan struct{})
	s, o := secureHost(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s", r.Proto, body)
		if r.URL.Path == "/slow" {
			w.(http.Flusher).Flush()
			select {
			case <-release:
			case <-r.Context().Done():
				panic(http.ErrAbortHandler) // the response has no end
			}
		}
	})
	defer close(release)
	transport := NewTransport(o)
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for range 2 {
		resp, err := client.Post(s.URL, "text/plain", strings.NewReader(strings.Repeat("x", 100<<10)))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || len(body) != len("HTTP/1.1 ")+100<<10 || !strings.HasPrefix(string(body), "HTTP/1.1 ") {
			t.Errorf("%.20q, %d bytes (%v)", body, len(body), err)
		}
	}
	if n := transport.idle.total; n != 1 {
		t.Errorf("%d connections are kept, want the one that both requests went over", n)
	}

	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/slow", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, len("HTTP/1.1 "))); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := resp.Body.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled stream: %v", err)
	}
	resp.Body.Close()
}

// TestDirectReplacesClosedConnection checks that a closed idle connection is replaced, although TLS
// hides that it was closed.
func TestDirectReplacesClosedConnection(t *testing.T) {
	s, o := secureHost(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	transport := NewTransport(o)
	defer transport.CloseIdleConnections()
	for range 3 {
		resp, err := (&http.Client{Transport: transport}).Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		s.CloseClientConnections()
	}
}

func TestDirectRejectsOtherHosts(t *testing.T) {
	s, o := secureHost(t, func(http.ResponseWriter, *http.Request) { t.Error("a request came through") })
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer plain.Close()
	o.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
	transport := NewTransport(o)
	for _, target := range []string{s.URL, "https" + strings.TrimPrefix(plain.URL, "http")} {
		_, err := (&http.Client{Transport: transport}).Get(target)
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "dial" {
			t.Errorf("%s: %v, want an error of dialling", target, err)
		}
	}
	if _, err := (&http.Client{Transport: transport}).Get(plain.URL); err == nil || !strings.Contains(err.Error(), "must be https") {
		t.Errorf("http: %v", err)
	}
}

func TestDirectPolls(t *testing.T) {
	s, o := secureHost(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) })
	p := NewPoller(o, s.URL, 1<<10)
	defer p.Close()
	for i := range 4 {
		if i == 2 {
			s.CloseClientConnections()
		}
		status, body, err := p.Get(t.Context(), "/metrics", time.Now().Add(10*time.Second))
		if err != nil || status != http.StatusOK || string(body) != "/metrics" {
			t.Errorf("%d %q (%v)", status, body, err)
		}
	}
}
