package wire

import (
	"net/http"
)

// newUpgradeTransport returns the transport for requests that change the protocol of their connection:
// net/http's over HTTP/1.1, with the same limits. Such requests are rare and long, so its goroutines
// and buffers do not matter.
func newUpgradeTransport(o Options) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext: o.DialContext, TLSClientConfig: o.TLS, TLSHandshakeTimeout: handshakeTimeout, Protocols: protocols,
		ResponseHeaderTimeout: o.ResponseHeaderTimeout, MaxResponseHeaderBytes: int64(o.MaxHeadBytes), DisableCompression: true, DisableKeepAlives: true,
	}
}

// Upgrade sends a request that asks to change the protocol of its connection (RFC 9110, section 7.8), over
// a new connection. If the host agrees, the status is 101, the body of the response is an
// io.ReadWriteCloser of the connection, and the request's context no longer limits it. Otherwise the
// response is as from RoundTrip, and its connection is not used again.
func (t *Transport) Upgrade(req *http.Request) (*http.Response, error) {
	if t.opts.Direct { // DialContext includes TLS
		plain, u := *req, *req.URL
		plain.URL = &u
		u.Scheme = "http"
		if u.Port() == "" {
			u.Host += ":443"
		}
		req = &plain
	}
	return t.upgrades().RoundTrip(req)
}
