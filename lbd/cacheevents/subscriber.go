package cacheevents

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"time"

	"skyserve/internal/zmtp"
)

// Limits, with reasons.
const (
	// maxMessageBytes is the limit of a message: a step that stores 1 million tokens has 5 MB.
	maxMessageBytes  = 16 << 20
	handshakeTimeout = 5 * time.Second
	// replayTimeout bounds a replay: engines answer between two messages, with 10,000 messages at most.
	replayTimeout = 10 * time.Second
	// settleTime is the time after which a subscription is surely in effect.
	settleTime = time.Second
	minBackoff = 250 * time.Millisecond
	maxBackoff = 10 * time.Second // an engine needs longer than that to start
	// maxReplay is the number of messages of a replay after which it is ended, ten times what engines keep.
	maxReplay = 100_000
)

// Options configure a Subscriber. Dial, Endpoint and Handle are required.
type Options struct {
	// Dial connects to an address of the engine, like net.Dialer.DialContext.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Endpoint is the address, HOST:PORT, at which the engine publishes.
	Endpoint string
	// Replay is the address at which the engine sends earlier messages again; empty = it does not.
	Replay string
	// Topic selects messages whose topic begins with it; empty = all.
	Topic string
	// Handle receives the updates in order, from one goroutine. The next message is read when it
	// returns, so that memory is bounded by one message.
	Handle func(Update)
	// Logger receives changes of the connection; nil = no logs.
	Logger *slog.Logger

	backoff time.Duration // the first one; 0 = minBackoff
	settle  time.Duration // 0 = settleTime
}

// Update is what a Subscriber has learned about an engine's cache.
type Update struct {
	// Reset: everything that is known about the cache must be forgotten before Batch is applied,
	// because of Reason.
	Reset  bool
	Reason string
	// Connected and Disconnected: the connection was established, or was lost because of Reason. While
	// it is lost, the cache may change; a later update has Reset if the changes are unknown.
	Connected    bool
	Disconnected bool
	// Batch is the next message of the engine; nil = none.
	Batch *Batch
	// Replayed: the message was sent again on request.
	Replayed bool
}

// Subscriber receives the cache events of one engine, or of one data-parallel rank of it.
type Subscriber struct {
	opts Options
	seq  sequence
	// unverified: the connection is new, so the next message may be of another process.
	unverified bool
}

// NewSubscriber returns a subscriber that is not connected.
func NewSubscriber(opts Options) *Subscriber {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	opts.backoff = cmp.Or(opts.backoff, minBackoff)
	opts.settle = cmp.Or(opts.settle, settleTime)
	return &Subscriber{opts: opts}
}

// Run receives events until ctx ends. It connects again with backoff whenever the connection breaks.
func (s *Subscriber) Run(ctx context.Context) {
	backoff := s.opts.backoff
	for ctx.Err() == nil {
		received, err := s.receive(ctx)
		if ctx.Err() != nil {
			return
		}
		s.opts.Logger.Debug("cache events: disconnected", "endpoint", s.opts.Endpoint, "error", err)
		if received {
			backoff = s.opts.backoff
		}
		// Jitter spreads the balancers that lost the same engine.
		pause := time.NewTimer(backoff/2 + rand.N(backoff/2))
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
		backoff = min(2*backoff, maxBackoff)
	}
}

// receive connects and handles messages until the connection breaks. received reports whether it was
// established.
func (s *Subscriber) receive(ctx context.Context) (received bool, err error) {
	c, closeConn, err := s.connect(ctx, s.opts.Endpoint, zmtp.Sub)
	if err != nil {
		return false, err
	}
	defer closeConn()
	if err := c.Subscribe(s.opts.Topic); err != nil {
		return false, fmt.Errorf("subscribing: %w", err)
	}
	s.opts.Handle(Update{Connected: true})
	defer func() {
		s.opts.Handle(Update{Disconnected: true, Reason: err.Error()})
	}()
	s.unverified = true
	if err := s.replay(ctx); err != nil {
		s.opts.Logger.Debug("cache events: no replay", "endpoint", s.opts.Replay, "error", err)
	}
	return true, s.handleMessages(ctx, c)
}

// handleMessages handles messages until the connection breaks. An engine does not confirm a
// subscription, and a message between the replay and the subscription would go unnoticed until the next
// one; so a replay is requested once more after a while.
func (s *Subscriber) handleMessages(ctx context.Context, c *zmtp.Conn) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	messages, failed := make(chan [][]byte), make(chan error, 1)
	go func() { // ends with the connection
		for {
			frames, err := c.Receive()
			if err != nil {
				failed <- err
				return
			}
			select {
			case messages <- frames:
			case <-ctx.Done():
				return
			}
		}
	}()
	again := time.NewTimer(s.opts.settle)
	defer again.Stop()
	for {
		select {
		case frames := <-messages:
			if err := s.handleMessage(ctx, frames); err != nil {
				return err
			}
		case <-again.C:
			_ = s.replay(ctx) // without one, the next message shows what is missing
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return fmt.Errorf("receiving: %w", err)
		}
	}
}

// connect dials and performs the handshake. The connection is closed when ctx ends.
func (s *Subscriber) connect(ctx context.Context, address string, socket zmtp.Socket) (c *zmtp.Conn, closeConn func(), err error) {
	dialCtx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	nc, err := s.opts.Dial(dialCtx, "tcp", address)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	closeConn = func() { stop(); _ = nc.Close() }
	_ = nc.SetDeadline(time.Now().Add(handshakeTimeout))
	if c, err = zmtp.Handshake(nc, socket, maxMessageBytes); err != nil {
		closeConn()
		return nil, nil, err
	}
	deadline := time.Time{} // an idle engine sends nothing
	if socket == zmtp.Dealer {
		deadline = time.Now().Add(replayTimeout)
	}
	_ = nc.SetDeadline(deadline)
	return c, closeConn, nil
}

// handleMessage handles a message of three frames: topic, number and payload.
func (s *Subscriber) handleMessage(ctx context.Context, frames [][]byte) error {
	if len(frames) != 3 {
		return fmt.Errorf("a message must have 3 frames, got %d", len(frames))
	}
	seq, err := sequenceOf(frames[1])
	if err != nil {
		return err
	}
	if s.seq.place(seq) == gap && s.replay(ctx) == nil && s.seq.place(seq) == duplicate {
		return nil // it was replayed too
	}
	return s.deliver(seq, frames[2], false)
}

// deliver passes a message on, with a reset if the sequence is broken.
func (s *Subscriber) deliver(seq uint64, payload []byte, replayed bool) error {
	reset, reason := false, ""
	switch s.seq.place(seq) {
	case next:
		if s.unverified && s.seq.started {
			// A restarted engine may have reached this number by now.
			reset, reason = true, "the connection was lost and the engine cannot replay"
		}
	case duplicate:
		if !s.unverified || s.seq.isLast(seq, payload) {
			s.unverified = false
			return nil
		}
		reset, reason = true, "the engine was restarted"
	case gap:
		reset, reason = true, s.seq.missing(seq)
	}
	s.unverified = false
	batch, err := Decode(payload)
	if err != nil {
		// Its changes are unknown. The number is accepted, so that the next message does not fail again.
		s.seq.accept(seq, payload)
		s.opts.Handle(Update{Reset: true, Reason: err.Error()})
		s.opts.Logger.Warn("cache events: invalid message", "endpoint", s.opts.Endpoint, "error", err)
		return nil
	}
	s.seq.accept(seq, payload)
	s.opts.Handle(Update{Reset: reset, Reason: reason, Batch: &batch, Replayed: replayed})
	return nil
}

// endOfReplay is the number of the message that ends a replay: -1.
const endOfReplay = math.MaxUint64

var errNoReplay = errors.New("the engine has no replay address")

// replay requests the messages from the last one on, and delivers them. If the engine's message with
// that number is another one, the engine was restarted, and all its messages are requested.
func (s *Subscriber) replay(ctx context.Context) error {
	if s.opts.Replay == "" {
		return errNoReplay
	}
	from := uint64(0)
	if s.seq.started {
		from = s.seq.last
	}
	same, err := s.replayFrom(ctx, from)
	if err == nil && !same {
		s.seq = sequence{}
		s.opts.Handle(Update{Reset: true, Reason: "the engine was restarted or has dropped the last message"})
		_, err = s.replayFrom(ctx, 0)
	}
	if err == nil {
		s.unverified = false
	}
	return err
}

// replayFrom requests the messages from a number on and delivers them. If the last message is known, the
// first one must be equal to it; otherwise nothing is delivered, and same is false.
func (s *Subscriber) replayFrom(ctx context.Context, from uint64) (same bool, err error) {
	c, closeConn, err := s.connect(ctx, s.opts.Replay, zmtp.Dealer)
	if err != nil {
		return false, err
	}
	defer closeConn()
	// The empty frame separates the address, as a REQ socket does.
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return false, fmt.Errorf("requesting a replay: %w", err)
	}
	known := s.seq.started
	for i := 0; ; i++ {
		frames, err := c.Receive()
		if err != nil {
			return same, fmt.Errorf("receiving a replay: %w", err)
		}
		if len(frames) > 0 && len(frames[0]) == 0 {
			frames = frames[1:]
		}
		if len(frames) != 2 {
			return same, fmt.Errorf("a replayed message must have 2 frames, got %d", len(frames))
		}
		seq, err := sequenceOf(frames[0])
		switch {
		case err != nil:
			return same, err
		case seq == endOfReplay:
			return same || !known, nil
		case i >= maxReplay:
			return same, fmt.Errorf("a replay has more than %d messages", maxReplay)
		case i == 0 && known && !s.seq.isLast(seq, frames[1]):
			return false, nil
		}
		same = true
		if err := s.deliver(seq, frames[1], true); err != nil {
			return same, err
		}
	}
}
