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
	defaultHeadTimeout = 10 * time.Second // a head is one packet; slower is an attack
	defaultSessionIdle = 2 * time.Minute  // clients come back within a conversation's turn
	defaultRequestHead = 64 << 10         // long cookies and tokens fit
	acceptPause        = 5 * time.Millisecond
	longestPause       = time.Second
	maxUnreadBody      = 256 << 10 // as net/http: beyond it a new connection is cheaper
	lingerTime         = 500 * time.Millisecond
	handovers          = 64 // connections that wait for whoever serves the rest
)

// FastPathOptions bound what clients may take of a FastPath; zero values mean the
// defaults.
type FastPathOptions struct {
	// HeadTimeout bounds the time for a request's head, from its first byte or, on
	// a connection that is new, from its beginning; 0 = 10 s.
	HeadTimeout time.Duration
	// IdleTimeout is how long a connection is kept without a request; 0 = 2 min.
	IdleTimeout time.Duration
	// MaxHeadBytes bounds a request's line and fields; 0 = 64 KiB.
	MaxHeadBytes int
	// Log is told of handlers that panic; nil = the standard logger.
	Log *log.Logger
}

// FastPath answers HTTP/1.1 requests of the plain kind by itself and gives all other
// connections out: it is the net.Listener of a http.Server that serves the rest
// with the same handler. A request is plain when its line and fields are exactly
// as RFC 9112 has them, its body has a Content-Length and it asks for nothing
// special: no Transfer-Encoding, Expect, Upgrade or Trailer, no TLS, no HTTP/2. At
// the first one that is not, its connection is given out with every byte that has
// arrived; so whatever is wrong or rare is net/http's to judge.
//
// What it spares on the plain ones: no goroutine waits for a client to hang up
// (one for all does), no buffer is held for a client or an answer that waits,
// deadlines cost a system timer only where something blocks, and a head goes out
// in one piece with the first of its body.
//
// Handlers get what net/http would give them. The differences: the request's
// header is shared by the requests of a connection that came with the same head,
// so a handler must not change it, as http.Handler asks anyway; trailers and
// interim answers are not sent; a connection cannot be taken over (http.Hijacker).
// Where a system has no way to watch many sockets for their end at once, every
// connection is given out.
type FastPath struct {
	handler http.Handler
	opts    FastPathOptions
	port    net.Listener
	other   chan net.Conn
	hangups *hangups // nil where all connections are given out
	dates   dates

	mu       sync.Mutex
	sessions map[*session]struct{}
	closing  bool          // nothing more is accepted, answers end their connections
	closed   chan struct{} // once closing
	empty    chan struct{} // once closing and without a session
	failure  error         // of accepting, once closed
	once     sync.Once
}

var _ net.Listener = (*FastPath)(nil)

// NewFastPath makes the fast path of a listener. It serves from the first Accept on. It
// fails only where the system has no file descriptor left. Close ends it.
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
		handler: h, opts: o, port: l, hangups: watch, other: make(chan net.Conn, handovers), sessions: map[*session]struct{}{},
		closed: make(chan struct{}), empty: make(chan struct{}),
	}, nil
}

// Addr is the address that is listened on.
func (f *FastPath) Addr() net.Addr { return f.port.Addr() }

// Accept waits for a connection that is not the fast path's to serve. Its errors are
// the listener's; net.ErrClosed follows Close.
func (f *FastPath) Accept() (net.Conn, error) {
	f.once.Do(func() { go f.accept() })
	select {
	case nc := <-f.other:
		return nc, nil
	case <-f.closed:
		return nil, f.failure
	}
}

// Close stops accepting connections, and lets each connection end with the answer
// at hand. It is safe to call more than once.
func (f *FastPath) Close() error {
	f.stop(net.ErrClosed)
	return f.port.Close()
}

// stop begins the end; err is what Accept tells from then on.
func (f *FastPath) stop(err error) {
	f.mu.Lock()
	if f.closing {
		f.mu.Unlock()
		return
	}
	f.closing, f.failure = true, err
	close(f.closed)
	var idle []*session
	for s := range f.sessions {
		if s.retire() {
			idle = append(idle, s)
		}
	}
	f.settle()
	f.mu.Unlock()
	for _, s := range idle {
		s.in.nc.Close()
	}
}

// settle tells that no session is left. The lock is held.
func (f *FastPath) settle() {
	if !f.closing || len(f.sessions) > 0 {
		return
	}
	select {
	case <-f.empty:
	default:
		close(f.empty)
		if f.hangups != nil {
			f.hangups.close()
		}
	}
}

// Shutdown is Close, and waits until the answers at hand have gone out or ctx has
// ended, whose error it then returns.
func (f *FastPath) Shutdown(ctx context.Context) error {
	_ = f.Close() // the listener is gone either way
	select {
	case <-f.empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Cut is Close, and ends all connections of the fast path's at once: their requests'
// contexts end, what is written fails.
func (f *FastPath) Cut() {
	_ = f.Close() // as in Shutdown
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.sessions {
		s.in.nc.Close()
		s.hungUp()
	}
}

// accept takes connections until the listener fails for good.
func (f *FastPath) accept() {
	pause := acceptPause
	for {
		nc, err := f.port.Accept()
		if err == nil {
			pause = acceptPause
			f.serve(nc)
			continue
		}
		var passing interface{ Temporary() bool } // out of file descriptors, or a client that went away again
		if !errors.As(err, &passing) || !passing.Temporary() {
			f.stop(err)
			return
		}
		select {
		case <-f.closed:
			return
		case <-time.After(pause):
			pause = min(2*pause, longestPause)
		}
	}
}

// serve begins to serve a connection, or gives it out.
func (f *FastPath) serve(nc net.Conn) {
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
	if err := f.hangups.add(s); err != nil {
		f.forget(s)
		f.handOff(nc)
		return
	}
	go s.serve()
}

// forget ends the fast path's interest in a session.
func (f *FastPath) forget(s *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.sessions, s)
	f.settle()
}

// handOff hands a connection to whoever accepts.
func (f *FastPath) handOff(nc net.Conn) {
	select {
	case f.other <- nc:
	case <-f.closed:
		nc.Close()
	}
}

// replayed is a connection of which something was read already.
type replayed struct {
	net.Conn
	read []byte
}

func (c *replayed) Read(p []byte) (int, error) {
	if len(c.read) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.read)
	if c.read = c.read[n:]; len(c.read) == 0 {
		c.read = nil
	}
	return n, nil
}

// CloseWrite ends what is written, as of a TCP connection.
func (c *replayed) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
