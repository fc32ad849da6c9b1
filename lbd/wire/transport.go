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
	defaultKeepAlive    = 15 * time.Second // finds out about hosts that vanished
	defaultIdleTimeout  = 90 * time.Second // as net/http; engines close theirs sooner, which sweeps find
	defaultIdlePerHost  = 512              // twice what an engine runs at once
	defaultIdle         = 8192             // file descriptors: far below a server's usual limit of 65,536
	defaultMaxHeadBytes = 1 << 20          // net/http's servers accept no more either
	handshakeTimeout    = 5 * time.Second  // two round trips and a slow key, over https only
)

// ErrMalformed says that what came is not an HTTP/1.1 answer, or one that this
// package refuses: see the package's list.
var ErrMalformed = errors.New("malformed answer")

// DialFunc opens a connection, like net.Dialer.DialContext.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Options configures a Transport; its zero value is fit for use.
type Options struct {
	// DialContext opens connections; nil = a net.Dialer with DialTimeout and
	// KeepAlive.
	DialContext DialFunc
	// DialTimeout bounds how long the default dialer takes; 0 = 3 s.
	DialTimeout time.Duration
	// KeepAlive is the period of the default dialer's TCP probes; 0 = 15 s.
	KeepAlive time.Duration
	// ResponseHeaderTimeout bounds the time from when a request was sent, or
	// began to be where a goroutine of its own sends it, to the end of its
	// answer's head; 0 = only the request's context does.
	ResponseHeaderTimeout time.Duration
	// IdleTimeout is how long a connection is kept without a request; 0 = 90 s.
	IdleTimeout time.Duration
	// MaxIdlePerHost and MaxIdle bound the connections that are kept for one
	// HOST:PORT and in total; beyond them the oldest is closed. 0 = 512 and 8,192;
	// below 0 = none is kept.
	MaxIdlePerHost, MaxIdle int
	// MaxHeadBytes bounds an answer's status line and fields, interim answers
	// included; 0 = 1 MiB.
	MaxHeadBytes int
	// TLS configures https; nil = Go's defaults.
	TLS *tls.Config
	// Direct carries https in this package, as HTTP/1.1, instead of leaving it to
	// net/http's Transport; http is refused then. It is for servers that are known to
	// speak HTTP/1.1, and costs no goroutine a connection.
	Direct bool
	// Allow is asked by the default dialer about each address before it connects
	// there: names may have come to mean another one since somebody looked. Its
	// error is the dial's; nil = all may be connected to.
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
		o.DialContext = dialTLS(o.DialContext, o.TLS)
	}
	return o
}

// scheme is that of the URLs which this package carries itself.
func (o Options) scheme() string {
	if o.Direct {
		return "https"
	}
	return "http"
}

// dialTLS makes dial end with a handshake. A host that fails it cannot be reached, as
// one that does not answer.
func dialTLS(dial DialFunc, config *tls.Config) DialFunc {
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
			c.ServerName, _, _ = net.SplitHostPort(addr) // dial has taken it
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

// control asks Allow about what a dialer is about to connect to; nil without one.
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

// Transport is an http.RoundTripper over HTTP/1.1. It is safe for concurrent
// use and must not be copied; New makes one.
type Transport struct {
	opts   Options
	idle   pool
	secure func() *http.Transport
}

var _ http.RoundTripper = (*Transport)(nil)

// New makes a transport without connections.
func New(o Options) *Transport {
	t := &Transport{opts: o.orDefault()}
	t.idle = pool{perHost: t.opts.MaxIdlePerHost, most: t.opts.MaxIdle, keep: t.opts.IdleTimeout, hosts: map[string][]*conn{}}
	t.secure = sync.OnceValue(func() *http.Transport { return secure(t.opts) })
	return t
}

// secure is what carries https: the same bounds on net/http's transport.
func secure(o Options) *http.Transport {
	return &http.Transport{
		DialContext: o.DialContext, TLSClientConfig: o.TLS, TLSHandshakeTimeout: handshakeTimeout,
		ResponseHeaderTimeout: o.ResponseHeaderTimeout, IdleConnTimeout: o.IdleTimeout, MaxIdleConnsPerHost: o.MaxIdlePerHost,
		MaxIdleConns: o.MaxIdle, MaxResponseHeaderBytes: int64(o.MaxHeadBytes), DisableCompression: true, ForceAttemptHTTP2: true,
	}
}

// CloseIdleConnections closes the connections that no request is using.
func (t *Transport) CloseIdleConnections() {
	t.idle.drain()
	t.secure().CloseIdleConnections()
}

// RoundTrip sends a request and returns its answer as soon as its head has
// come; interim answers (1xx) are passed over. The answer's body must be read
// to its end or closed. At its end the connection is kept for the next request;
// closing it earlier closes the connection. When the request's context ends,
// whatever is under way fails at once with the context's cause.
//
// A body that is in memory (GetBody is set) and not larger than 64 KiB is sent
// by the caller's goroutine before the answer is read; any other by a goroutine
// of its own, so that an answer that comes first is seen. That goroutine ends
// when the body is sent or the connection closed; a Read of the request's body
// that blocks is its owner's to end.
//
// An idle connection that its host has closed is not used. Should one that was
// used before fail all the same before the first byte of an answer, the request
// goes out once more over a new connection, under the conditions of net/http:
// its body, if any, can be had again (GetBody), and either nothing of it was
// written or it may be repeated: GET, HEAD, OPTIONS, TRACE, or a header
// Idempotency-Key or X-Idempotency-Key, whose value may be nil so that it is
// not sent.
//
// A connection that cannot be had fails with the dialer's error (net.OpError
// with Op "dial"), after a first try that broke in a *RepeatError, an answer that is not HTTP/1.1 with ErrMalformed, and one
// that ResponseHeaderTimeout ends with os.ErrDeadlineExceeded.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL != nil && req.URL.Scheme == "https" && !t.opts.Direct {
		return t.secure().RoundTrip(req)
	}
	out, err := prepare(req, t.opts.scheme())
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
	var broke error // how the try on an idle connection ended
	if c := t.idle.take(out.addr); c != nil {
		resp, err := c.exchange(out)
		if err == nil {
			return resp, nil
		}
		if !c.mayRepeat(out, err) || !out.rewind() {
			return nil, out.failed(err)
		}
		if c.sent.Load() > 0 {
			broke = err
		}
	}
	c, err := t.dial(out)
	if err != nil {
		closeBody(out.body)
		if broke != nil {
			err = &RepeatError{Broke: broke, Err: err}
		}
		return nil, out.failed(err)
	}
	resp, err := c.exchange(out)
	if err != nil {
		return nil, out.failed(err)
	}
	return resp, nil
}

// RepeatError is the error of a request that was sent over an idle connection which broke,
// and then could not be sent again: its host may have died of it.
type RepeatError struct {
	Broke error // the error of the idle connection
	Err   error // the error of the dial
}

// Error has both errors.
func (e *RepeatError) Error() string { return e.Broke.Error() + "; then: " + e.Err.Error() }

// Unwrap returns both errors.
func (e *RepeatError) Unwrap() []error { return []error{e.Err, e.Broke} }

// dial opens a connection for a request.
func (t *Transport) dial(out *outgoing) (*conn, error) {
	nc, err := t.opts.DialContext(out.req.Context(), "tcp", out.addr)
	if err != nil {
		return nil, err
	}
	return newConn(t, out.addr, nc), nil
}

// failed puts a request's error in words; the end of its context is the better
// reason for whatever followed from it.
func (o *outgoing) failed(err error) error {
	if cause := context.Cause(o.req.Context()); cause != nil {
		return cause
	}
	return fmt.Errorf("asking %s: %w", o.addr, err)
}

// rewind makes a request's body ready to be sent a second time; it says whether
// it could.
func (o *outgoing) rewind() bool {
	if o.length == 0 {
		return true
	}
	if o.req.GetBody == nil {
		return false
	}
	body, err := o.req.GetBody()
	if err != nil {
		return false
	}
	o.body = body
	return true
}

// mayRepeat says whether a request that failed on a connection may go out again.
func (c *conn) mayRepeat(out *outgoing, err error) bool {
	var own *bodyError
	switch {
	case !c.reused || c.came || out.req.Context().Err() != nil:
		return false
	case errors.As(err, &own) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ErrMalformed):
		return false
	case c.sent.Load() == 0 && c.upload == nil:
		return true
	}
	return out.repeatable()
}

// repeatable says whether doing a request twice is as good as once.
func (o *outgoing) repeatable() bool {
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
