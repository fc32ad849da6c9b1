package lbd

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"skyserve/internal/testkit"
)

// link is a TCP proxy to a server that injects faults. Its address stays the same for all targets and
// faults.
type link struct {
	t    *testing.T
	addr string

	running sync.WaitGroup

	mu     sync.Mutex
	to     string
	ln     net.Listener // nil while the link is cut
	conns  map[*linkConn]struct{}
	fault  linkFault
	calm   chan struct{} // closed when a hanging link forwards bytes again; nil while they pass
	breaks int           // number of times that connections were cut or rejected
	called int           // number of requests that match fault.counts
}

// linkFault is a fault of the forwarded bytes; the zero value is no fault.
type linkFault struct {
	away     bool          // connections are reset when they arrive
	counts   string        // requests with this text are counted first
	pace     time.Duration // the delay of each piece
	bite     int           // responses end after so many bytes, as if they were complete
	greeting string        // what new connections receive instead of the server's data
	deaf     string        // requests that start with this are disconnected
}

// The ports of links are below those that systems assign: no other process may get the port of a cut
// link, because clients would connect to it.
const firstPort, ports = 11_000, 5_000

var portsTaken = os.Getpid() * 50

func newLink(t *testing.T, to string) *link {
	l := &link{t: t, to: to, conns: map[*linkConn]struct{}{}}
	for tries := 0; l.ln == nil; tries++ {
		if tries == ports {
			t.Fatal("no port is free")
		}
		portsTaken++
		l.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+portsTaken%ports))
		if ln, err := net.Listen("tcp", l.addr); err == nil {
			l.accept(ln)
		}
	}
	t.Cleanup(l.close)
	return l
}

func (l *link) url() string { return "http://" + l.addr }

// listen accepts connections at the link's address again.
func (l *link) listen() {
	var ln net.Listener
	testkit.Eventually(l.t, "the port is free", func() (ok bool) {
		var err error
		ln, err = net.Listen("tcp", l.addr)
		return err == nil
	})
	l.accept(ln)
}

// accept forwards new connections.
func (l *link) accept(ln net.Listener) {
	l.mu.Lock()
	l.ln = ln
	l.mu.Unlock()
	l.running.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			l.running.Go(func() { l.carry(c) })
		}
	})
}

// cut closes all connections and stops accepting.
func (l *link) cut() {
	l.mu.Lock()
	ln := l.ln
	l.ln = nil
	l.mu.Unlock()
	if ln != nil {
		ln.Close()
	}
	l.reset()
}

// reset resets all connections at once.
func (l *link) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.breaks++
	for s := range l.conns {
		s.snap()
	}
}

// hang stops all bytes; connections are still accepted.
func (l *link) hang() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.breaks++ // waiting clients may disconnect
	if l.calm == nil {
		l.calm = make(chan struct{})
	}
}

// setFault applies h to all later bytes.
func (l *link) setFault(h linkFault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault, l.called = h, 0
}

// closeHalf closes the write side to the servers of all connections.
func (l *link) closeHalf() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.conns {
		if c, ok := s.server.(*net.TCPConn); ok {
			_ = c.CloseWrite()
		}
	}
}

// clearFault removes the fault.
func (l *link) clearFault() {
	l.mu.Lock()
	l.fault = linkFault{}
	if l.calm != nil {
		close(l.calm)
		l.calm = nil
	}
	cut := l.ln == nil
	l.mu.Unlock()
	if cut {
		l.listen()
	}
}

// lead changes the target of new connections.
func (l *link) lead(to string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = to
}

func (l *link) broken() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.breaks
}

// callers returns the number of matching requests since counting began.
func (l *link) callers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.called
}

func (l *link) close() {
	l.clearFault()
	l.cut()
	l.running.Wait()
}

// carry forwards a connection to the server until both have ended.
func (l *link) carry(client net.Conn) {
	l.mu.Lock()
	h, to, calm := l.fault, l.to, l.calm
	s := &linkConn{line: l, client: client, gone: make(chan struct{})}
	l.conns[s] = struct{}{}
	l.mu.Unlock()
	defer l.drop(s)
	switch {
	case h.away:
		l.count(client, h.counts)
		s.snap()
		return
	case h.greeting != "":
		_, _ = client.Read(make([]byte, 4<<10)) // of the request; the rest meets a closed connection
		_, _ = io.WriteString(client, h.greeting)
		return
	case !s.wait(calm, 0):
		return
	}
	server, err := net.Dial("tcp", to)
	if err != nil || !s.meet(server) {
		s.snap()
		return
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { s.pump(server, client, false) })
	pumps.Go(func() { s.pump(client, server, true) })
	pumps.Wait()
}

// count counts a connection that is rejected if its request contains what.
func (l *link) count(client net.Conn, what string) {
	if what == "" {
		return
	}
	_ = client.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	head := make([]byte, len(what))
	if _, err := io.ReadFull(client, head); err == nil && string(head) == what {
		l.mu.Lock()
		l.called++
		l.mu.Unlock()
	}
}

func (l *link) drop(s *linkConn) {
	l.mu.Lock()
	delete(l.conns, s)
	l.mu.Unlock()
	s.client.Close()
	if s.server != nil {
		s.server.Close()
	}
}

// linkConn is one connection.
type linkConn struct {
	line   *link
	client net.Conn
	server net.Conn // nil until connected; link.mu guards the change
	once   sync.Once
	gone   chan struct{} // closed when it was reset
}

// meet sets the server's end; it returns false if the connection was already reset.
func (s *linkConn) meet(server net.Conn) bool {
	s.line.mu.Lock()
	defer s.line.mu.Unlock()
	s.server = server
	select {
	case <-s.gone:
		return false
	default:
		return true
	}
}

// snap resets both ends.
func (s *linkConn) snap() {
	s.once.Do(func() { close(s.gone) })
	for _, c := range []net.Conn{s.client, s.server} {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
			tcp.Close()
		}
	}
}

// wait waits until the link does not hang, and for the delay. It returns false if the connection
// was reset meanwhile.
func (s *linkConn) wait(calm <-chan struct{}, pace time.Duration) bool {
	if calm != nil {
		select {
		case <-calm:
		case <-s.gone:
			return false
		}
	}
	if pace > 0 {
		timer := time.NewTimer(pace)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.gone:
			return false
		}
	}
	return true
}

// pump copies bytes from one end to the other.
func (s *linkConn) pump(to, from net.Conn, down bool) {
	buf, passed, bitten := make([]byte, 16<<10), 0, false
	for {
		n, err := from.Read(buf)
		if n > 0 && !bitten {
			s.line.mu.Lock()
			h, calm := s.line.fault, s.line.calm
			s.line.mu.Unlock()
			if h.deaf != "" && !down && bytes.HasPrefix(buf[:n], []byte(h.deaf)) || !s.wait(calm, h.pace) {
				s.line.mu.Lock()
				s.snap()
				s.line.mu.Unlock()
				return
			}
			if down && h.bite > 0 {
				n, bitten = min(n, max(0, h.bite-passed)), passed+n >= h.bite
				passed += n
			}
			if _, werr := to.Write(buf[:n]); werr != nil && err == nil {
				err = werr
			}
			if bitten {
				s.hangUp(to)
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			s.hangUp(to)
			return
		default:
			s.line.mu.Lock()
			s.snap()
			s.line.mu.Unlock()
			return
		}
	}
}

// hangUp closes one direction cleanly.
func (s *linkConn) hangUp(to net.Conn) {
	if tcp, ok := to.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}
