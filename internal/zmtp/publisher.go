package zmtp

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// Limits of a publisher.
const (
	handshakeTimeout = 5 * time.Second
	writeTimeout     = 10 * time.Second
	maxQueued        = 10_000   // messages that wait for a subscriber; further ones are dropped for it, as at the high-water mark of a PUB socket
	maxRequestBytes  = 64 << 10 // of what subscribers and clients send: topics and sequence numbers
)

// Publisher is the bound side of a PUB socket: it sends every message to each subscriber of its topic.
// A subscriber that does not read fast enough loses messages.
type Publisher struct {
	mu          sync.Mutex
	subscribers map[*subscriber]struct{}
}

type subscriber struct {
	topics [][]byte // guarded by Publisher.mu
	queue  chan [][]byte
}

// NewPublisher returns a publisher without listeners.
func NewPublisher() *Publisher { return &Publisher{subscribers: map[*subscriber]struct{}{}} }

// Serve accepts subscribers until ctx ends, then closes the listener and all connections and returns.
func (p *Publisher) Serve(ctx context.Context, l net.Listener) {
	serve(ctx, l, Pub, p.serveSubscriber)
}

// Publish sends a message to its subscribers. The frames must not change afterwards. It never blocks.
func (p *Publisher) Publish(frames ...[]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subscribers {
		for _, topic := range s.topics {
			if bytes.HasPrefix(frames[0], topic) {
				select {
				case s.queue <- frames:
				default:
				}
				break
			}
		}
	}
}

// Subscribers returns the number of subscribers with a topic.
func (p *Publisher) Subscribers() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subscribers {
		if len(s.topics) > 0 {
			n++
		}
	}
	return n
}

// serveSubscriber sends messages to one subscriber until it disconnects.
func (p *Publisher) serveSubscriber(ctx context.Context, nc net.Conn, c *Conn) {
	s := &subscriber{queue: make(chan [][]byte, maxQueued)}
	p.mu.Lock()
	p.subscribers[s] = struct{}{}
	p.mu.Unlock()
	ctx, stop := context.WithCancel(ctx)
	var sending sync.WaitGroup
	defer func() {
		p.mu.Lock()
		delete(p.subscribers, s)
		p.mu.Unlock()
		stop()
		_ = nc.Close()
		sending.Wait()
	}()
	sending.Go(func() {
		defer nc.Close() // ends the reading
		for {
			select {
			case <-ctx.Done():
				return
			case frames := <-s.queue:
				if c.Send(frames...) != nil {
					return
				}
			}
		}
	})
	for {
		frames, err := c.Receive()
		if err != nil {
			return
		}
		if len(frames) == 1 && len(frames[0]) > 0 {
			p.changeTopics(s, frames[0][0] == subscribe, frames[0][1:])
		}
	}
}

// changeTopics adds or removes a topic.
func (p *Publisher) changeTopics(s *subscriber, add bool, topic []byte) {
	const maxTopics = 64
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, t := range s.topics {
		if bytes.Equal(t, topic) {
			if !add {
				s.topics = append(s.topics[:i], s.topics[i+1:]...)
			}
			return
		}
	}
	if add && len(s.topics) < maxTopics {
		s.topics = append(s.topics, topic)
	}
}

// ServeRouter accepts clients of a ROUTER socket until ctx ends. For each message, answer is called with
// its frames and a function that sends a message back; an error of either ends the connection.
func ServeRouter(ctx context.Context, l net.Listener, answer func(frames [][]byte, send func(frames ...[]byte) error) error) {
	serve(ctx, l, Router, func(_ context.Context, _ net.Conn, c *Conn) {
		for {
			frames, err := c.Receive()
			if err != nil {
				return
			}
			if answer(frames, c.Send) != nil {
				return
			}
		}
	})
}

// timedWriter is a connection whose writes have a timeout, messages and answers to pings alike.
type timedWriter struct{ net.Conn }

func (w timedWriter) Write(p []byte) (int, error) {
	_ = w.SetWriteDeadline(time.Now().Add(writeTimeout))
	return w.Conn.Write(p)
}

// serve accepts connections, performs handshakes and serves each connection with handle.
func serve(ctx context.Context, l net.Listener, own Socket, handle func(context.Context, net.Conn, *Conn)) {
	var open sync.WaitGroup
	defer open.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		nc, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
				return
			}
			select { // for example too many open files
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		open.Go(func() {
			defer nc.Close()
			defer context.AfterFunc(ctx, func() { _ = nc.Close() })()
			_ = nc.SetDeadline(time.Now().Add(handshakeTimeout))
			c, err := Handshake(nc, own, maxRequestBytes)
			if err != nil {
				return
			}
			_ = nc.SetDeadline(time.Time{})
			c.conn = timedWriter{nc}
			handle(ctx, nc, c)
		})
	}
}
