package lbd

import (
	"net/http"
	"time"
)

// Limits of an HTTP/2 connection, each with its reason.
const (
	maxStreams   = 1000             // twice what an engine runs concurrently; a gateway may send all its requests over one connection
	pingAfter    = 15 * time.Second // of silence: detects a client that vanished, and saves its GPU time
	pingTimeout  = 15 * time.Second // half a world away with several lost packets
	writeTimeout = 30 * time.Second // as proxy.Limits.StallTimeout for a request; also used for responses to peers over HTTP/1.1
	// windowsPerConnection is how many uploads of one connection may have a full window each; more uploads
	// share the windows.
	windowsPerConnection = 4
)

// nextProtos are the protocols that the public listener offers in a TLS handshake (ALPN).
var nextProtos = []string{"h2", "http/1.1"}

// enableHTTP2 enables HTTP/2 besides HTTP/1.1 on the public server: over TLS by negotiation, and in
// clear text with prior knowledge (RFC 9113 section 3.3), as gateways that share connections use it.
// window is how many bytes of a body it receives before they are read.
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
