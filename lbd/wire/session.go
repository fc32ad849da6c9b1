package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// States of a session.
const (
	sessionIdle    int32 = iota // waits for a request
	sessionBusy                 // bytes of a request have arrived
	sessionRetired              // closed by the fast path
)

// session is one connection of a client. It belongs to its goroutine; only hungUp and retire are
// called from other goroutines.
type session struct {
	fastPath        *FastPath
	in              connReader
	id              uint64 // in hangupWatcher.sessions
	remoteAddr      string // the client's address
	state           atomic.Int32
	readDeadline    time.Time // the read deadline that is set; zero when none is
	head            *plainHead
	writeFunc       func(fd uintptr) bool
	toWrite         []byte // for writeFunc: the bytes to write
	nWritten        int    // result of writeFunc: the number of written bytes
	writeErr        error  // result of writeFunc: its error
	requestTemplate *http.Request
	reply           responder

	mu         sync.Mutex
	cancel     context.CancelFunc // cancels the current request; nil when there is none
	clientGone bool               // the client has hung up
}

func newSession(f *FastPath, nc net.Conn) *session {
	s := &session{fastPath: f, remoteAddr: nc.RemoteAddr().String()}
	s.in.open(nc, &requestBuffers)
	s.writeFunc = s.writeOnce
	return s
}

// hungUp cancels the current request, or the next one.
func (s *session) hungUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clientGone = true
	if s.cancel != nil {
		s.cancel()
	}
}

// retire marks an idle session as unusable. It returns false if the session has a request.
func (s *session) retire() bool { return s.state.CompareAndSwap(sessionIdle, sessionRetired) }

// serveSession serves requests until the connection ends or is handed off.
func (s *session) serveSession() {
	handedOff := false
	defer func() {
		s.in.release()
		if !handedOff {
			s.in.nc.Close()
			s.fastPath.hangups.forget(s)
		}
		s.fastPath.removeSession(s)
	}()
	for timeout := s.fastPath.opts.HeadTimeout; s.awaitRequest(timeout); timeout = s.fastPath.opts.IdleTimeout {
		head, ok := s.readHead()
		switch {
		case !ok:
			return
		case head == nil:
			handedOff = true
			s.handOff()
			return
		case !s.serveRequest(head):
			return
		}
		if !s.state.CompareAndSwap(sessionBusy, sessionIdle) || s.fastPath.isClosing() {
			return
		}
	}
}

// isClosing reports whether connections end with the current response.
func (f *FastPath) isClosing() bool {
	select {
	case <-f.closed:
		return true
	default:
		return false
	}
}

// awaitRequest waits for the first byte of a request.
func (s *session) awaitRequest(timeout time.Duration) bool {
	if len(s.in.unread()) == 0 {
		s.setReadDeadline(time.Now().Add(timeout), timeout/8)
		if s.in.fill() != nil {
			return false
		}
	}
	return s.state.CompareAndSwap(sessionIdle, sessionBusy)
}

// setReadDeadline sets the read deadline unless the current one is close enough. The current one may be
// sooner by up to slack, which saves a timer per request.
func (s *session) setReadDeadline(deadline time.Time, slack time.Duration) {
	if sooner := deadline.Sub(s.readDeadline); !s.readDeadline.IsZero() && sooner >= 0 && sooner <= slack {
		return
	}
	s.readDeadline = deadline
	_ = s.in.nc.SetReadDeadline(deadline) // it fails only if the connection has failed; reads then fail too
}

// clearReadDeadline clears the read deadline.
func (s *session) clearReadDeadline() {
	if !s.readDeadline.IsZero() {
		s.readDeadline = time.Time{}
		_ = s.in.nc.SetReadDeadline(time.Time{}) // as above
	}
}

// readHead reads the head of a request. It returns nil when the request is invalid or not plain. Then
// no byte is consumed, and net/http reports the error to the client. ok is false when the connection
// has failed.
func (s *session) readHead() (head *plainHead, ok bool) {
	if s.head != nil && !s.hasNextRequest() {
		return nil, false
	}
	var find headScanner
	for waited := false; ; {
		unread := s.in.unread()
		end, err := find.findEnd(unread)
		switch {
		case err != nil || end > s.fastPath.opts.MaxHeadBytes || (end == 0 && len(unread) >= s.fastPath.opts.MaxHeadBytes):
			return nil, true
		case end > 0:
			return s.parsePlain(unread[:end], find.lines-1), true
		}
		if !waited {
			waited = true
			s.setReadDeadline(time.Now().Add(s.fastPath.opts.HeadTimeout), 0)
		}
		if err := s.in.fillMore(); err != nil {
			return nil, errors.Is(err, io.ErrUnexpectedEOF)
		}
	}
}

// hasNextRequest reports whether the bytes after a response can be a request. A few bytes before the end of
// the connection are not a request. It skips the line end that some clients send after the body of a POST
// (RFC 9112, section 2.2).
func (s *session) hasNextRequest() bool {
	const word = 4
	for len(s.in.unread()) < word {
		s.setReadDeadline(time.Now().Add(s.fastPath.opts.HeadTimeout), 0)
		if s.in.fillMore() != nil {
			return false
		}
	}
	unread, n := s.in.unread(), 0
	for s.head.method == http.MethodPost && n < word && (unread[n] == '\r' || unread[n] == '\n') {
		n++
	}
	s.in.skip(n)
	return true
}

// parsePlain calls readPlain unless the head equals the previous one.
func (s *session) parsePlain(head []byte, fields int) *plainHead {
	if s.head == nil || s.head.text != string(head) {
		s.head = readPlain(string(head), fields)
	}
	if s.head != nil {
		s.in.skip(len(head))
	}
	return s.head
}

// handOff passes the connection to net/http's server.
func (s *session) handOff() {
	s.fastPath.hangups.unwatch(s)
	s.clearReadDeadline()
	read := append([]byte(nil), s.in.unread()...)
	s.fastPath.handOff(&replayConn{Conn: s.in.nc, unread: read})
}

// serveRequest calls the handler for a request. It reports whether the connection can be reused.
func (s *session) serveRequest(head *plainHead) (reusable bool) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	s.mu.Lock()
	s.cancel = stop
	if s.clientGone {
		stop()
	}
	s.mu.Unlock()
	body := &requestBody{session: s, remaining: head.length}
	req := s.newRequest(ctx, head, body)
	s.reply.reset(s, head, body)
	if !s.callHandler(req) {
		s.reply.releaseBuffers()
		return false
	}
	reusable = s.reply.finish()
	s.mu.Lock()
	s.cancel = nil
	s.mu.Unlock()
	body.closed.Store(true)
	if reusable && body.remaining > 0 {
		reusable = body.discard()
	} else if body.remaining > 0 {
		s.linger()
	}
	return reusable
}

// newRequest returns the request for the handler.
func (s *session) newRequest(ctx context.Context, head *plainHead, body *requestBody) *http.Request {
	if s.requestTemplate == nil {
		s.requestTemplate = &http.Request{Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: s.remoteAddr}
	}
	req := s.requestTemplate.WithContext(ctx)
	req.Method, req.URL, req.RequestURI, req.Host = head.method, head.url, head.target, head.host
	req.Header, req.ContentLength, req.Close = head.header, head.length, head.close
	req.Body = body
	if head.length == 0 {
		req.Body = http.NoBody
	}
	return req
}

// callHandler calls the handler. It returns false when the handler panicked: then the client must be able
// to detect that its response is incomplete.
func (s *session) callHandler(req *http.Request) (whole bool) {
	defer func() {
		if whole {
			return
		}
		if r := recover(); r != nil && r != http.ErrAbortHandler { //nolint:errorlint // a panic's value is compared as net/http does
			s.fastPath.opts.Log.Printf("http: panic serving %s: %v\n%s", s.remoteAddr, r, debug.Stack())
		}
	}()
	s.fastPath.handler.ServeHTTP(&s.reply, req)
	return true
}

// linger allows a client that is still sending to read its response. On some systems, closing a
// connection with unread data discards the bytes sent to the client.
func (s *session) linger() {
	if half, ok := s.in.nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		s.setReadDeadline(time.Now().Add(lingerTime), 0)
		_, _ = io.CopyN(io.Discard, s.in.nc, maxUnreadBody) // the connection is closed afterwards even after an error
	}
}

// writeBytes sends b. Bytes that the socket accepts immediately cost no timer. deadline applies to the
// remaining bytes; zero means none.
func (s *session) writeBytes(b []byte, deadline time.Time) error {
	s.toWrite, s.nWritten, s.writeErr = b, 0, nil
	err := s.in.raw.Write(s.writeFunc)
	s.toWrite = nil
	if err == nil {
		err = s.writeErr
	}
	if err == nil && s.nWritten < len(b) {
		if !deadline.IsZero() {
			_ = s.in.nc.SetWriteDeadline(deadline) // as in setReadDeadline
			defer func() { _ = s.in.nc.SetWriteDeadline(time.Time{}) }()
		}
		_, err = s.in.nc.Write(b[s.nWritten:])
	}
	if err != nil {
		s.hungUp()
	}
	return err
}

// writeOnce writes as many bytes as the socket accepts without waiting.
func (s *session) writeOnce(fd uintptr) bool {
	s.nWritten, s.writeErr = writeNow(fd, s.toWrite)
	return true
}

// requestBody is the body of a plain request. It can be read until the response has ended.
type requestBody struct {
	session   *session
	remaining int64     // unread bytes
	deadline  time.Time // deadline of reads that wait; zero = none
	closed    atomic.Bool
}

// Read returns bytes that have arrived, and waits for the first one. It returns io.EOF together
// with the last bytes.
func (b *requestBody) Read(p []byte) (int, error) {
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.read(p)
}

func (b *requestBody) read(p []byte) (n int, err error) {
	switch {
	case b.remaining == 0:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	case int64(len(p)) > b.remaining:
		p = p[:b.remaining]
	}
	in := &b.session.in
	if unread := in.unread(); len(unread) > 0 {
		n = copy(p, unread)
		in.skip(n)
	} else {
		if b.deadline.IsZero() {
			b.session.clearReadDeadline()
		} else {
			b.session.setReadDeadline(b.deadline, 0)
		}
		n, err = in.nc.Read(p)
	}
	b.remaining -= int64(n)
	switch {
	case b.remaining == 0:
		return n, io.EOF
	case errors.Is(err, io.EOF):
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

// Close ends reads of the body. It never fails.
func (b *requestBody) Close() error {
	b.closed.Store(true)
	return nil
}

// discard reads the bytes that the handler did not read, up to the start of the next request.
func (b *requestBody) discard() bool {
	if b.deadline.IsZero() {
		b.deadline = time.Now().Add(b.session.fastPath.opts.HeadTimeout)
	}
	buf := requestBuffers.get()
	defer requestBuffers.putBuffer(buf)
	for b.remaining > 0 {
		if _, err := b.read(buf.b); err != nil {
			return errors.Is(err, io.EOF)
		}
	}
	return true
}
