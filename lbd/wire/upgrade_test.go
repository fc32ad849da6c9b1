package wire

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// echoServer accepts a change of protocol and returns the bytes that it receives.
func echoServer(t *testing.T, secure bool) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Upgrade") != "echo" || req.ProtoMajor != 1 {
			w.WriteHeader(http.StatusUpgradeRequired)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello ")
		_, _ = io.Copy(conn, rw)
	}))
	srv.EnableHTTP2 = true
	if secure {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	return srv
}

// A connection changes its protocol over plain HTTP, over TLS, and over TLS without net/http.
func TestUpgrade(t *testing.T) {
	for name, c := range map[string]struct{ secure, direct bool }{"http": {}, "https": {secure: true}, "direct": {true, true}} {
		t.Run(name, func(t *testing.T) {
			srv := echoServer(t, c.secure)
			o := Options{Direct: c.direct}
			if c.secure {
				roots := x509.NewCertPool()
				roots.AddCert(srv.Certificate())
				o.TLS = &tls.Config{RootCAs: roots, ServerName: "example.com"}
			}
			transport := NewTransport(o)
			defer transport.CloseIdleConnections()
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+"/v1", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header["Connection"], req.Header["Upgrade"] = []string{"Upgrade"}, []string{"echo"}
			resp, err := transport.Upgrade(req)
			if err != nil {
				t.Fatal(err)
			}
			cancel() // no longer limits the connection
			conn, ok := resp.Body.(io.ReadWriteCloser)
			if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
				t.Fatalf("status %d", resp.StatusCode)
			}
			if _, err := io.WriteString(conn, "world\n"); err != nil {
				t.Fatal(err)
			}
			if got, err := bufio.NewReader(conn).ReadString('\n'); got != "hello world\n" || err != nil {
				t.Errorf("received %q, %v", got, err)
			}
			_ = conn.Close()

			req = req.Clone(t.Context())
			req.Header.Set("Upgrade", "other")
			refused, err := transport.Upgrade(req)
			if err != nil {
				t.Fatal(err)
			}
			if _ = refused.Body.Close(); refused.StatusCode != http.StatusUpgradeRequired {
				t.Errorf("status %d", refused.StatusCode)
			}
		})
	}
}
