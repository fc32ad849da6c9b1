package lbd

import (
	"net/http"
	"time"
)

// Limits of an HTTP/2 connection, each with its reason.
const (
	maxStreams   = 1000             // twice what an engine runs concurrently; a gateway may send all its requests over one connection
	pingAfter    = 15 * time.Second // of inactivity: detects clients that disappeared, so that their requests stop
	pingTimeout  = 15 * time.Second // half a world away with several lost packets
	writeTimeout = 30 * time.Second // as proxy.Limits.StallTimeout for a request; also used for responses to peers over HTTP/1.1
	// windowsPerConnection is the number of uploads of one connection that may have a full window each;
	// further uploads share the windows.
	windowsPerConnection = 4
)

// nextProtos are the protocols that the public listener offers in a TLS handshake (ALPN).
var nextProtos = []string{"h2", "http/1.1"}

// enableHTTP2 enables HTTP/2 in addition to HTTP/1.1 on the public server: over TLS by negotiation,
// and in clear text with prior knowledge (RFC 9113 section 3.3), which gateways with shared
// connections use. window is the maximum number of bytes of a body that are received before they are
// read.
func enableHTTP2(s *http.Server, window int) {
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	s.HTTP2 = &http.HTTP2Config{
		MaxReceiveBufferPerStream: window, MaxReceiveBufferPerConnection: windowsPerConnection * window,
		MaxConcurrentStreams: maxStreams, SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: writeTimeout,
	}
}
