package lbd

import (
	"net/http"
	"time"
)

// Bounds of a connection that speaks HTTP/2, each with its reason.
const (
	maxStreams   = 1000             // twice what an engine runs at once; a gateway in front may send all it has over one connection
	pingAfter    = 15 * time.Second // of silence: a client that vanished without a word is found out, and its GPU time saved
	pingTimeout  = 15 * time.Second // half a world away with several lost packets
	writeTimeout = 30 * time.Second // as proxy.Limits.Stall is for a request; answers to peers have it over HTTP/1.1 too
	// streamsAtOnce is how many uploads of one connection may have a full window each; more
	// share what there is.
	streamsAtOnce = 4
)

// nextProtos is what the public listener offers in a TLS handshake (ALPN).
var nextProtos = []string{"h2", "http/1.1"}

// speakHTTP2 makes the public server speak HTTP/2 beside HTTP/1.1: over TLS where
// the handshake says so, and in clear text where the client begins with it (prior
// knowledge, RFC 9113 section 3.3), as gateways that share connections do. window is how
// many bytes of a body it takes in before they are read.
func speakHTTP2(s *http.Server, window int) {
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	s.HTTP2 = &http.HTTP2Config{
		MaxReceiveBufferPerStream: window, MaxReceiveBufferPerConnection: streamsAtOnce * window,
		MaxConcurrentStreams: maxStreams, SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: writeTimeout,
	}
}
