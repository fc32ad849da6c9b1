package wire

import (
	"cmp"
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// Defaults of FastPathOptions, each with its reason.
const (
	defaultHeadTimeout = 10 * time.Second // a head fits one packet; a slower client is an attacker
	defaultSessionIdle = 2 * time.Minute  // clients send the next request within a turn of their conversation
	defaultRequestHead = 64 << 10         // enough for long cookies and tokens
	minAcceptBackoff   = 5 * time.Millisecond
	maxAcceptBackoff   = time.Second
	maxUnreadBody      = 256 << 10 // as net/http: a new connection is cheaper than reading more
	lingerTime         = 500 * time.Millisecond
	handOffBacklog     = 64 // connections that wait for Accept
)

// FastPathOptions limits what clients may use of a FastPath. Zero values select the defaults.
type FastPathOptions struct {
	// HeadTimeout limits the time for a request's head, from its first byte, or from the start of a
	// new connection; 0 = 10 s.
	HeadTimeout time.Duration
	// IdleTimeout is the time for which a connection is kept open without a request; 0 = 2 min.
	IdleTimeout time.Duration
	// MaxHeadBytes limits a request line and its fields; 0 = 64 KiB.
	MaxHeadBytes int
	// Log receives panics of handlers; nil = the standard logger.
	Log *log.Logger
}

// FastPath serves plain HTTP/1.1 requests itself and hands off all other connections. It is the
// net.Listener of an http.Server that serves those with the same handler. A request is plain when its
// request line and fields conform exactly to RFC 9112, its body has a Content-Length, and it uses no
// Transfer-Encoding, Expect, Upgrade, Trailer, Pragma, TLS or HTTP/2. At the first request that is not plain,
// its connection is handed off with every byte that has arrived, so net/http handles all invalid and
// rare requests.
//
// A plain request costs less than in net/http. One goroutine, not one per client, waits for clients to
// hang up. No buffer is held for an idle client or response. Deadlines cost a system timer only if an
// operation blocks. A head is sent together with the first piece of its body.
//
// Handlers receive the same values as from net/http, with these differences. Requests on a
// connection that have the same head share their header, so a handler must not change it, as
// http.Handler requires anyway. Trailers and interim responses are not sent. A connection cannot be
// hijacked (http.Hijacker). Where the system cannot watch many sockets for hang-ups at once, every
// connection is handed off.
type FastPath struct {
	handler   http.Handler
	opts      FastPathOptions
	listener  net.Listener
	handedOff chan net.Conn
	hangups   *hangupWatcher // nil if all connections are handed off
	dates     dates

	mu        sync.Mutex
	sessions  map[*session]struct{}
	closing   bool          // no connection is accepted, and connections end with their responses
	closed    chan struct{} // closed when closing is set
	drained   chan struct{} // closed when closing is set and no session remains
	acceptErr error         // the error of Accept, once closed
	once      sync.Once
}

var _ net.Listener = (*FastPath)(nil)

// NewFastPath returns the fast path of a listener. It serves connections from the first Accept on.
// It returns an error only if the system has no free file descriptor. Close ends it.
func NewFastPath(l net.Listener, h http.Handler, o FastPathOptions) (*FastPath, error) {
	o.HeadTimeout = cmp.Or(o.HeadTimeout, defaultHeadTimeout)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, defaultSessionIdle)
	o.MaxHeadBytes = cmp.Or(o.MaxHeadBytes, defaultRequestHead)
	if o.Log == nil {
		o.Log = log.Default()
	}
	watch, err := watchHangups()
	if err != nil {
		return nil, err
	}
	if watch != nil {
		go watch.run()
	}
	return &FastPath{
		handler: h, opts: o, listener: l, hangups: watch, handedOff: make(chan net.Conn, handOffBacklog), sessions: map[*session]struct{}{},
		closed: make(chan struct{}), drained: make(chan struct{}),
	}, nil
}

// Addr returns the address of the listener.
func (f *FastPath) Addr() net.Addr { return f.listener.Addr() }

// Accept waits for a connection that the fast path does not serve. It returns the errors of the
// listener, and net.ErrClosed after Close.
func (f *FastPath) Accept() (net.Conn, error) {
	f.once.Do(func() { go f.acceptConns() })
	select {
	case nc := <-f.handedOff:
		return nc, nil
	case <-f.closed:
		return nil, f.acceptErr
	}
}

// Close stops accepting connections. Each connection ends with its current response. It is safe to
// call more than once.
func (f *FastPath) Close() error {
	f.beginShutdown(net.ErrClosed)
	return f.listener.Close()
}

// beginShutdown starts the shutdown; Accept returns err from then on.
func (f *FastPath) beginShutdown(err error) {
	f.mu.Lock()
	if f.closing {
		f.mu.Unlock()
		return
	}
	f.closing, f.acceptErr = true, err
	close(f.closed)
	var idle []*session
	for s := range f.sessions {
		if s.retire() {
			idle = append(idle, s)
		}
	}
	f.signalIfEmpty()
	f.mu.Unlock()
	for _, s := range idle {
		s.in.nc.Close()
	}
}

// signalIfEmpty closes drained when no session remains. The lock must be held.
func (f *FastPath) signalIfEmpty() {
	if !f.closing || len(f.sessions) > 0 {
		return
	}
	select {
	case <-f.drained:
	default:
		close(f.drained)
		if f.hangups != nil {
			f.hangups.close()
		}
	}
}

// Shutdown calls Close and waits until the current responses are complete or ctx has ended. It returns
// the error of ctx.
func (f *FastPath) Shutdown(ctx context.Context) error {
	_ = f.Close() // the listener is closed even after an error
	select {
	case <-f.drained:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// CloseConnections calls Close and immediately closes all connections of the fast path: the contexts of their
// requests end, and writes fail.
func (f *FastPath) CloseConnections() {
	_ = f.Close() // as in Shutdown
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.sessions {
		s.in.nc.Close()
		s.hungUp()
	}
}

// acceptConns accepts connections until the listener fails permanently.
func (f *FastPath) acceptConns() {
	backoff := minAcceptBackoff
	for {
		nc, err := f.listener.Accept()
		if err == nil {
			backoff = minAcceptBackoff
			f.serveConn(nc)
			continue
		}
		var temporary interface{ Temporary() bool } // out of file descriptors, or a client that disconnected
		if !errors.As(err, &temporary) || !temporary.Temporary() {
			f.beginShutdown(err)
			return
		}
		select {
		case <-f.closed:
			return
		case <-time.After(backoff):
			backoff = min(2*backoff, maxAcceptBackoff)
		}
	}
}

// serveConn starts serving a connection, or hands it off.
func (f *FastPath) serveConn(nc net.Conn) {
	s := newSession(f, nc)
	if f.hangups == nil || s.in.raw == nil {
		f.handOff(nc)
		return
	}
	f.mu.Lock()
	if f.closing {
		f.mu.Unlock()
		nc.Close()
		return
	}
	f.sessions[s] = struct{}{}
	f.mu.Unlock()
	if err := f.hangups.watch(s); err != nil {
		f.removeSession(s)
		f.handOff(nc)
		return
	}
	go s.serveSession()
}

// removeSession removes a session.
func (f *FastPath) removeSession(s *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.sessions, s)
	f.signalIfEmpty()
}

// handOff passes a connection to Accept.
func (f *FastPath) handOff(nc net.Conn) {
	select {
	case f.handedOff <- nc:
	case <-f.closed:
		nc.Close()
	}
}

// replayConn is a connection that first returns the bytes that were already read from it.
type replayConn struct {
	net.Conn
	unread []byte
}

func (c *replayConn) Read(p []byte) (int, error) {
	if len(c.unread) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.unread)
	if c.unread = c.unread[n:]; len(c.unread) == 0 {
		c.unread = nil
	}
	return n, nil
}

// CloseWrite closes the write side, as for a TCP connection.
func (c *replayConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
