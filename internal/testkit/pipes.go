package testkit

import (
	"context"
	"net"
	"sync"
	"syscall"
)

// Pipes is a listener with in-memory connections (net.Pipe), so that servers and clients run in a synctest bubble: a
// write blocks until the other side reads, and deadlines follow the test's clock.
type Pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

// NewPipes returns an open listener.
func NewPipes() *Pipes { return &Pipes{accepted: make(chan net.Conn), closed: make(chan struct{})} }

// Dial connects to the listener, waiting until the connection is accepted. It has the type of http.Transport.DialContext,
// and ignores network and address. It fails with ECONNREFUSED after Close.
func (p *Pipes) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.accepted <- far:
		return near, nil
	case <-p.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Accept implements net.Listener.
func (p *Pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepted:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It leaves connections open.
func (p *Pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr implements net.Listener.
func (p *Pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }
