package zmtp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/testkit"
	"skyserve/internal/zmtp"
)

// What sockets of libzmq 4.3.4 sent, captured on a TCP connection.
const (
	greetingOfLibzmq = "ff00000000000000017f03014e554c4c000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
	// A PUB socket: READY, then the message "kv-events", 7, "abc".
	pubOfLibzmq = greetingOfLibzmq + "04190552454144590b536f636b65742d5479706500000003505542" + "01096b762d6576656e7473" + "01080000000000000007" + "0003616263"
	// A SUB socket: READY, then its subscription to "kv".
	subOfLibzmq = greetingOfLibzmq + "04190552454144590b536f636b65742d5479706500000003535542" + "0003016b76"
	// A REQ socket: READY, then the request 5.
	reqOfLibzmq = greetingOfLibzmq + "04260552454144590b536f636b65742d5479706500000003524551084964656e7469747900000000" + "0100" + "00080000000000000005"
)

func fromHex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// peerThatSends returns a connection to a peer that sends these bytes, and closes the connection once
// it has also received the greeting and, if it sent its own READY, the READY of this side.
func peerThatSends(t *testing.T, sent []byte) net.Conn {
	t.Helper()
	const greeting, ready = 64, 40
	here, there := net.Pipe()
	t.Cleanup(func() { _ = here.Close() })
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = there.Write(sent)
	}()
	go func() {
		expected := greeting
		if len(sent) > greeting {
			expected += ready
		}
		for b := make([]byte, 1<<10); expected > 0; { // one read for each write
			n, err := there.Read(b)
			if expected -= n; err != nil {
				break
			}
		}
		go func() { _, _ = io.Copy(io.Discard, there) }()
		<-written
		_ = there.Close()
	}()
	return here
}

func TestReceiveFromLibzmq(t *testing.T) {
	for _, c := range []struct {
		name, sent string
		own        zmtp.Socket
		want       []string
	}{
		{"PUB", pubOfLibzmq, zmtp.Sub, []string{"kv-events", "\x00\x00\x00\x00\x00\x00\x00\x07", "abc"}},
		{"SUB", subOfLibzmq, zmtp.Pub, []string{"\x01kv"}},
		{"REQ", reqOfLibzmq, zmtp.Router, []string{"", "\x00\x00\x00\x00\x00\x00\x00\x05"}},
	} {
		conn, err := zmtp.Handshake(peerThatSends(t, fromHex(t, c.sent)), c.own, 1<<10)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		frames, err := conn.Receive()
		if err != nil || string(bytes.Join(frames, []byte("|"))) != strings.Join(c.want, "|") {
			t.Errorf("%s: %q, %v", c.name, frames, err)
		}
		if _, err := conn.Receive(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: after the last message: %v, want EOF", c.name, err)
		}
	}
}

func TestHandshakeRejects(t *testing.T) {
	ready := "04190552454144590b536f636b65742d5479706500000003505542"
	plain := strings.Replace(greetingOfLibzmq, "4e554c4c00", "504c41494e", 1)
	for name, c := range map[string]struct{ sent, want string }{
		"HTTP":             {hex.EncodeToString([]byte("HTTP/1.1 400 Bad Request\r\n\r\n" + strings.Repeat(" ", 64))), "does not speak ZeroMQ"},
		"end":              {greetingOfLibzmq[:40], "reading the greeting: unexpected EOF"},
		"version 2":        {strings.Replace(greetingOfLibzmq, "7f03", "7f02", 1) + "0000" + ready, "version 3 of the protocol or later, got 2"},
		"mechanism":        {plain + ready, `must be NULL, got "PLAIN"`},
		"socket type":      {greetingOfLibzmq + strings.Replace(ready, "505542", "535542", 1), `one of type "SUB"`},
		"no socket type":   {greetingOfLibzmq + "0406055245414459", "has no socket type"},
		"short properties": {greetingOfLibzmq + "04080552454144590bff", "has no socket type"},
		"message":          {greetingOfLibzmq + "0003016b76", "must send READY"},
		"large command":    {greetingOfLibzmq + "06" + "00000000ffffffff", "exceeds the limit"},
	} {
		if _, err := zmtp.Handshake(peerThatSends(t, fromHex(t, c.sent)), zmtp.Sub, 1<<10); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

func TestReceiveIsBounded(t *testing.T) {
	start := greetingOfLibzmq + "04190552454144590b536f636b65742d5479706500000003505542"
	for name, sent := range map[string]string{
		"a frame":          "02" + "7fffffffffffffff",
		"a message":        strings.Repeat("01ff"+strings.Repeat("00", 255), 5),
		"number of frames": strings.Repeat("0100", 20),
	} {
		conn, err := zmtp.Handshake(peerThatSends(t, fromHex(t, start+sent)), zmtp.Sub, 1<<10)
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Receive()
		if !errors.Is(err, zmtp.ErrTooLarge) {
			t.Errorf("%s: error %v, want ErrTooLarge", name, err)
		}
		if name == "a message" && !strings.HasSuffix(err.Error(), "of 1024 bytes: a frame has 255, those before it 1020") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestPingIsAnswered(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	go func() {
		_, _ = there.Write(fromHex(t, greetingOfLibzmq+"04190552454144590b536f636b65742d5479706500000003505542"))
		_, _ = there.Write(append([]byte{4, 9, 4}, "PING\x00\x0act"...))
	}()
	const pong = "\x04\x07\x04PONGct"
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		var all []byte
		for b := make([]byte, 256); !bytes.HasSuffix(all, []byte(pong)); {
			n, err := there.Read(b)
			if err != nil {
				t.Errorf("received %q, %v", all, err)
				return
			}
			all = append(all, b[:n]...)
		}
	}()
	conn, err := zmtp.Handshake(here, zmtp.Sub, 1<<10)
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan error, 1)
	go func() { _, err := conn.Receive(); received <- err }()
	<-answered
	_ = there.Close()
	if err := <-received; !errors.Is(err, io.EOF) {
		t.Errorf("after the ping: %v, want EOF", err)
	}
}

// pipes is a listener whose connections are in memory.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case nc := <-p.accepted:
		return nc, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A ping is answered also long after the last message, so the connection stays.
func TestPingAfterSilenceIsAnswered(t *testing.T) {
	publisher := zmtp.NewPublisher()
	answers := func(frames [][]byte, send func(...[]byte) error) error { return send(frames...) }
	for name, c := range map[string]struct {
		own   zmtp.Socket
		serve func(context.Context, net.Listener)
		next  func(*zmtp.Conn) error // causes the next message
	}{
		"publisher": {zmtp.Sub, func(ctx context.Context, l net.Listener) { publisher.Serve(ctx, l) }, func(*zmtp.Conn) error { publisher.Publish([]byte("kv")); return nil }},
		"router":    {zmtp.Dealer, func(ctx context.Context, l net.Listener) { zmtp.ServeRouter(ctx, l, answers) }, func(c *zmtp.Conn) error { return c.Send([]byte("kv")) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				l, done := &pipes{accepted: make(chan net.Conn), closed: make(chan struct{})}, make(chan struct{})
				go func() { c.serve(ctx, l); close(done) }()
				defer func() { stop(); <-done }()
				nc, far := net.Pipe()
				defer nc.Close()
				l.accepted <- far
				conn, err := zmtp.Handshake(nc, c.own, 1<<10)
				if err != nil {
					t.Fatal(err)
				}
				if c.own == zmtp.Sub {
					if err := conn.Subscribe(""); err != nil {
						t.Fatal(err)
					}
				}
				for range 2 {
					synctest.Wait()
					sent := make(chan error, 1)
					go func() { sent <- c.next(conn) }() // the answer to the ping must be received meanwhile
					if frames, err := conn.Receive(); err != nil || string(frames[0]) != "kv" {
						t.Fatalf("received %q, %v", frames, err)
					}
					if err := <-sent; err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Minute)
					if _, err := nc.Write(append([]byte{4, 9, 4}, "PING\x00\x0act"...)); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

func FuzzReceive(f *testing.F) {
	for _, s := range []string{pubOfLibzmq, subOfLibzmq, reqOfLibzmq} {
		b, _ := hex.DecodeString(s)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		conn, err := zmtp.Handshake(peerThatSends(t, sent), zmtp.Sub, 1<<10)
		if err != nil {
			return
		}
		for {
			frames, err := conn.Receive()
			if err != nil {
				return
			}
			size := 0
			for _, f := range frames {
				size += len(f)
			}
			if size > 1<<10 {
				t.Fatalf("a message of %d bytes", size)
			}
		}
	})
}

func TestPublisherSendsToSubscribersOfTheTopic(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, done := zmtp.NewPublisher(), make(chan struct{})
	go func() { p.Serve(ctx, l); close(done) }()
	defer func() { stop(); <-done }()
	connect := func(topic string) *zmtp.Conn {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.Close() })
		c, err := zmtp.Handshake(nc, zmtp.Sub, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Subscribe(topic); err != nil {
			t.Fatal(err)
		}
		return c
	}
	all, some := connect(""), connect("kv")
	testkit.Eventually(t, "two subscribers", func() bool { return p.Subscribers() == 2 })
	large := bytes.Repeat([]byte("x"), 1000)
	p.Publish([]byte("other"), []byte("1"))
	p.Publish([]byte("kv-events"), large)
	for _, c := range []struct {
		conn *zmtp.Conn
		want []string
	}{{all, []string{"other", "kv-events"}}, {some, []string{"kv-events"}}} {
		for _, topic := range c.want {
			frames, err := c.conn.Receive()
			if err != nil || string(frames[0]) != topic {
				t.Fatalf("%q, %v, want topic %s", frames, err, topic)
			}
		}
	}
}

func TestRouterAnswersClients(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		zmtp.ServeRouter(ctx, l, func(frames [][]byte, send func(...[]byte) error) error {
			n := binary.BigEndian.Uint64(frames[1])
			for i := range n {
				if err := send(nil, []byte{byte(i)}); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	defer func() { stop(); <-done }()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c, err := zmtp.Handshake(nc, zmtp.Dealer, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, 3)); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if frames, err := c.Receive(); err != nil || len(frames) != 2 || frames[1][0] != byte(i) {
			t.Fatalf("%q, %v, want %d", frames, err, i)
		}
	}
}
