package lbd

import (
	"bufio"
	"crypto/tls"
	"net"
	"sync"
	"time"
)

const (
	// firstByteTimeout is the timeout for the first byte of a client that has connected.
	firstByteTimeout = 10 * time.Second
	// tlsRecord is the first byte of every TLS connection: the type of a handshake record.
	tlsRecord = 0x16
)

// mixedListener serves TLS and plain HTTP on one loopback address: a connection that starts with a
// TLS handshake uses TLS, any other plain HTTP.
type mixedListener struct {
	net.Listener
	config *tls.Config

	conns     chan net.Conn
	acceptErr chan error
	done      chan struct{}
	close     sync.Once
}

func newMixedListener(ln net.Listener, config *tls.Config) *mixedListener {
	l := &mixedListener{Listener: ln, config: config, conns: make(chan net.Conn), acceptErr: make(chan error), done: make(chan struct{})}
	go l.accept()
	return l
}

// accept accepts connections until the listener is closed.
func (l *mixedListener) accept() {
	for {
		conn, err := l.Listener.Accept()
		if err == nil {
			go l.detectProtocol(conn)
			continue
		}
		select {
		case l.acceptErr <- err: // the error may be temporary: the server decides, and closes the listener or goes on
		case <-l.done:
			return
		}
	}
}

// detectProtocol passes a connection to Accept once its first byte shows the protocol.
func (l *mixedListener) detectProtocol(conn net.Conn) {
	c := &peekedConn{Conn: conn, reader: bufio.NewReader(conn)}
	_ = conn.SetReadDeadline(time.Now().Add(firstByteTimeout))
	first, err := c.reader.Peek(1)
	if err != nil {
		conn.Close()
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	var out net.Conn = c
	if first[0] == tlsRecord {
		out = tls.Server(c, l.config)
	}
	select {
	case l.conns <- out:
	case <-l.done:
		conn.Close()
	}
}

// Accept implements net.Listener.
func (l *mixedListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case err := <-l.acceptErr:
		return nil, err
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *mixedListener) Close() error {
	l.close.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// peekedConn is a connection with buffered bytes that were already read.
type peekedConn struct {
	net.Conn
	reader *bufio.Reader
}

// Read implements net.Conn.
func (c *peekedConn) Read(p []byte) (int, error) { return c.reader.Read(p) }
