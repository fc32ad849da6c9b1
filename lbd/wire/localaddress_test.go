package wire

import (
	"net"
	"syscall"
	"testing"
)

// The text of an error is the same for every connection to an address.
func TestWithoutLocalAddress(t *testing.T) {
	remote := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 8080}
	for local, want := range map[string]string{
		"10.0.0.1:53422":      "read tcp 10.0.0.2:8080: connection reset by peer",
		"[fe80::1%eth0]:1024": "read tcp 10.0.0.2:8080: connection reset by peer",
	} {
		source, err := net.ResolveTCPAddr("tcp", local)
		if err != nil {
			t.Fatal(err)
		}
		if got := WithoutLocalAddress((&net.OpError{Op: "read", Net: "tcp", Source: source, Addr: remote, Err: syscall.ECONNRESET}).Error()); got != want {
			t.Errorf("%s: %q, want %q", local, got, want)
		}
	}
	for _, text := range []string{"EOF", "HTTP 503: a -> b", "dial tcp 10.0.0.2:8080: connect: connection refused"} {
		if got := WithoutLocalAddress(text); got != text {
			t.Errorf("%q, want %q", got, text)
		}
	}
}
