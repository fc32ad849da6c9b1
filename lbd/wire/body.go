package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
)

// directRead is from how much room on a read goes straight to the caller's
// memory; less would cost a system call for every few bytes.
const directRead = 512

// errTwoReaders is what the second of two readers at a time gets.
var errTwoReaders = errors.New("reading an answer: another Read is under way")

// errAbandoned is what is left of an answer whose writer failed in WriteTo.
var errAbandoned = errors.New("it could not be passed on")

// Who may touch the connection of a body.
const (
	bodyOpen    int32 = iota // whoever comes next
	bodyReading              // the Read under way
	bodyClosing              // the Read under way, whose connection is cut
	bodyClosed               // nobody: Close was called
	bodyEnded                // nobody: the end or an error was reached
)

// body is what is left of an answer. Read and WriteTo belong to one goroutine
// at a time; Close may come from another one and ends a Read that waits.
type body struct {
	conn    *conn
	resp    *http.Response
	ctx     context.Context
	stop    func() bool // of the watch over ctx; false when it has struck
	state   atomic.Int32
	frame   frame
	lasting bool  // the connection may serve another request
	left    int64 // of a sized body
	chunks  chunks
	end     error // once ended
}

var _ io.WriterTo = (*body)(nil)

// Read reads what has come of the answer, waiting for it if need be. The end
// is io.EOF, which may come with the last bytes.
func (b *body) Read(p []byte) (int, error) {
	if err := b.enter(); err != nil {
		return 0, err
	}
	n, err := b.read(p)
	return n, b.leave(err)
}

// WriteTo writes the answer to w piece by piece as it comes. Between two pieces
// it holds no buffer.
func (b *body) WriteTo(w io.Writer) (written int64, err error) {
	if err := b.enter(); err != nil {
		return 0, notEOF(err)
	}
	for {
		piece, taken, err := b.next()
		if len(piece) > 0 {
			n, failed := w.Write(piece)
			written += int64(n)
			if failed != nil {
				_ = b.leave(errAbandoned) // which is what later reads get
				return written, failed
			}
		}
		b.conn.skip(taken)
		if err != nil || b.state.Load() == bodyClosing {
			return written, notEOF(b.leave(err))
		}
	}
}

// Close lets go of the answer. Unless its end was read, the connection is
// closed. It never fails.
func (b *body) Close() error {
	switch {
	case b.state.CompareAndSwap(bodyOpen, bodyClosed):
		b.detach(false)
	case b.state.CompareAndSwap(bodyReading, bodyClosing):
		b.conn.abort()
	}
	return nil
}

// enter takes the connection for a Read.
func (b *body) enter() error {
	if b.state.CompareAndSwap(bodyOpen, bodyReading) {
		return nil
	}
	switch b.state.Load() {
	case bodyEnded:
		return b.end
	case bodyReading:
		return errTwoReaders
	}
	return http.ErrBodyReadAfterClose
}

// leave gives the connection up again: for good when err says that there is
// nothing more to come.
func (b *body) leave(err error) error {
	if err == nil && b.state.CompareAndSwap(bodyReading, bodyOpen) {
		return nil
	}
	whole := errors.Is(err, io.EOF)
	switch {
	case whole:
		err = io.EOF // as readers compare it
	case err != nil:
		err = b.reason(err)
	}
	b.end = err
	lasting := whole && b.lasting
	if b.state.CompareAndSwap(bodyReading, bodyEnded) {
		b.detach(lasting)
		return err
	}
	b.detach(false)
	b.state.Store(bodyClosed)
	if whole {
		return err // it was complete before it was closed
	}
	return http.ErrBodyReadAfterClose
}

// reason is why a body breaks off.
func (b *body) reason(err error) error {
	if cause := context.Cause(b.ctx); cause != nil {
		return cause
	}
	return fmt.Errorf("reading the answer of %s: %w", b.conn.addr, err)
}

// detach parts the body from its connection, which is kept for another request
// when that is allowed and nothing is left over on it.
func (b *body) detach(lasting bool) {
	c := b.conn
	if b.state.Load() != bodyClosing { // then Close may still be about to cut it
		b.conn = nil
	}
	if b.stop() && lasting && len(c.unread()) == 0 && c.finished() {
		c.t.idle.put(c)
		return
	}
	c.close()
}

// read is Read on a connection that is held.
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
				return 0, b.cut(err)
			}
		}
	}
}

// readBuffered decodes what has arrived already.
func (b *body) readBuffered(p []byte) (int, error) {
	given, taken, err := b.decode(p, b.conn.unread())
	if taken > 0 {
		b.conn.skip(taken)
	}
	return given, err
}

// readDirect reads into the caller's memory and takes the framing out of it
// there.
func (b *body) readDirect(p []byte) (int, error) {
	if b.frame == frameSized && int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.conn.nc.Read(p)
	if n == 0 && err != nil {
		return 0, b.cut(err)
	}
	given, taken, err := b.decode(p, p[:n])
	if taken < n {
		b.lasting = false // the host goes on after the end
	}
	return given, err
}

// next waits for content and decodes it where it lies, in taken bytes of the
// connection's buffer.
func (b *body) next() (piece []byte, taken int, err error) {
	if len(b.conn.unread()) == 0 {
		if err := b.conn.fill(); err != nil {
			return nil, 0, b.cut(err)
		}
	}
	unread := b.conn.unread()
	given, taken, err := b.decode(unread, unread)
	return unread[:given], taken, err
}

// notEOF is err unless it is the end.
func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// cut is what the end of the connection, or an error of it, means here.
func (b *body) cut(err error) error {
	ours := b.ctx.Err() != nil || b.state.Load() == bodyClosing // then this end says nothing of the answer's
	if errors.Is(err, io.EOF) && (b.frame != frameUntilClose || ours) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// decode moves content from src to dst, which may be the same memory; io.EOF
// says that the body is complete.
func (b *body) decode(dst, src []byte) (given, taken int, err error) {
	switch b.frame {
	case frameChunked:
		given, taken, err = b.chunks.decode(dst, src)
		if errors.Is(err, io.EOF) {
			if failed := b.chunks.finish(b.resp); failed != nil {
				err = failed
			}
		}
		return given, taken, err
	case frameSized:
		if int64(len(src)) > b.left {
			src = src[:b.left]
		}
		n := copy(dst, src)
		if b.left -= int64(n); b.left == 0 {
			err = io.EOF
		}
		return n, n, err
	}
	n := copy(dst, src)
	return n, n, nil
}
