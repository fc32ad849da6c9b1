package wire

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// writeBuffer holds a request of the usual size, so that it leaves in one piece; it
// is held for no longer than the write takes.
const writeBuffer = 8 << 10

var writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, writeBuffer) }}

// conn is one connection. It serves one request at a time and belongs to
// whoever has it: the pool, RoundTrip or an answer's body. Only abort may come
// from elsewhere.
type conn struct {
	connReader // came: something of the answer has
	t          *Transport
	addr       string
	kill       func() // abort, made once

	reused    bool // it has served a request before
	idleSince time.Time

	// Of the exchange at hand.
	sent   atomic.Int64 // bytes of the request
	upload *upload      // who sends the body; nil when the caller does
	short  bool         // the host did not take all of the request
}

func newConn(t *Transport, addr string, nc net.Conn) *conn {
	c := &conn{t: t, addr: addr}
	c.open(nc, &answerBuffers)
	c.kill = c.abort
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

// Write sends to the host and counts what it took.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.nc.Write(p)
	c.sent.Add(int64(n))
	return n, err
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
	c.came, c.short, c.upload = false, false, nil
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
