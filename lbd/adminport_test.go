package lbd

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
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
		served <- srv.Serve(newMixedListener(ln, &tls.Config{Certificates: other.TLS.Certificates, MinVersion: tls.VersionTLS13}))
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

// fullListener is a listener of a process that is out of file descriptors when the first client connects.
type fullListener struct {
	net.Listener
	failed atomic.Bool
}

func (l *fullListener) Accept() (net.Conn, error) {
	if l.failed.CompareAndSwap(false, true) {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

// A temporary error, such as that of a process without a free file descriptor, does not end the admin port.
func TestAdminPortOutlivesTemporaryErrors(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") })}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(newMixedListener(&fullListener{Listener: ln}, nil)) }()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get("http://" + ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != http.ErrServerClosed {
		t.Errorf("got %v", err)
	}
}
