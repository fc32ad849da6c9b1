package testkit

import (
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// Proxy forwards TCP connections over a network. Opening a connection takes one round trip, and everything sent, also
// the end of a connection, half of one. Nothing is lost while the network is cut: it arrives later, as by TCP.
type Proxy struct {
	l        net.Listener
	target   string
	to       string
	identify func(client, proxy net.Addr) string
	network  *Network

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]bool
	open   sync.WaitGroup
}

// NewProxy returns a proxy on an address that forwards to target until the test ends. to is the name of target's end, and
// identify returns that of a client by the addresses
// of its connection.
func NewProxy(t testing.TB, listen, target, to string, identify func(client, proxy net.Addr) string, network *Network) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{l: l, target: target, to: to, identify: identify, network: network, conns: map[net.Conn]bool{}}
	p.open.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr returns the address on which the proxy listens.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// close closes all connections. Those that a cut holds back end when it does.
func (p *Proxy) close() {
	p.l.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.open.Wait()
}

func (p *Proxy) accept() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		if p.track(in) {
			p.open.Go(func() { p.serve(in) })
		}
	}
}

// track closes a connection with the proxy, and reports whether the proxy is still open.
func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return false
	}
	p.conns[c] = true
	return true
}

func (p *Proxy) end(c net.Conn) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// serve forwards a connection in both directions.
func (p *Proxy) serve(in net.Conn) {
	defer p.end(in)
	from := p.identify(in.RemoteAddr(), in.LocalAddr())
	rtt := p.network.rtt(from, p.to)
	wait := func() { p.network.wait(from, p.to) }
	delay := func() time.Duration { return p.network.rtt(from, p.to) / 2 }
	opened := time.Now().Add(rtt)
	time.Sleep(rtt / 2)
	wait()
	out, err := net.Dial("tcp", p.target)
	if err != nil { // the client learns it as if its connection was refused
		time.Sleep(time.Until(opened))
		wait()
		return
	}
	defer p.end(out)
	if !p.track(out) {
		return
	}
	var directions sync.WaitGroup
	directions.Go(func() { forward(in, out, opened, delay, wait) })
	directions.Go(func() { forward(out, in, opened.Add(-rtt/2), delay, wait) })
	directions.Wait()
}

// forward copies what is received after begin, or had to be sent then, until the sender ends the connection.
func forward(from, to net.Conn, begin time.Time, delay func() time.Duration, wait func()) {
	type chunk struct {
		data []byte
		due  time.Time
	}
	chunks := make(chan chunk, 1<<12)
	var writer sync.WaitGroup
	writer.Go(func() {
		failed := false
		for c := range chunks {
			if failed {
				continue
			}
			time.Sleep(time.Until(c.due))
			wait()
			if c.data == nil {
				_ = to.(*net.TCPConn).CloseWrite() // it may have ended
			} else if _, err := to.Write(c.data); err != nil {
				failed = true
				from.Close() // ends the reads
			}
		}
	})
	defer writer.Wait()
	defer close(chunks)
	for buf := make([]byte, 64<<10); ; {
		n, err := from.Read(buf)
		sent := time.Now()
		if sent.Before(begin) {
			sent = begin
		}
		if n > 0 {
			chunks <- chunk{slices.Clone(buf[:n]), sent.Add(delay())}
		}
		if err != nil {
			chunks <- chunk{due: sent.Add(delay())}
			return
		}
	}
}

// Network is the network between the clients of proxies and their targets, by the names of both ends. The zero value has
// no delays.
type Network struct {
	// Delay returns the current round-trip time between two ends; nil = none.
	Delay func(from, to string) time.Duration

	mu    sync.Mutex
	isCut func(from, to string) bool
	ended chan struct{} // closed when the cut ends
}

// rtt returns the round-trip time between two ends.
func (n *Network) rtt(from, to string) time.Duration {
	if n.Delay == nil {
		return 0
	}
	return n.Delay(from, to)
}

// wait returns when packets pass between two ends: at once, unless the network between them is cut.
func (n *Network) wait(from, to string) {
	for {
		n.mu.Lock()
		isCut, ended := n.isCut, n.ended
		n.mu.Unlock()
		if isCut == nil || !isCut(from, to) {
			return
		}
		<-ended
	}
}

// Cut holds everything back between the ends for which isCut returns true, until the result is called.
func (n *Network) Cut(isCut func(from, to string) bool) (repair func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended != nil {
		close(n.ended)
	}
	ended := make(chan struct{})
	n.isCut, n.ended = isCut, ended
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.ended == ended {
			close(ended)
			n.isCut, n.ended = nil, nil
		}
	}
}
