package wire

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// readBuffer holds a head and the first events that come with it.
	readBuffer = 4 << 10
	// writeBuffer holds a request of the usual size, so that it leaves in one
	// piece; it is held for no longer than the write takes.
	writeBuffer = 8 << 10
)

// buffer is memory for what has arrived and was not read yet.
type buffer struct{ b []byte }

var (
	buffers = sync.Pool{New: func() any { return &buffer{make([]byte, readBuffer)} }}
	writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, writeBuffer) }}
)

// conn is one connection. It serves one request at a time and belongs to
// whoever has it: the pool, RoundTrip or an answer's body. Only abort may come
// from elsewhere.
type conn struct {
	t    *Transport
	addr string
	nc   net.Conn
	raw  syscall.RawConn // nil where nobody can say whether something has arrived
	look func(fd uintptr) bool
	pull func(fd uintptr) bool
	kill func() // abort, made once
	got  int    // by pull and look
	fail error  // as got

	buf  *buffer // nil while nothing is in it
	r, w int     // buf.b[r:w] has arrived and was not read

	reused    bool // it has served a request before
	idleSince time.Time

	// Of the exchange at hand.
	sent     atomic.Int64 // bytes of the request
	answered bool         // something of the answer has come
	upload   *upload      // who sends the body; nil when the caller does
	short    bool         // the host did not take all of the request
}

func newConn(t *Transport, addr string, nc net.Conn) *conn {
	c := &conn{t: t, addr: addr, nc: nc, raw: rawOf(nc)}
	c.kill = c.abort
	if c.raw != nil {
		c.look, c.pull = c.lookOnce, c.pullWhenReady
	}
	return c
}

// abort makes whatever blocks on the connection fail. It may be called from any
// goroutine.
func (c *conn) abort() { c.nc.Close() }

// close ends the connection and gives its buffer back.
func (c *conn) close() {
	c.nc.Close()
	c.release()
}

// release gives the buffer back.
func (c *conn) release() {
	if c.buf == nil {
		return
	}
	if len(c.buf.b) == readBuffer { // a larger one is rare and would pin memory
		buffers.Put(c.buf)
	}
	c.buf, c.r, c.w = nil, 0, 0
}

// unread is what has arrived and was not read.
func (c *conn) unread() []byte {
	if c.buf == nil {
		return nil
	}
	return c.buf.b[c.r:c.w]
}

// skip marks n bytes as read; an empty buffer is given back.
func (c *conn) skip(n int) {
	if c.r += n; c.r == c.w {
		c.release()
	}
}

// Write sends to the host and counts what it took.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.nc.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

// quiet says whether an idle connection is still open and nothing has come that
// nobody asked for. Where that cannot be asked it hopes for the best.
func (c *conn) quiet() bool {
	if c.raw == nil {
		return true
	}
	return c.raw.Read(c.look) == nil && errors.Is(c.fail, errNothing)
}

// fill waits for what arrives next and adds it to the buffer, which must have
// room if there is one. While it waits an empty buffer is not held.
func (c *conn) fill() error {
	if c.raw == nil {
		c.hold()
		n, err := c.nc.Read(c.buf.b[c.w:])
		return c.took(n, err)
	}
	c.got, c.fail = 0, nil
	if err := c.raw.Read(c.pull); err != nil {
		return c.took(0, err)
	}
	return c.took(c.got, c.fail)
}

// hold takes a buffer unless there is one.
func (c *conn) hold() {
	if c.buf == nil {
		c.buf = buffers.Get().(*buffer)
	}
}

// took accounts for n bytes that were read into the buffer, which may be none.
// An error that came with bytes comes again without them.
func (c *conn) took(n int, err error) error {
	c.w += n
	if n > 0 {
		c.answered = true
		return nil
	}
	if c.r == c.w {
		c.release()
	}
	return err
}

// grow makes room in a buffer that is full.
func (c *conn) grow() {
	if c.w < len(c.buf.b) {
		return
	}
	held := c.w - c.r
	if c.r > 0 {
		copy(c.buf.b, c.unread())
	} else {
		larger := &buffer{make([]byte, 2*len(c.buf.b))}
		copy(larger.b, c.unread())
		c.release()
		c.buf = larger
	}
	c.r, c.w = 0, held
}

// answer is an http.Response with its body: one piece of memory.
type answer struct {
	http.Response
	body body
}

// exchange sends a request and reads its answer's head. When it fails the
// connection is closed, and the request's body closed or about to be.
func (c *conn) exchange(out *outgoing) (*http.Response, error) {
	c.sent.Store(0)
	c.answered, c.short, c.upload = false, false, nil
	stop := func() bool { return true }
	ctx := out.req.Context()
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, c.kill)
	}
	a := &answer{}
	a.Request = out.req
	err := c.send(out)
	c.short = err != nil
	if wait := c.t.opts.ResponseHeaderTimeout; wait > 0 {
		_ = c.nc.SetReadDeadline(time.Now().Add(wait)) // a connection without deadlines waits as long as the context
	}
	if err == nil || c.mayHaveAnswered(err) {
		if e := c.readHead(&a.Response); err == nil || e == nil {
			err = e // an answer that came before the request was taken counts
		}
	}
	if err != nil {
		stop()
		c.close()
		return nil, c.reason(err)
	}
	if c.t.opts.ResponseHeaderTimeout > 0 {
		_ = c.nc.SetReadDeadline(time.Time{}) // as above
	}
	c.attach(a, stop, out)
	return &a.Response, nil
}

// mayHaveAnswered says whether a host that takes no more of a request may have
// said why: one that refuses a body answers and hangs up.
func (c *conn) mayHaveAnswered(err error) bool {
	var own *bodyError
	return c.sent.Load() > 0 && !errors.As(err, &own)
}

// reason prefers the failure of the request's own body to what followed from it.
func (c *conn) reason(err error) error {
	if c.upload != nil && c.upload.failed() != nil {
		return c.upload.failed()
	}
	return err
}

// attach gives an answer its body, and the connection to the body; where there
// is none the connection is free again.
func (c *conn) attach(a *answer, stop func() bool, out *outgoing) {
	b := &a.body
	b.conn, b.resp, b.ctx, b.stop = c, &a.Response, out.req.Context(), stop
	b.lasting = !a.Close && !out.close
	if b.frame = frameOf(&a.Response); b.frame != frameNone {
		b.left = a.ContentLength
		a.Body = b
		return
	}
	a.Body = http.NoBody
	b.detach(b.lasting)
}

// finished says whether the request was sent whole. One that is still being
// sent though it was answered gets a moment to end.
func (c *conn) finished() bool {
	return !c.short && (c.upload == nil || c.upload.wait())
}
