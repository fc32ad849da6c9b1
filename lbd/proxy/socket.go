package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"skyserve/lbd/buffer"
	"skyserve/lbd/core"
)

// closeGrace is the time after which the balancer closes a WebSocket that it ends: until then, the rest of the
// engine's frame may arrive, and the client may respond to the close frame.
const closeGrace = time.Second

// socket connects a client's WebSocket with that of a target. It forwards bytes unchanged. Its frames are
// followed only so that the balancer can add a close frame between two of them.
type socket struct {
	client  net.Conn
	unread  io.Reader // of the client, with the bytes that were read with its request
	engine  io.ReadWriteCloser
	stall   time.Duration // Limits.StallTimeout
	idle    *time.Timer
	idleFor time.Duration

	mu       sync.Mutex // guards the following fields, and writes to the client
	frames   socketFrames
	closing  []byte // the close frame to send between two frames; nil = none
	sent     bool   // it was sent
	hardStop *time.Timer
}

// errSocketClosed ends the forwarding of an engine's frames after a close frame of the balancer.
var errSocketClosed = errors.New("the balancer closed the connection")

// relay forwards bytes in both directions until one of them ends, and closes both connections. engineEnded
// reports that the engine's direction ended first, and clean that the engine or the balancer sent a close
// frame.
func (s *socket) relay() (engineEnded, clean bool) {
	s.idle = time.AfterFunc(s.idleFor, func() { s.shutDown(closeIdle, "idle") })
	ended := make(chan struct{})
	clientFirst := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.copyTo(s.engine.Write, s.unread) // an error ends this direction like its end
		close(clientFirst)
		s.engine.Close()
	}()
	err := s.copyTo(s.forward, s.engine)
	select {
	case <-clientFirst:
	default:
		engineEnded = true
	}
	s.mu.Lock()
	clean = s.frames.closed || s.closing != nil
	s.mu.Unlock()
	if errors.Is(err, errSocketClosed) {
		<-ended // at the latest after closeGrace
	} else if engineEnded && !clean {
		s.shutDown(closeFailed, "the replica failed")
	}
	s.idle.Stop()
	s.closeBoth()
	<-ended
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hardStop != nil {
		s.hardStop.Stop()
	}
	return engineEnded, clean
}

// copyTo copies until the source ends or an error occurs.
func (s *socket) copyTo(write func([]byte) (int, error), from io.Reader) error {
	buf := buffer.Get(buffer.UsualSize)
	defer buf.Release()
	for {
		n, err := from.Read(buf.B[:cap(buf.B)])
		if n > 0 {
			s.idle.Reset(s.idleFor)
			if _, err := write(buf.B[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// forward sends bytes of the engine to the client, up to the balancer's close frame.
func (s *socket) forward(b []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing == nil {
		s.frames.pass(b)
		return s.writeClient(b)
	}
	if s.sent {
		return 0, errSocketClosed
	}
	n = s.frames.nextBoundary(b)
	if _, err := s.writeClient(b[:n]); err != nil {
		return 0, err
	}
	if s.sendClose() {
		return n, errSocketClosed
	}
	return n, nil
}

// writeClient writes to the client. It fails if the client does not read for Limits.StallTimeout. The lock must
// be held.
func (s *socket) writeClient(b []byte) (int, error) {
	_ = s.client.SetWriteDeadline(time.Now().Add(s.stall)) // it fails only if the connection has failed
	return s.client.Write(b)
}

// shutDown sends a close frame to the client, as soon as no frame is in progress, and closes both
// connections when the client has responded, at the latest after closeGrace.
func (s *socket) shutDown(code uint16, reason string) {
	hardStop := time.AfterFunc(closeGrace, s.closeBoth)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing != nil || s.frames.closed {
		hardStop.Stop()
		return
	}
	s.hardStop, s.closing = hardStop, closeFrame(code, reason)
	s.sendClose()
}

// sendClose sends the close frame if no frame is in progress, and reports whether it was sent; the lock
// must be held.
func (s *socket) sendClose() bool {
	if s.frames.atBoundary() && !s.sent {
		s.sent = true
		_, _ = s.writeClient(s.closing) // an error means that the client disconnected
	}
	return s.sent
}

// closeBoth closes both connections.
func (s *socket) closeBoth() {
	s.client.Close()
	s.engine.Close()
}

// relaySocket forwards a WebSocket that the target has accepted, until it ends.
func (x *exchange) relaySocket(ctx context.Context, resp *http.Response, watch *time.Timer) (ended bool) {
	watch.Stop()
	engine, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		x.reportFailure(&failure{cause: x.current.target + " did not upgrade its connection", kind: failureErrorResponse})
		return false
	}
	client, buffered, err := x.ctl.Hijack()
	if err != nil {
		x.endCancelled()
		return true
	}
	x.headerSent = true
	_ = client.SetDeadline(time.Time{}) // removes the deadlines of the request
	// The rest is read from the connection itself: the server's reader would cancel ctx at its end.
	unread, _ := buffered.Reader.Peek(buffered.Reader.Buffered())
	s := &socket{client: client, unread: io.MultiReader(bytes.NewReader(unread), client), engine: engine, stall: x.rt.limits.StallTimeout, idleFor: x.rt.limits.SocketIdleTimeout}
	if _, err := s.writeClient(x.upgradeHead(resp)); err != nil {
		s.closeBoth()
		x.endCancelled()
		return true
	}
	x.updateTrust(http.StatusOK)
	x.rt.stepFor(&x.inFlight, core.Event{Kind: core.EventFirstToken}, nil)
	defer x.rt.sockets.add(s)()
	stop := context.AfterFunc(ctx, func() { s.shutDown(closeFailed, "the replica failed") })
	defer stop()
	engineEnded, clean := s.relay()
	switch {
	case errors.Is(context.Cause(ctx), errAborted):
		x.endCancelled()
	case ctx.Err() != nil:
		x.endBroken(resp.StatusCode, x.failureFromError(ctx, io.ErrUnexpectedEOF))
	case engineEnded && !clean:
		x.endBroken(resp.StatusCode, &failure{cause: x.current.target + " closed the connection early", kind: failureDisconnected, broken: true})
	default:
		x.endServed(resp.StatusCode, true)
	}
	return true
}

// upgradeHead returns the head of the response that accepts the client's WebSocket.
func (x *exchange) upgradeHead(resp *http.Response) []byte {
	h := x.w.Header()
	copyHeaders(h, resp.Header)
	x.setResponseHeaders(h, resp.Header)
	x.setLimitHeaders(h)
	h.Set("Connection", "Upgrade")
	h.Set("Upgrade", "websocket")
	if h.Get(headerProtocol) == "" && offersProtocol(x.req.Header, protocolRealtime) {
		h.Set(headerProtocol, protocolRealtime) // browsers reject a response that chooses none
	}
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = h.Write(&head) // a buffer cannot fail
	head.WriteString("\r\n")
	return head.Bytes()
}

// sockets are the WebSockets in progress.
type sockets struct {
	mu  sync.Mutex
	all map[*socket]struct{}
}

// add adds a socket and returns a function that removes it.
func (l *sockets) add(s *socket) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[*socket]struct{}{}
	}
	l.all[s] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.all, s)
	}
}

// shutDown closes all sockets because the balancer shuts down. It reports whether there were any.
func (l *sockets) shutDown() (found bool) {
	l.mu.Lock()
	all := make([]*socket, 0, len(l.all))
	for s := range l.all {
		all = append(all, s)
	}
	l.mu.Unlock()
	for _, s := range all {
		go s.shutDown(closeRestart, "the balancer shuts down") // a client that does not read must not delay the others
	}
	return len(all) > 0
}
