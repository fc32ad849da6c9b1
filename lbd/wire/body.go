package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
)

// directRead is the minimum free space for reading directly into the caller's memory. With less
// space, every few bytes would cost a system call.
const directRead = 512

// errConcurrentRead is returned to a Read that is called while another Read is in progress.
var errConcurrentRead = errors.New("reading the response body: another Read is in progress")

// errAbandoned is returned by reads after the writer of a WriteTo has failed.
var errAbandoned = errors.New("the response could not be forwarded")

// States of a body: who may use its connection.
const (
	bodyOpen    int32 = iota // free for the next caller
	bodyReading              // used by the Read in progress
	bodyClosing              // used by the Read in progress, whose connection was closed by Close
	bodyClosed               // not usable: Close was called
	bodyEnded                // not usable: the end or an error was reached
)

// body is the unread part of a response. Read and WriteTo belong to one goroutine at a time. Close may
// be called from another goroutine and ends a blocked Read.
type body struct {
	conn      *conn
	resp      *http.Response
	ctx       context.Context
	stopWatch func() bool // stops watching ctx; false when ctx has already ended
	state     atomic.Int32
	frame     frame
	reusable  bool  // the connection may be reused for another request
	remaining int64 // remaining bytes of a body with a Content-Length
	chunks    chunkDecoder
	end       error // set once ended
}

var _ io.WriterTo = (*body)(nil)

// Read returns bytes of the response that have arrived, and waits for the first one. At the end it
// returns io.EOF, possibly together with the last bytes.
func (b *body) Read(p []byte) (int, error) {
	if err := b.acquire(); err != nil {
		return 0, err
	}
	n, err := b.read(p)
	return n, b.release(err)
}

// WriteTo writes the response to w in pieces as they arrive. It uses no buffer between two pieces.
func (b *body) WriteTo(w io.Writer) (written int64, err error) {
	if err := b.acquire(); err != nil {
		return 0, notEOF(err)
	}
	for {
		piece, taken, err := b.nextPiece()
		if len(piece) > 0 {
			n, failed := w.Write(piece)
			written += int64(n)
			if failed != nil {
				_ = b.release(errAbandoned) // later reads get this error
				return written, failed
			}
		}
		b.conn.skip(taken)
		if err != nil || b.state.Load() == bodyClosing {
			return written, notEOF(b.release(err))
		}
	}
}

// Close releases the response. It closes the connection unless the end was read. It never fails.
func (b *body) Close() error {
	switch {
	case b.state.CompareAndSwap(bodyOpen, bodyClosed):
		b.detach(false)
	case b.state.CompareAndSwap(bodyReading, bodyClosing):
		b.conn.abort()
	}
	return nil
}

// acquire acquires the connection for a Read.
func (b *body) acquire() error {
	if b.state.CompareAndSwap(bodyOpen, bodyReading) {
		return nil
	}
	switch b.state.Load() {
	case bodyEnded:
		return b.end
	case bodyReading:
		return errConcurrentRead
	}
	return http.ErrBodyReadAfterClose
}

// release releases the connection after a Read; permanently if err is not nil.
func (b *body) release(err error) error {
	if err == nil && b.state.CompareAndSwap(bodyReading, bodyOpen) {
		return nil
	}
	whole := errors.Is(err, io.EOF)
	switch {
	case whole:
		err = io.EOF // readers compare with ==
	case err != nil:
		err = b.endReason(err)
	}
	b.end = err
	lasting := whole && b.reusable
	if b.state.CompareAndSwap(bodyReading, bodyEnded) {
		b.detach(lasting)
		return err
	}
	b.detach(false)
	b.state.Store(bodyClosed)
	if whole {
		return err // the body was complete before it was closed
	}
	return http.ErrBodyReadAfterClose
}

// endReason returns the reason for which a body ended early.
func (b *body) endReason(err error) error {
	if cause := context.Cause(b.ctx); cause != nil {
		return cause
	}
	return fmt.Errorf("reading the response from %s: %w", b.conn.addr, err)
}

// detach separates the body from its connection. The connection is returned to the pool if it is
// reusable and has no unread bytes.
func (b *body) detach(lasting bool) {
	c := b.conn
	if b.state.Load() != bodyClosing { // otherwise Close may still abort it
		b.conn = nil
	}
	if b.stopWatch() && lasting && len(c.unread()) == 0 && c.requestComplete() {
		c.t.idle.putConn(c)
		return
	}
	c.close()
}

// read is Read with the connection acquired.
func (b *body) read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if len(b.conn.unread()) == 0 && len(p) >= directRead {
			n, err := b.readDirect(p)
			if n > 0 || err != nil {
				return n, err
			}
			continue
		}
		n, err := b.readBuffered(p)
		if n > 0 || err != nil {
			return n, err
		}
		if len(b.conn.unread()) == 0 && len(p) < directRead {
			if err := b.conn.fill(); err != nil {
				return 0, b.connError(err)
			}
		}
	}
}

// readBuffered decodes the contents of the connection's buffer.
func (b *body) readBuffered(p []byte) (int, error) {
	given, taken, err := b.decode(p, b.conn.unread())
	if taken > 0 {
		b.conn.skip(taken)
	}
	return given, err
}

// readDirect reads into the caller's memory and removes the framing there.
func (b *body) readDirect(p []byte) (int, error) {
	if b.frame == frameSized && int64(len(p)) > b.remaining {
		p = p[:b.remaining]
	}
	n, err := b.conn.nc.Read(p)
	if n == 0 && err != nil {
		return 0, b.connError(err)
	}
	given, taken, err := b.decode(p, p[:n])
	if taken < n {
		b.reusable = false // the host sent bytes after the end
	}
	return given, err
}

// nextPiece waits for content and decodes it in place. taken is the number of bytes used from the
// connection's buffer.
func (b *body) nextPiece() (piece []byte, taken int, err error) {
	if len(b.conn.unread()) == 0 {
		if err := b.conn.fill(); err != nil {
			return nil, 0, b.connError(err)
		}
	}
	unread := b.conn.unread()
	given, taken, err := b.decode(unread, unread)
	return unread[:given], taken, err
}

// notEOF returns err, or nil if it is io.EOF.
func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// connError returns the error for a connection that ended or failed.
func (b *body) connError(err error) error {
	closedByUs := b.ctx.Err() != nil || b.state.Load() == bodyClosing // this side closed the connection; the response is not complete
	if errors.Is(err, io.EOF) && (b.frame != frameUntilClose || closedByUs) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// decode copies content from src to dst, which may be the same memory. It returns io.EOF when the body
// is complete.
func (b *body) decode(dst, src []byte) (given, taken int, err error) {
	switch b.frame {
	case frameChunked:
		given, taken, err = b.chunks.decode(dst, src)
		if errors.Is(err, io.EOF) {
			if failed := b.chunks.addTrailers(b.resp); failed != nil {
				err = failed
			}
		}
		return given, taken, err
	case frameSized:
		if int64(len(src)) > b.remaining {
			src = src[:b.remaining]
		}
		n := copy(dst, src)
		if b.remaining -= int64(n); b.remaining == 0 {
			err = io.EOF
		}
		return n, n, err
	}
	n := copy(dst, src)
	return n, n, nil
}
