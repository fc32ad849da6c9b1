package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"

	"skyserve/lbd/wire"
)

// Bounds of a transport, with reasons.
const (
	dialTimeout = 3 * time.Second  // half a world away with two lost packets
	idleTimeout = 90 * time.Second // longer than any gap between heartbeats
	idlePerPeer = 64               // forwarded requests arrive in bursts; each new connection costs a round trip
	keepAlive   = 15 * time.Second // detects peers that vanished

	// trackBytes is the maximum number of bytes in transit in one direction of a delayed
	// connection. 16 MiB at 110 ms is 150 MB/s, more than any forwarded request needs.
	trackBytes = 16 << 20
	// pieceBytes is the maximum number of bytes copied at once.
	pieceBytes = 32 << 10
	// lingerTime is the maximum time for which a closed connection still delivers written bytes.
	lingerTime = 5 * time.Second
)

// NewTransport returns a transport for one peer, over TLS if secure is set. With an rtt above zero
// it emulates that round-trip time on a real connection. Every byte is delayed by half of it in
// each direction, with unlimited bandwidth, and connecting takes one rtt. The emulated delay is
// added to the real one.
func NewTransport(rtt time.Duration, secure *tls.Config) http.RoundTripper {
	o := wire.Options{
		Direct: secure != nil, TLS: secure, // Direct: https without net/http's Transport
		DialTimeout: dialTimeout, KeepAlive: keepAlive, IdleTimeout: idleTimeout, MaxIdlePerHost: idlePerPeer,
		LateDials: maxInFlight, // a dial goes on after its heartbeat's timeout, and a later heartbeat uses the connection
	}
	if rtt > 0 {
		dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
		o.DialContext = distantDial(dialer.DialContext, rtt)
	}
	return wire.NewTransport(o)
}

// distantDial delays dial by rtt: the result of a dial, even a refused connection, takes a round
// trip.
func distantDial(dial wire.DialFunc, rtt time.Duration) wire.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		timer := time.NewTimer(rtt)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			if err == nil {
				conn.Close()
				err = ctx.Err()
			}
		}
		if err != nil {
			return nil, err
		}
		return newDistantConn(conn, rtt/2), nil
	}
}

// distantConn delays both directions of a connection.
type distantConn struct {
	net.Conn
	delay   time.Duration
	in, out *track
	closing chan struct{}
}

// newDistantConn returns conn with a delay in both directions. Two goroutines copy its bytes until
// it is closed.
func newDistantConn(conn net.Conn, delay time.Duration) *distantConn {
	c := &distantConn{Conn: conn, delay: delay, in: newTrack(delay), out: newTrack(delay), closing: make(chan struct{})}
	go c.carryIn()
	go c.carryOut()
	return c
}

// carryIn copies received bytes into the track from which Read reads.
func (c *distantConn) carryIn() {
	piece := make([]byte, pieceBytes)
	for {
		n, err := c.Conn.Read(piece)
		if n > 0 {
			if _, closed := c.in.write(piece[:n], false); closed != nil {
				return
			}
		}
		if err != nil {
			c.in.finish(err)
			return
		}
	}
}

// carryOut copies the bytes of Write's track to the connection, and closes it at the end.
func (c *distantConn) carryOut() {
	defer c.Conn.Close()
	piece := make([]byte, pieceBytes)
	for {
		n, end := c.out.read(piece, false)
		if end == nil {
			if _, err := c.Conn.Write(piece[:n]); err != nil {
				c.out.fail(err)
				break
			}
			continue
		}
		if !errors.Is(end, errHalfClosed) {
			return
		}
		if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		break
	}
	<-c.closing
}

// Read returns received bytes half a round trip after their arrival.
func (c *distantConn) Read(b []byte) (int, error) {
	n, err := c.in.read(b, true)
	return n, c.wrap("read", err)
}

// Write sends b half a round trip later. A later Write returns its error.
func (c *distantConn) Write(b []byte) (int, error) {
	n, err := c.out.write(b, true)
	return n, c.wrap("write", err)
}

// wrap converts a timeout, or a use after Close, to the error that package net returns for it.
func (c *distantConn) wrap(op string, err error) error {
	if !isTrackError(err) {
		return err
	}
	return &net.OpError{Op: op, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// Close closes the connection for its user immediately. Written bytes are still delivered, and the
// other side receives the end half a round trip later.
func (c *distantConn) Close() error {
	if !c.in.closeUser() {
		return c.wrap("close", net.ErrClosed)
	}
	close(c.closing)
	c.out.finish(net.ErrClosed)
	c.out.closeUser()
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // wakes carryIn
	_ = c.Conn.SetWriteDeadline(time.Now().Add(c.delay + lingerTime))
	return nil
}

// CloseWrite closes this direction: the other side reads io.EOF after the written bytes.
func (c *distantConn) CloseWrite() error {
	c.out.finish(errHalfClosed)
	return nil
}

// SetDeadline sets the deadlines of Read and Write.
func (c *distantConn) SetDeadline(t time.Time) error {
	c.in.setDeadline(t)
	c.out.setDeadline(t)
	return nil
}

// SetReadDeadline sets the deadline of Read.
func (c *distantConn) SetReadDeadline(t time.Time) error { c.in.setDeadline(t); return nil }

// SetWriteDeadline sets the deadline of Write.
func (c *distantConn) SetWriteDeadline(t time.Time) error { c.out.setDeadline(t); return nil }
