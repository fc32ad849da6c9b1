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

// writeBufferSize is enough for a request of the usual size, so that it is sent in one piece. The
// buffer is in use only during the write.
const writeBufferSize = 8 << 10

var writerPool = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, writeBufferSize) }}

// conn is one connection. It serves one request at a time and belongs to its current user: the pool,
// RoundTrip or the body of a response. Only abort may be called from other goroutines.
type conn struct {
	connReader // received: bytes of the response have arrived
	t          *Transport
	addr       string
	abortFunc  func() // the method value of abort, allocated once

	reused    bool // it has served an earlier request
	idleSince time.Time

	// State of the current exchange.
	sent       atomic.Int64 // bytes of the request sent so far
	upload     *upload      // sends the body; nil if the caller sends it
	incomplete bool         // the host did not read the whole request
}

func newConn(t *Transport, addr string, nc net.Conn) *conn {
	c := &conn{t: t, addr: addr}
	c.open(nc, &responseBuffers)
	c.abortFunc = c.abort
	return c
}

// abort makes every blocked operation on the connection fail. It may be called from any goroutine.
func (c *conn) abort() { c.nc.Close() }

// close closes the connection and returns its buffer to the pool.
func (c *conn) close() {
	c.nc.Close()
	c.release()
}

// Write sends p to the host and counts the bytes sent.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.nc.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

// responseAndBody is an http.Response and its body in one allocation.
type responseAndBody struct {
	http.Response
	body body
}

// exchange sends a request and reads the head of its response. When it fails, the connection is
// closed, and the request's body is closed or about to be.
func (c *conn) exchange(out *outgoing) (*http.Response, error) {
	c.sent.Store(0)
	c.received, c.incomplete, c.upload = false, false, nil
	stop := func() bool { return true }
	ctx := out.req.Context()
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, c.abortFunc)
	}
	a := &responseAndBody{}
	a.Request = out.req
	err := c.sendRequest(out)
	c.incomplete = err != nil
	if wait := c.t.opts.ResponseHeaderTimeout; wait > 0 {
		_ = c.nc.SetReadDeadline(time.Now().Add(wait)) // a connection without deadlines waits until the context ends
	}
	if err == nil || c.mayHaveResponded(err) {
		if e := c.readHead(&a.Response); err == nil || e == nil {
			err = e // a response that arrived before the whole request was sent is valid
		}
	}
	if err != nil {
		stop()
		c.close()
		return nil, c.cause(err)
	}
	if c.t.opts.ResponseHeaderTimeout > 0 {
		_ = c.nc.SetReadDeadline(time.Time{}) // as above
	}
	c.attachBody(a, stop, out)
	return &a.Response, nil
}

// mayHaveResponded reports whether the host may have sent a response although it stopped reading the
// request. For example, a host that rejects a body responds and closes the connection.
func (c *conn) mayHaveResponded(err error) bool {
	var bodyErr *bodyError
	return c.sent.Load() > 0 && !errors.As(err, &bodyErr)
}

// cause returns the failure of the request's own body if there is one, because it causes the other
// errors.
func (c *conn) cause(err error) error {
	if c.upload != nil && c.upload.bodyErr() != nil {
		return c.upload.bodyErr()
	}
	return err
}

// attachBody connects a response, its body and the connection. Without a body, the connection is free
// again.
func (c *conn) attachBody(a *responseAndBody, stop func() bool, out *outgoing) {
	b := &a.body
	b.conn, b.resp, b.ctx, b.stopWatch = c, &a.Response, out.req.Context(), stop
	b.reusable = !a.Close && !out.close
	if b.frame = frameOf(&a.Response); b.frame != frameNone {
		b.remaining = a.ContentLength
		a.Body = b
		return
	}
	a.Body = http.NoBody
	b.detach(b.reusable)
}

// requestComplete reports whether the whole request was sent. An upload that is still running may
// continue for uploadGrace.
func (c *conn) requestComplete() bool {
	return !c.incomplete && (c.upload == nil || c.upload.finished())
}
