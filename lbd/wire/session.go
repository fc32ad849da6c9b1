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

// What a session is at.
const (
	sessionIdle    int32 = iota // it waits for a request
	sessionBusy                 // something of one has come
	sessionRetired              // the fast path has closed it
)

// session is one connection of a client. It belongs to its goroutine; only hungUp
// and retire come from elsewhere.
type session struct {
	fast  *FastPath
	in    connReader
	id    uint64 // in the watch over hang-ups
	from  string // the client's address
	state atomic.Int32
	until time.Time // of the read deadline that is set; zero when none is
	head  *plainHead
	put   func(fd uintptr) bool
	leave []byte // by put: what is to be written
	left  int    // by put: how much of it was
	fault error  // by put
	blank *http.Request
	reply responder

	mu   sync.Mutex
	stop context.CancelFunc // of the request at hand; nil when there is none
	gone bool               // the client has hung up
}

func newSession(f *FastPath, nc net.Conn) *session {
	s := &session{fast: f, from: nc.RemoteAddr().String()}
	s.in.open(nc, &requestBuffers)
	s.put = s.putOnce
	return s
}

// hungUp ends the request at hand, or the next one.
func (s *session) hungUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	if s.stop != nil {
		s.stop()
	}
}

// retire takes a session that waits for a request out of use; false when it has one.
func (s *session) retire() bool { return s.state.CompareAndSwap(sessionIdle, sessionRetired) }

// serve answers requests until the connection ends or is given out.
func (s *session) serve() {
	kept := false // by whoever it was given to
	defer func() {
		s.in.release()
		if !kept {
			s.in.nc.Close()
			s.fast.hangups.drop(s)
		}
		s.fast.forget(s)
	}()
	for timeout := s.fast.opts.HeadTimeout; s.await(timeout); timeout = s.fast.opts.IdleTimeout {
		head, ok := s.readHead()
		switch {
		case !ok:
			return
		case head == nil:
			kept = true
			s.handOff()
			return
		case !s.answer(head):
			return
		}
		if !s.state.CompareAndSwap(sessionBusy, sessionIdle) || s.fast.ending() {
			return
		}
	}
}

// ending says whether connections are to end with the answer at hand.
func (f *FastPath) ending() bool {
	select {
	case <-f.closed:
		return true
	default:
		return false
	}
}

// await waits for the first byte of a request.
func (s *session) await(timeout time.Duration) bool {
	if len(s.in.unread()) == 0 {
		s.readBy(time.Now().Add(timeout), timeout/8)
		if s.in.fill() != nil {
			return false
		}
	}
	return s.state.CompareAndSwap(sessionIdle, sessionBusy)
}

// readBy sets the read deadline unless the one that is set is as good: it may be
// sooner by slack, which saves a timer a request.
func (s *session) readBy(until time.Time, slack time.Duration) {
	if sooner := until.Sub(s.until); !s.until.IsZero() && sooner >= 0 && sooner <= slack {
		return
	}
	s.until = until
	_ = s.in.nc.SetReadDeadline(until) // it fails where the connection has, as reads then do
}

// unhurried takes the read deadline back.
func (s *session) unhurried() {
	if !s.until.IsZero() {
		s.until = time.Time{}
		_ = s.in.nc.SetReadDeadline(time.Time{}) // as above
	}
}

// readHead reads a request's head. It is nil when the request is not one of the
// plain kind, or none: then nothing was taken off the connection, and net/http
// tells the client what is wrong. ok is false when the connection has failed.
func (s *session) readHead() (head *plainHead, ok bool) {
	if s.head != nil && !s.another() {
		return nil, false
	}
	var find scan
	for waited := false; ; {
		unread := s.in.unread()
		end, err := find.end(unread)
		switch {
		case err != nil || end > s.fast.opts.MaxHeadBytes || (end == 0 && len(unread) >= s.fast.opts.MaxHeadBytes):
			return nil, true
		case end > 0:
			return s.plain(unread[:end], find.lines-1), true
		}
		if !waited {
			waited = true
			s.readBy(time.Now().Add(s.fast.opts.HeadTimeout), 0)
		}
		if err := s.in.more(); err != nil {
			return nil, errors.Is(err, io.ErrUnexpectedEOF)
		}
	}
}

// another says whether what comes behind an answer may be a request: a few bytes
// and the connection's end are none. The line's end that some clients send behind
// the body of a POST is passed over (RFC 9112, section 2.2).
func (s *session) another() bool {
	const word = 4
	for len(s.in.unread()) < word {
		s.readBy(time.Now().Add(s.fast.opts.HeadTimeout), 0)
		if s.in.more() != nil {
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

// plain is readPlain, which is spared where the head is the one before.
func (s *session) plain(head []byte, fields int) *plainHead {
	if s.head == nil || s.head.text != string(head) {
		s.head = readPlain(string(head), fields)
	}
	if s.head != nil {
		s.in.skip(len(head))
	}
	return s.head
}

// handOff gives the connection to whoever serves the rest.
func (s *session) handOff() {
	s.fast.hangups.remove(s)
	s.unhurried()
	read := append([]byte(nil), s.in.unread()...)
	s.fast.handOff(&replayed{Conn: s.in.nc, read: read})
}

// answer lets the handler answer a request; it says whether the connection can
// take another one.
func (s *session) answer(head *plainHead) (lasts bool) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	s.mu.Lock()
	s.stop = stop
	if s.gone {
		stop()
	}
	s.mu.Unlock()
	body := &requestBody{s: s, left: head.length}
	req := s.request(ctx, head, body)
	s.reply.begin(s, head, body)
	if !s.handle(req) {
		s.reply.drop()
		return false
	}
	lasts = s.reply.finish()
	s.mu.Lock()
	s.stop = nil
	s.mu.Unlock()
	body.over.Store(true)
	if lasts && body.left > 0 {
		lasts = body.discard()
	} else if body.left > 0 {
		s.linger()
	}
	return lasts
}

// request is what a handler gets.
func (s *session) request(ctx context.Context, head *plainHead, body *requestBody) *http.Request {
	if s.blank == nil {
		s.blank = &http.Request{Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: s.from}
	}
	req := s.blank.WithContext(ctx)
	req.Method, req.URL, req.RequestURI, req.Host = head.method, head.url, head.target, head.host
	req.Header, req.ContentLength, req.Close = head.header, head.length, head.close
	req.Body = body
	if head.length == 0 {
		req.Body = http.NoBody
	}
	return req
}

// handle calls the handler; false when it panicked: then the client must see that
// its answer is cut off.
func (s *session) handle(req *http.Request) (whole bool) {
	defer func() {
		if whole {
			return
		}
		if r := recover(); r != nil && r != http.ErrAbortHandler { //nolint:errorlint // a panic's value is compared as net/http does
			s.fast.opts.Log.Printf("http: panic serving %s: %v\n%s", s.from, r, debug.Stack())
		}
	}()
	s.fast.handler.ServeHTTP(&s.reply, req)
	return true
}

// linger lets a client that still sends read its answer: data that nobody reads
// makes some systems throw away what they were sent.
func (s *session) linger() {
	if half, ok := s.in.nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		s.readBy(time.Now().Add(lingerTime), 0)
		_, _ = io.CopyN(io.Discard, s.in.nc, maxUnreadBody) // it is closed afterwards in any case
	}
}

// write sends b. What the socket takes at once costs no timer; for the rest until
// is the deadline, none when it is zero.
func (s *session) write(b []byte, until time.Time) error {
	s.leave, s.left, s.fault = b, 0, nil
	err := s.in.raw.Write(s.put)
	s.leave = nil
	if err == nil {
		err = s.fault
	}
	if err == nil && s.left < len(b) {
		if !until.IsZero() {
			_ = s.in.nc.SetWriteDeadline(until) // as in readBy
			defer func() { _ = s.in.nc.SetWriteDeadline(time.Time{}) }()
		}
		_, err = s.in.nc.Write(b[s.left:])
	}
	if err != nil {
		s.hungUp()
	}
	return err
}

// putOnce writes what the socket takes without waiting.
func (s *session) putOnce(fd uintptr) bool {
	s.left, s.fault = writeNow(fd, s.leave)
	return true
}

// requestBody is the body of a plain request. It can be read until its answer has
// ended.
type requestBody struct {
	s     *session
	left  int64     // that was not read
	until time.Time // when reads that wait give up; zero = never
	over  atomic.Bool
}

// Read gives what has arrived, waiting for it if need be. The end comes with the
// last bytes.
func (b *requestBody) Read(p []byte) (int, error) {
	if b.over.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.read(p)
}

func (b *requestBody) read(p []byte) (n int, err error) {
	switch {
	case b.left == 0:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	case int64(len(p)) > b.left:
		p = p[:b.left]
	}
	in := &b.s.in
	if unread := in.unread(); len(unread) > 0 {
		n = copy(p, unread)
		in.skip(n)
	} else {
		if b.until.IsZero() {
			b.s.unhurried()
		} else {
			b.s.readBy(b.until, 0)
		}
		n, err = in.nc.Read(p)
	}
	b.left -= int64(n)
	switch {
	case b.left == 0:
		return n, io.EOF
	case errors.Is(err, io.EOF):
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

// Close lets go of the body. It never fails.
func (b *requestBody) Close() error {
	b.over.Store(true)
	return nil
}

// discard reads what the handler did not, so that the next request can be found.
func (b *requestBody) discard() bool {
	if b.until.IsZero() {
		b.until = time.Now().Add(b.s.fast.opts.HeadTimeout)
	}
	buf := requestBuffers.take()
	defer requestBuffers.put(buf)
	for b.left > 0 {
		if _, err := b.read(buf.b); err != nil {
			return errors.Is(err, io.EOF)
		}
	}
	return true
}
