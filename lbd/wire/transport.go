package wire

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// Defaults of Options, each with its reason.
const (
	defaultDialTimeout  = 3 * time.Second  // half a world away with two lost packets
	defaultKeepAlive    = 15 * time.Second // detects hosts that disappeared
	defaultIdleTimeout  = 90 * time.Second // as net/http; sweeps detect that engines close theirs sooner
	defaultIdlePerHost  = 512              // twice what an engine runs concurrently
	defaultIdle         = 8192             // file descriptors: far below a server's usual limit of 65,536
	defaultMaxHeadBytes = 1 << 20          // the limit of net/http's servers
	handshakeTimeout    = 5 * time.Second  // two round trips and a slow key; only for https
)

// ErrMalformed means that the bytes received are not an HTTP/1.1 response, or one that this package
// rejects: see the package documentation.
var ErrMalformed = errors.New("malformed response")

// DialFunc opens a connection, like net.Dialer.DialContext.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Options configures a Transport. Its zero value is usable.
type Options struct {
	// DialContext opens connections; nil = a net.Dialer with DialTimeout and KeepAlive.
	DialContext DialFunc
	// DialTimeout is the timeout of the default dialer; 0 = 3 s.
	DialTimeout time.Duration
	// KeepAlive is the period of the default dialer's TCP probes; 0 = 15 s.
	KeepAlive time.Duration
	// ResponseHeaderTimeout limits the time from the end of sending a request to the end of the
	// response's head. With an upload goroutine, the time starts when sending starts. 0 = only the
	// request's context limits it.
	ResponseHeaderTimeout time.Duration
	// IdleTimeout is the time for which a connection is kept open without a request; 0 = 90 s.
	IdleTimeout time.Duration
	// MaxIdlePerHost and MaxIdle limit the connections that are kept open for one HOST:PORT and in
	// total. Beyond them the oldest is closed. 0 = 512 and 8,192; below 0 = none is kept.
	MaxIdlePerHost, MaxIdle int
	// MaxHeadBytes limits a response's status line and fields, including interim responses; 0 = 1
	// MiB.
	MaxHeadBytes int
	// TLS configures https; nil = Go's defaults.
	TLS *tls.Config
	// Direct handles https in this package, as HTTP/1.1, and not in net/http's Transport. http is then
	// rejected. It is for servers that are known to support HTTP/1.1, and costs no goroutine per
	// connection.
	Direct bool
	// LateDials is the maximum number of dials that go on after the deadline of their request, so that the next request finds
	// an open connection. Without them, requests with short deadlines never succeed where opening a connection takes longer
	// than one deadline. 0 = a dial ends with its request.
	LateDials int
	// Allow is called by the default dialer for each address before it connects: a name may resolve to
	// another address than in an earlier check. Its error is returned by the dial; nil = all addresses
	// are allowed.
	Allow func(netip.Addr) error
}

func (o Options) orDefault() Options {
	o.DialTimeout = cmp.Or(o.DialTimeout, defaultDialTimeout)
	o.KeepAlive = cmp.Or(o.KeepAlive, defaultKeepAlive)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, defaultIdleTimeout)
	o.MaxIdlePerHost = cmp.Or(o.MaxIdlePerHost, defaultIdlePerHost)
	o.MaxIdle = cmp.Or(o.MaxIdle, defaultIdle)
	o.MaxHeadBytes = cmp.Or(o.MaxHeadBytes, defaultMaxHeadBytes)
	if o.DialContext == nil {
		o.DialContext = (&net.Dialer{Timeout: o.DialTimeout, KeepAlive: o.KeepAlive, Control: o.control()}).DialContext
	}
	if o.Direct {
		o.DialContext = DialTLS(o.DialContext, o.TLS)
	}
	return o
}

// scheme returns the scheme of the URLs that this package handles itself.
func (o Options) scheme() string {
	if o.Direct {
		return "https"
	}
	return "http"
}

// DialTLS adds a TLS handshake to dial; nil config = Go's defaults. A host that fails the handshake counts as
// unreachable.
func DialTLS(dial DialFunc, config *tls.Config) DialFunc {
	if config == nil {
		config = &tls.Config{}
	}
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := config
		if c.ServerName == "" {
			c = c.Clone()
			c.ServerName, _, _ = net.SplitHostPort(addr) // dial has accepted addr
		}
		secured := tls.Client(nc, c)
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		if err := secured.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, &net.OpError{Op: "dial", Net: network, Addr: nc.RemoteAddr(), Err: err}
		}
		return secured, nil
	}
}

// control calls Allow for the address that a dialer is about to connect to. It returns nil without
// Allow.
func (o Options) control() func(network, address string, _ syscall.RawConn) error {
	if o.Allow == nil {
		return nil
	}
	return func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return o.Allow(to.Addr())
	}
}

// Transport is an http.RoundTripper over HTTP/1.1. It is safe for concurrent use and must not be
// copied. Create it with NewTransport.
type Transport struct {
	opts     Options
	idle     pool
	late     lateDials
	https    func() *http.Transport
	upgrades func() *http.Transport
}

var _ http.RoundTripper = (*Transport)(nil)

// NewTransport returns a transport without connections.
func NewTransport(o Options) *Transport {
	t := &Transport{opts: o.orDefault()}
	t.idle = pool{maxPerHost: t.opts.MaxIdlePerHost, maxTotal: t.opts.MaxIdle, idleTimeout: t.opts.IdleTimeout, hosts: map[string][]*conn{}}
	t.https = sync.OnceValue(func() *http.Transport { return newHTTPSTransport(t.opts) })
	t.upgrades = sync.OnceValue(func() *http.Transport { return newUpgradeTransport(t.opts) })
	return t
}

// newHTTPSTransport returns the transport for https: net/http's, with the same limits.
func newHTTPSTransport(o Options) *http.Transport {
	return &http.Transport{
		DialContext: o.DialContext, TLSClientConfig: o.TLS, TLSHandshakeTimeout: handshakeTimeout,
		ResponseHeaderTimeout: o.ResponseHeaderTimeout, IdleConnTimeout: o.IdleTimeout, MaxIdleConnsPerHost: o.MaxIdlePerHost,
		MaxIdleConns: o.MaxIdle, MaxResponseHeaderBytes: int64(o.MaxHeadBytes), DisableCompression: true, ForceAttemptHTTP2: true,
	}
}

// CloseIdleConnections closes the connections that no request uses, and ends late dials.
func (t *Transport) CloseIdleConnections() {
	t.late.stopAll()
	t.idle.closeAll()
	t.https().CloseIdleConnections()
}

// RoundTrip sends a request and returns the response as soon as its head has arrived. Interim
// responses (1xx) are skipped. The response's body must be read to its end or closed. At its end the
// connection is kept for the next request; closing it earlier closes the connection. When the
// request's context ends, every operation fails at once with the context's cause.
//
// A body that is in memory (GetBody is set) and not larger than 64 KiB is sent by the caller's
// goroutine before the response is read. Any other body is sent by a separate goroutine, so that a
// response that arrives earlier is detected. That goroutine ends when the body is sent or the
// connection is closed. The owner of the request's body must end a blocked Read.
//
// An idle connection that its host has closed is not used. If a reused connection still fails before
// the first byte of a response, the request is sent once more over a new connection, under the
// conditions of net/http: its body, if any, can be obtained again (GetBody), and either none of it was
// written or the request is idempotent: GET, HEAD, OPTIONS, TRACE, or a header Idempotency-Key or
// X-Idempotency-Key, whose value may be nil so that it is not sent.
//
// If no connection can be opened, RoundTrip returns the dialer's error (net.OpError with Op "dial"),
// within a *RetryError if a first attempt had failed. A response that is not HTTP/1.1 returns
// ErrMalformed. ResponseHeaderTimeout returns os.ErrDeadlineExceeded.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL != nil && req.URL.Scheme == "https" && !t.opts.Direct {
		return t.https().RoundTrip(req)
	}
	out, err := prepareRequest(req, t.opts.scheme())
	if err == nil {
		if err = context.Cause(req.Context()); err == nil {
			return t.roundTrip(out)
		}
	}
	closeBody(req.Body)
	return nil, err
}

// roundTrip tries an idle connection, then a new one.
func (t *Transport) roundTrip(out *outgoing) (*http.Response, error) {
	var firstErr error // the error of the attempt on an idle connection
	if c := t.idle.take(out.addr); c != nil {
		resp, err := c.exchange(out)
		if err == nil {
			return resp, nil
		}
		if !c.mayRetry(out, err) || !out.rewind(c.upload) {
			return nil, out.wrapError(err)
		}
		if c.sent.Load() > 0 {
			firstErr = err
		}
	}
	c, err := t.dial(out)
	if err != nil {
		closeBody(out.body)
		if firstErr != nil {
			err = &RetryError{First: firstErr, Err: err}
		}
		return nil, out.wrapError(err)
	}
	resp, err := c.exchange(out)
	if err != nil {
		return nil, out.wrapError(err)
	}
	return resp, nil
}

// RetryError is the error of a request whose idle connection failed and that could not be retried on
// a new one: the request may have crashed its host.
type RetryError struct {
	First error // the error of the idle connection
	Err   error // the error of the dial
}

// Error returns the messages of both errors.
func (e *RetryError) Error() string { return e.First.Error() + "; then: " + e.Err.Error() }

// Unwrap returns both errors.
func (e *RetryError) Unwrap() []error { return []error{e.Err, e.First} }

// dial opens a connection for a request.
func (t *Transport) dial(out *outgoing) (*conn, error) {
	dial := t.dialLate
	if t.opts.LateDials < 1 {
		dial = func(ctx context.Context, addr string) (net.Conn, error) { return t.opts.DialContext(ctx, "tcp", addr) }
	}
	nc, err := dial(out.req.Context(), out.addr)
	if err != nil {
		return nil, err
	}
	return newConn(t, out.addr, nc), nil
}

// wrapError adds the address to a request's error. The cause of its context takes precedence, because
// it causes the other errors.
func (o *outgoing) wrapError(err error) error {
	if cause := context.Cause(o.req.Context()); cause != nil {
		return cause
	}
	return fmt.Errorf("sending a request to %s: %w", o.addr, err)
}

// rewind prepares a request's body for a second attempt. It reports whether it could. first is the upload
// of the first attempt, nil if there was none. It uses the same request, so rewind waits for its end, which
// is near: its connection is closed, and the body is in memory.
func (o *outgoing) rewind(first *upload) bool {
	if o.length == 0 {
		return true
	}
	if o.req.GetBody == nil {
		return false
	}
	if first != nil {
		<-first.done
	}
	body, err := o.req.GetBody()
	if err != nil {
		return false
	}
	o.body = body
	return true
}

// mayRetry reports whether to retry a request that failed on a connection.
func (c *conn) mayRetry(out *outgoing, err error) bool {
	var bodyErr *bodyError
	switch {
	case !c.reused || c.received || out.req.Context().Err() != nil:
		return false
	case errors.As(err, &bodyErr) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ErrMalformed):
		return false
	case c.sent.Load() == 0 && c.upload == nil:
		return true
	}
	return out.isIdempotent()
}

// isIdempotent reports whether a request is idempotent.
func (o *outgoing) isIdempotent() bool {
	switch o.method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	_, key := o.req.Header["Idempotency-Key"]
	_, other := o.req.Header["X-Idempotency-Key"]
	return key || other
}

// closeBody closes a request's body, if there is one.
func closeBody(body io.Closer) {
	if body != nil {
		body.Close()
	}
}
