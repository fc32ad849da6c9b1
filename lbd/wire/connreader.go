package wire

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
)

const (
	// readBufferSize is enough for the head of a response and the first events that arrive with it.
	readBufferSize = 4 << 10
	// requestBufferSize is enough for a request of the usual size, so that it is read in one piece. The
	// buffer is in use only while the request is read.
	requestBufferSize = 16 << 10
)

// buffer contains received bytes that were not read, or bytes to send.
type buffer struct{ b []byte }

// bufferPool keeps unused buffers of one size.
type bufferPool struct {
	size int
	pool sync.Pool
}

var (
	responseBuffers = bufferPool{size: readBufferSize}
	requestBuffers  = bufferPool{size: requestBufferSize}
)

func (s *bufferPool) get() *buffer {
	if b, ok := s.pool.Get().(*buffer); ok {
		return b
	}
	return &buffer{make([]byte, s.size)}
}

// putBuffer returns a buffer to the pool. A buffer that grew is dropped: this is rare, and the buffer
// would occupy memory.
func (s *bufferPool) putBuffer(b *buffer) {
	if len(b.b) == s.size {
		s.pool.Put(b)
	}
}

// connReader is the read side of a connection, with the received bytes that were not read. It belongs
// to one goroutine.
type connReader struct {
	nc        net.Conn
	buffers   *bufferPool
	raw       syscall.RawConn // nil if the readiness of the socket cannot be checked
	peekFunc  func(fd uintptr) bool
	readFunc  func(fd uintptr) bool
	readBytes int   // bytes read by readFunc and peekFunc
	readErr   error // error of readFunc and peekFunc

	buf      *buffer // nil while it would be empty
	r, w     int     // buf.b[r:w] was received and not read
	received bool    // bytes have arrived since this was last cleared
}

// open starts reading from a connection.
func (c *connReader) open(nc net.Conn, buffers *bufferPool) {
	c.nc, c.buffers, c.raw = nc, buffers, rawOf(nc)
	if c.raw != nil {
		c.peekFunc, c.readFunc = c.peekOnce, c.readWhenReady
	}
}

// release returns the buffer to its pool.
func (c *connReader) release() {
	if c.buf == nil {
		return
	}
	c.buffers.putBuffer(c.buf)
	c.buf, c.r, c.w = nil, 0, 0
}

// unread returns the received bytes that were not read.
func (c *connReader) unread() []byte {
	if c.buf == nil {
		return nil
	}
	return c.buf.b[c.r:c.w]
}

// skip marks n bytes as read. It releases an empty buffer.
func (c *connReader) skip(n int) {
	if c.r += n; c.r == c.w {
		c.release()
	}
}

// isIdle reports whether an idle connection is still open and has received nothing unrequested. On
// systems where this cannot be checked it returns true.
func (c *connReader) isIdle() bool {
	if c.raw == nil {
		return true
	}
	return c.raw.Read(c.peekFunc) == nil && errors.Is(c.readErr, errNothing)
}

// fill waits for the next bytes and adds them to the buffer. An existing buffer must have free
// space. While it waits, it holds no empty buffer.
func (c *connReader) fill() error {
	if c.raw == nil {
		c.acquireBuffer()
		n, err := c.nc.Read(c.buf.b[c.w:])
		return c.recordRead(n, err)
	}
	c.readBytes, c.readErr = 0, nil
	if err := c.raw.Read(c.readFunc); err != nil {
		return c.recordRead(0, err)
	}
	return c.recordRead(c.readBytes, c.readErr)
}

// acquireBuffer acquires a buffer if there is none.
func (c *connReader) acquireBuffer() {
	if c.buf == nil {
		c.buf = c.buffers.get()
	}
}

// recordRead records that n bytes, possibly none, were read into the buffer. An error that came with bytes
// occurs again at the next read.
func (c *connReader) recordRead(n int, err error) error {
	c.w += n
	if n > 0 {
		c.received = true
		return nil
	}
	if c.r == c.w {
		c.release()
	}
	return err
}

// grow enlarges a buffer that is full.
func (c *connReader) grow() {
	if c.w < len(c.buf.b) {
		return
	}
	held := c.w - c.r
	if c.r > 0 {
		copy(c.buf.b, c.unread())
	} else {
		larger := &buffer{make([]byte, 2*len(c.buf.b))}
		copy(larger.b, c.unread())
		c.release()
		c.buf = larger
	}
	c.r, c.w = 0, held
}

// fillMore grows a full buffer and calls fill. It returns io.ErrUnexpectedEOF at the end.
func (c *connReader) fillMore() error {
	if c.buf != nil {
		c.grow()
	}
	err := c.fill()
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
