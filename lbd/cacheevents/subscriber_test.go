package cacheevents

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/internal/testkit"
	"skyserve/internal/zmtp"
)

// engineFake publishes like the engines: it numbers messages from 0, keeps the last ones, and sends
// those from a number on when a client of its ROUTER socket requests them, followed by -1.
type engineFake struct {
	t           testing.TB
	pub, router net.Listener
	publisher   *zmtp.Publisher
	stop        func()
	mu          sync.Mutex
	seq         uint64
	keep        int
	kept        [][2][]byte
	replays     int
	successor   *engineFake // the process that has replaced this one; nil if none
}

const (
	topicOfFake    = "kv-events"
	backoffOfTests = 4 * time.Millisecond
)

// startFake starts an engine.
func startFake(t testing.TB, keep int) *engineFake {
	t.Helper()
	f := &engineFake{t: t, publisher: zmtp.NewPublisher(), keep: keep}
	var err error
	if f.pub, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if f.router, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { f.publisher.Serve(ctx, f.pub) })
	wg.Go(func() { zmtp.ServeRouter(ctx, f.router, f.answer) })
	f.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(f.stop)
	return f
}

// replaceBy makes next the process at f's addresses. It listens elsewhere: any process of this machine may take a
// port that was freed.
func (f *engineFake) replaceBy(next *engineFake) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.successor = next
}

// dial connects to the current process at one of f's addresses.
func (f *engineFake) dial(ctx context.Context, network, address string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if next := f.successor; next != nil {
		address = map[string]string{f.pub.Addr().String(): next.pub.Addr().String(), f.router.Addr().String(): next.router.Addr().String()}[address]
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

func (f *engineFake) answer(frames [][]byte, send func(...[]byte) error) error {
	f.mu.Lock()
	kept := f.kept
	f.replays++
	f.mu.Unlock()
	if len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
		return fmt.Errorf("request %q", frames)
	}
	for _, m := range kept {
		if binary.BigEndian.Uint64(m[0]) >= binary.BigEndian.Uint64(frames[1]) {
			if err := send(nil, m[0], m[1]); err != nil {
				return err
			}
		}
	}
	return send(nil, []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), nil)
}

// publish publishes a message that stores the block; lost = no subscriber receives it.
func (f *engineFake) publish(block int, lost bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seq := binary.BigEndian.AppendUint64(nil, f.seq)
	payload := pack(list{1.0, list{list{"BlockStored", list{block}, null, list{block}, 1, null}}})
	f.seq++
	if f.kept = append(f.kept, [2][]byte{seq, payload}); len(f.kept) > f.keep {
		f.kept = f.kept[1:]
	}
	if !lost {
		f.publisher.Publish([]byte(topicOfFake), seq, payload)
	}
}

// raw publishes three frames as they are.
func (f *engineFake) raw(seq uint64, payload []byte) {
	f.publisher.Publish([]byte(topicOfFake), binary.BigEndian.AppendUint64(nil, seq), payload)
}

// log contains updates as text: "+", "-", "!" for a reset and the number of a stored block.
type log struct {
	mu  sync.Mutex
	all []string
}

func (l *log) handle(u Update) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case u.Connected:
		l.all = append(l.all, "+")
	case u.Disconnected:
		l.all = append(l.all, "-")
	}
	if u.Reset {
		l.all = append(l.all, "!")
	}
	if u.Batch != nil {
		for _, e := range u.Batch.Events {
			l.all = append(l.all, fmt.Sprint(uint64(e.Hashes[0])))
		}
	}
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, " ")
}

// subscribeTo starts a subscriber and waits until it is connected.
func subscribeTo(t *testing.T, f *engineFake, replay bool) *log {
	t.Helper()
	l := &log{}
	opts := Options{
		Dial:     f.dial,
		Endpoint: f.pub.Addr().String(), Topic: topicOfFake, Handle: l.handle, backoff: backoffOfTests,
	}
	if replay {
		opts.Replay = f.router.Addr().String()
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { NewSubscriber(opts).Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	testkit.Eventually(t, "a subscriber", func() bool { return f.publisher.Subscribers() == 1 })
	return l
}

func (l *log) want(t *testing.T, want string) {
	t.Helper()
	ok := func() bool { return l.String() == want }
	defer func() {
		if !ok() {
			t.Logf("updates %q, want %q", l, want)
		}
	}()
	testkit.Eventually(t, want, ok)
}

func TestSubscriberReceivesInOrder(t *testing.T) {
	f := startFake(t, 100)
	l := subscribeTo(t, f, false)
	for i := range 5 {
		f.publish(i, false)
	}
	l.want(t, "+ 0 1 2 3 4")
}

func TestEarlierMessagesAreReplayed(t *testing.T) {
	f := startFake(t, 100)
	f.publish(0, false)
	f.publish(1, false)
	l := subscribeTo(t, f, true)
	l.want(t, "+ 0 1")
	f.publish(2, false)
	l.want(t, "+ 0 1 2")
}

func TestLostMessages(t *testing.T) {
	for _, c := range []struct {
		name   string
		replay bool
		keep   int
		want   string
	}{
		{"are replayed", true, 100, "+ 0 1 2 3 4"},
		{"cannot be replayed", false, 100, "+ 0 ! 3 4"},
		{"were dropped by the engine", true, 2, "+ 0 ! 2 3 4"}, // 2 and 3 remain when 3 arrives
	} {
		t.Run(c.name, func(t *testing.T) {
			f := startFake(t, c.keep)
			l := subscribeTo(t, f, c.replay)
			f.publish(0, false)
			l.want(t, "+ 0")
			f.publish(1, true)
			f.publish(2, true)
			f.publish(3, false)
			testkit.Eventually(t, "the third message", func() bool { return strings.HasSuffix(l.String(), "3") })
			f.publish(4, false)
			l.want(t, c.want)
		})
	}
}

func TestRestartedEngine(t *testing.T) {
	for _, c := range []struct {
		name   string
		replay bool
		before int // messages of the first process
		want   string
	}{
		{"with replay", true, 3, "- + ! 100 101 102"},
		{"with replay and as many messages", true, 2, "- + ! 100 101 102"},
		{"without replay", false, 3, "- + ! 102"},
		{"without replay and as many messages", false, 2, "- + ! 102"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := startFake(t, 100)
			l := subscribeTo(t, f, c.replay)
			first := f
			before := "+"
			for i := range c.before {
				f.publish(i, false)
				before += fmt.Sprint(" ", i)
			}
			l.want(t, before)
			f.stop()
			f = startFake(t, 100)
			first.replaceBy(f)
			f.publish(100, false)
			f.publish(101, false)
			testkit.Eventually(t, "a connection", func() bool { return f.publisher.Subscribers() == 1 })
			if c.replay {
				testkit.Eventually(t, "a replay", func() bool { return strings.HasSuffix(l.String(), "101") })
			}
			f.publish(102, false)
			l.want(t, before+" "+c.want)
		})
	}
}

// A broken connection to the same process loses nothing if the engine replays.
func TestBrokenConnection(t *testing.T) {
	f := startFake(t, 100)
	var mu sync.Mutex
	var open []net.Conn
	l := &log{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s := NewSubscriber(Options{
		Endpoint: f.pub.Addr().String(), Replay: f.router.Addr().String(), Handle: l.handle, backoff: backoffOfTests,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			mu.Lock()
			defer mu.Unlock()
			if address == f.pub.Addr().String() {
				open = append(open, c)
			}
			return c, err
		},
	})
	go func() { s.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	testkit.Eventually(t, "a subscriber", func() bool { return f.publisher.Subscribers() == 1 })
	f.publish(0, false)
	l.want(t, "+ 0")
	mu.Lock()
	_ = open[0].Close()
	mu.Unlock()
	f.publish(1, true)
	l.want(t, "+ 0 - + 1")
}

// A message that is published before the subscription takes effect arrives without a later one.
func TestMessageBeforeTheSubscription(t *testing.T) {
	f := startFake(t, 100)
	l := &log{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		NewSubscriber(Options{
			Dial: (&net.Dialer{}).DialContext, Endpoint: f.pub.Addr().String(), Replay: f.router.Addr().String(),
			Handle: l.handle, settle: 20 * time.Millisecond,
		}).Run(ctx)
	}()
	defer func() { cancel(); <-done }()
	testkit.Eventually(t, "a subscriber", func() bool { return f.publisher.Subscribers() == 1 })
	f.publish(0, true)
	l.want(t, "+ 0")
}

// An invalid message resets the cache once, and the next ones are received.
func TestInvalidMessage(t *testing.T) {
	f := startFake(t, 100)
	l := subscribeTo(t, f, false)
	f.publish(0, false)
	f.raw(1, []byte("no msgpack"))
	f.raw(2, pack(list{1.0, list{list{"BlockRemoved", list{7}}}}))
	l.want(t, "+ 0 ! 7")
}

// The reason of a reset has the singular for one message.
func TestMissingMessagesAreCounted(t *testing.T) {
	s := sequence{started: true, last: 4}
	for seq, want := range map[uint64]string{6: "1 message lost before message 6", 7: "2 messages lost before message 7"} {
		if got := s.missing(seq); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
