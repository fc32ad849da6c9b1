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

// link is the way to a server over TCP, on which connections come to harm. Its own
// address stays the same, wherever it leads and whatever becomes of it.
type link struct {
	t    *testing.T
	addr string

	running sync.WaitGroup

	mu     sync.Mutex
	to     string
	ln     net.Listener // nil while the line is cut
	conns  map[*linkConn]struct{}
	fault  linkFault
	calm   chan struct{} // closed when a line that hangs lets bytes pass again; nil while they pass
	breaks int           // how often connections were cut or nobody listened
	called int           // how often what harm.counts names was asked for
}

// linkFault is what happens to the bytes that pass; the zero value is nothing.
type linkFault struct {
	away     bool          // connections are reset as they come
	counts   string        // those that ask for this are counted first
	pace     time.Duration // each piece takes so long
	bite     int           // answers end after so many bytes, as if they were whole
	greeting string        // what is heard on new connections instead of the server
	deaf     string        // what is asked with these first bytes breaks the connection
}

// The ports of lines are below those that systems hand out by themselves: nobody else
// is to get the one of a line that is cut, whose callers would hear him instead.
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

// listen makes the line's address answer again.
func (l *link) listen() {
	var ln net.Listener
	testkit.Eventually(l.t, "the port is free", func() (ok bool) {
		var err error
		ln, err = net.Listen("tcp", l.addr)
		return err == nil
	})
	l.accept(ln)
}

// accept carries what connects.
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

// cut ends all connections and accepts no more.
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

// reset ends all connections at once.
func (l *link) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.breaks++
	for s := range l.conns {
		s.snap()
	}
}

// hang lets no more bytes pass; connections are still accepted.
func (l *link) hang() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.breaks++ // whoever waits may go
	if l.calm == nil {
		l.calm = make(chan struct{})
	}
}

// setFault has h happen to what passes from now on.
func (l *link) setFault(h linkFault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault, l.called = h, 0
}

// closeHalf tells the servers of all connections that nothing more will be asked.
func (l *link) closeHalf() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.conns {
		if c, ok := s.server.(*net.TCPConn); ok {
			_ = c.CloseWrite()
		}
	}
}

// clearFault makes the line as it was.
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

// lead makes new connections go to another address.
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

// callers is how many asked for what is counted, since that began.
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

// carry joins a connection to one of the server's until both have ended.
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
		_, _ = client.Read(make([]byte, 4<<10)) // of the request; what follows of it meets a closed door
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

// count counts a connection that is to be turned away if it asks for what.
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
	server net.Conn // nil before it is there; line.mu guards the change
	once   sync.Once
	gone   chan struct{} // closed when it was reset
}

// meet notes the server's end; false when the strand is reset already.
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

// wait lets bytes pass when the line does not hang, and after a delay; false when
// the strand was reset meanwhile.
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

// pump carries bytes from one end to the other.
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

// hangUp ends one direction in good order.
func (s *linkConn) hangUp(to net.Conn) {
	if tcp, ok := to.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}
