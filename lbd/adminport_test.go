package lbd

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// One port accepts both TLS and plain HTTP. A client that sends nothing does not block others, and
// closing the port closes its connection.
func TestAdminPortAcceptsTLSAndPlainHTTP(t *testing.T) {
	other := httptest.NewTLSServer(nil) // for its certificate
	defer other.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.TLS != nil) })}
	served := make(chan error, 1)
	go func() {
		served <- srv.Serve(newEitherListener(ln, &tls.Config{Certificates: other.TLS.Certificates, MinVersion: tls.VersionTLS13}))
	}()
	silent, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for scheme, want := range map[string]string{"http": "false", "https": "true"} {
		res, err := other.Client().Get(scheme + "://" + ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		if string(text) != want || err != nil {
			t.Errorf("%s: got %q, %v", scheme, text, err)
		}
	}
	silent.Close()
	other.Client().CloseIdleConnections()
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != http.ErrServerClosed {
		t.Errorf("got %v", err)
	}
}
