package zmtp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
)

// Socket is a type of ZeroMQ socket.
type Socket string

// The supported types.
const (
	Pub    Socket = "PUB"
	Sub    Socket = "SUB"
	Router Socket = "ROUTER"
	Dealer Socket = "DEALER"
)

// partners are the types that each type may be connected to.
var partners = map[Socket][]Socket{
	Pub:    {Sub, "XSUB"},
	Sub:    {Pub, "XPUB"},
	Router: {Dealer, "REQ", Router},
	Dealer: {Router, "REP", Dealer},
}

// The protocol's constants.
const (
	greetingBytes = 64
	nameBytes     = 20 // of the mechanism's name in a greeting
	majorVersion  = 3

	flagMore    = 1 << 0
	flagLong    = 1 << 1
	flagCommand = 1 << 2

	subscribe = 1 // first byte of a message that subscribes to a topic
)

// Bounds of what a peer may send besides messages.
const (
	maxCommandBytes = 64 << 10 // commands carry a few names
	maxFrames       = 16       // a message of cache events has three or four
	maxKeptBytes    = 64 << 10 // of the buffer for sending
)

// mechanism is the name of the only supported security mechanism, which has no security: the
// connection is that of the caller.
const mechanism = "NULL"

// ErrTooLarge is wrapped by the error of Receive for a message above the limit. The connection cannot
// be used afterwards.
var ErrTooLarge = errors.New("the message exceeds the limit")

// Conn is a connection to a peer after the handshake. One goroutine may receive while others send.
type Conn struct {
	conn net.Conn
	in   *bufio.Reader
	max  int

	mu  sync.Mutex
	out []byte // of the message being sent
}

// Handshake performs the handshake on a connection as a socket of type own. maxMessage is the limit of
// a message in bytes, all frames together. The caller sets deadlines and closes the connection, also
// after an error.
func Handshake(conn net.Conn, own Socket, maxMessage int) (*Conn, error) {
	c := &Conn{conn: conn, in: bufio.NewReader(conn), max: maxMessage}
	// One step at a time: libzmq 4.3 does not always continue if it receives both at once.
	err := c.exchange(greeting(), c.readGreeting)
	if err == nil {
		err = c.exchange(readyCommand(own), func() error { return c.readReady(own) })
	}
	if err != nil {
		return nil, fmt.Errorf("ZeroMQ handshake: %w", err)
	}
	return c, nil
}

// exchange sends bytes while it reads those of the peer, because both sides may send first and wait
// until that is read.
func (c *Conn) exchange(out []byte, read func() error) error {
	sent := make(chan error, 1)
	go func() { sent <- c.write(out) }()
	err := read()
	if err != nil {
		_ = c.conn.Close() // ends the write
	}
	if e := <-sent; err == nil {
		err = e
	}
	return err
}

// greeting returns the first bytes of a connection.
func greeting() []byte {
	g := make([]byte, greetingBytes)
	g[0], g[9], g[10] = 0xFF, 0x7F, majorVersion
	copy(g[12:12+nameBytes], mechanism)
	return g
}

// readyCommand returns the command that ends a handshake, with the type of a socket. An empty identity
// lets a ROUTER choose one.
func readyCommand(own Socket) []byte {
	body := append([]byte{5}, "READY"...)
	for _, p := range [][2]string{{"Socket-Type", string(own)}, {"Identity", ""}} {
		body = append(body, byte(len(p[0])))
		body = append(body, p[0]...)
		body = binary.BigEndian.AppendUint32(body, uint32(len(p[1])))
		body = append(body, p[1]...)
	}
	return append([]byte{flagCommand, byte(len(body))}, body...)
}

func (c *Conn) readGreeting() error {
	var g [greetingBytes]byte
	if _, err := io.ReadFull(c.in, g[:]); err != nil {
		return fmt.Errorf("reading the greeting: %w", err)
	}
	if g[0] != 0xFF || g[9] != 0x7F {
		return fmt.Errorf("the peer does not speak ZeroMQ: its greeting begins with %q", g[:10])
	}
	if g[10] < majorVersion {
		return fmt.Errorf("the peer must speak version %d of the protocol or later, got %d", majorVersion, g[10])
	}
	name := string(g[12 : 12+nameBytes])
	for len(name) > 0 && name[len(name)-1] == 0 {
		name = name[:len(name)-1]
	}
	if name != mechanism {
		return fmt.Errorf("the peer's security mechanism must be %s, got %q", mechanism, name)
	}
	return nil
}

// readReady reads the peer's READY and checks its socket type.
func (c *Conn) readReady(own Socket) error {
	flags, body, err := c.readFrame(maxCommandBytes, 0)
	if err != nil {
		return fmt.Errorf("reading the peer's READY: %w", err)
	}
	command, rest := commandOf(body)
	if flags&flagCommand == 0 || command != "READY" {
		return fmt.Errorf("the peer must send READY, got %q", body[:min(len(body), 64)])
	}
	peer, err := socketTypeOf(rest)
	if err != nil {
		return err
	}
	if slices.Contains(partners[own], peer) {
		return nil
	}
	return fmt.Errorf("a socket of type %s cannot be connected to one of type %q", own, peer)
}

// commandOf splits the body of a command into its name and its data.
func commandOf(body []byte) (name string, data []byte) {
	if len(body) == 0 || int(body[0]) > len(body)-1 {
		return "", nil
	}
	n := int(body[0])
	return string(body[1 : 1+n]), body[1+n:]
}

// socketTypeOf returns the socket type from the properties of a READY command.
func socketTypeOf(properties []byte) (Socket, error) {
	for len(properties) > 0 {
		n := int(properties[0])
		if len(properties) < 1+n+4 {
			break
		}
		name, rest := string(properties[1:1+n]), properties[1+n:]
		size := binary.BigEndian.Uint32(rest)
		rest = rest[4:]
		if uint64(size) > uint64(len(rest)) {
			break
		}
		if name == "Socket-Type" {
			return Socket(rest[:size]), nil
		}
		properties = rest[size:]
	}
	return "", errors.New("the peer's READY has no socket type")
}

// readFrame reads one frame of a message, or a command. limit is that of the message in bytes, used by the
// frames before this one.
func (c *Conn) readFrame(limit, used int) (flags byte, body []byte, err error) {
	if flags, err = c.in.ReadByte(); err != nil {
		return 0, nil, err
	}
	var size uint64
	if flags&flagLong == 0 {
		b, err := c.in.ReadByte()
		if err != nil {
			return 0, nil, unexpected(err)
		}
		size = uint64(b)
	} else {
		var b [8]byte
		if _, err := io.ReadFull(c.in, b[:]); err != nil {
			return 0, nil, unexpected(err)
		}
		size = binary.BigEndian.Uint64(b[:])
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, nil, fmt.Errorf("invalid frame flags %#x", flags)
	}
	if flags&flagCommand != 0 {
		limit, used = maxCommandBytes, 0
	}
	if size > uint64(max(0, limit-used)) {
		return 0, nil, fmt.Errorf("%w of %d bytes: a frame has %d, those before it %d", ErrTooLarge, limit, size, used)
	}
	body = make([]byte, size)
	_, err = io.ReadFull(c.in, body)
	return flags, body, unexpected(err)
}

// unexpected converts the end of a stream inside a frame to an error of its own.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Receive returns the frames of the next message. It answers pings and ignores other commands. It
// returns io.EOF when the peer closes the connection between two messages.
func (c *Conn) Receive() (frames [][]byte, err error) {
	for used := 0; ; {
		flags, body, err := c.readFrame(c.max, used)
		if err != nil {
			if len(frames) > 0 {
				err = unexpected(err)
			}
			return nil, err
		}
		if flags&flagCommand != 0 {
			if err := c.handleCommand(body); err != nil {
				return nil, err
			}
			continue
		}
		if frames, used = append(frames, body), used+len(body); len(frames) > maxFrames {
			return nil, fmt.Errorf("%w of %d frames", ErrTooLarge, maxFrames)
		}
		if flags&flagMore == 0 {
			return frames, nil
		}
	}
}

// handleCommand answers PING (ZMTP 3.1, whose data are a time to live and a context) and returns the
// error of an ERROR command.
func (c *Conn) handleCommand(body []byte) error {
	switch name, data := commandOf(body); name {
	case "PING":
		const ttlBytes, maxContext = 2, 16
		if len(data) < ttlBytes || len(data) > ttlBytes+maxContext {
			return errors.New("the peer sent an invalid PING")
		}
		pong := append(append([]byte{4}, "PONG"...), data[ttlBytes:]...)
		return c.write(append([]byte{flagCommand, byte(len(pong))}, pong...))
	case "ERROR":
		return fmt.Errorf("the peer reports an error: %q", data)
	}
	return nil
}

// Send sends a message.
func (c *Conn) Send(frames ...[]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = c.out[:0]
	for i, f := range frames {
		flags := byte(0)
		if i+1 < len(frames) {
			flags = flagMore
		}
		if len(f) < 256 {
			c.out = append(c.out, flags, byte(len(f)))
		} else {
			c.out = append(c.out, flags|flagLong)
			c.out = binary.BigEndian.AppendUint64(c.out, uint64(len(f)))
		}
		c.out = append(c.out, f...)
	}
	_, err := c.conn.Write(c.out)
	if cap(c.out) > maxKeptBytes {
		c.out = nil // a rare large message must not occupy memory for the life of the connection
	}
	return err
}

func (c *Conn) write(p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.conn.Write(p)
	return err
}

// Subscribe requests all messages whose first frame begins with topic; empty = all messages.
func (c *Conn) Subscribe(topic string) error {
	return c.Send(append([]byte{subscribe}, topic...))
}
