package wire

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
)

const (
	// readBuffer holds an answer's head and the first events that come with it.
	readBuffer = 4 << 10
	// requestBuffer holds a request of the usual size, so that it is read in one
	// piece; it is held for no longer than the request takes to be read.
	requestBuffer = 16 << 10
)

// buffer is memory for what has arrived and was not read yet, or for what is about
// to leave.
type buffer struct{ b []byte }

// bufferPool keeps buffers of one size that nobody uses.
type bufferPool struct {
	size int
	pool sync.Pool
}

var (
	answerBuffers  = bufferPool{size: readBuffer}
	requestBuffers = bufferPool{size: requestBuffer}
)

func (s *bufferPool) take() *buffer {
	if b, ok := s.pool.Get().(*buffer); ok {
		return b
	}
	return &buffer{make([]byte, s.size)}
}

// put keeps a buffer unless it grew: such a one is rare and would pin memory.
func (s *bufferPool) put(b *buffer) {
	if len(b.b) == s.size {
		s.pool.Put(b)
	}
}

// connReader is the way in of a connection, with what has arrived and was not read. It
// belongs to one goroutine.
type connReader struct {
	nc      net.Conn
	buffers *bufferPool
	raw     syscall.RawConn // nil where nobody can say whether something has arrived
	look    func(fd uintptr) bool
	pull    func(fd uintptr) bool
	got     int   // by pull and look
	fail    error // as got

	buf  *buffer // nil while nothing is in it
	r, w int     // buf.b[r:w] has arrived and was not read
	came bool    // something has arrived since this was last cleared
}

// open begins to read from a connection.
func (c *connReader) open(nc net.Conn, buffers *bufferPool) {
	c.nc, c.buffers, c.raw = nc, buffers, rawOf(nc)
	if c.raw != nil {
		c.look, c.pull = c.lookOnce, c.pullWhenReady
	}
}

// release gives the buffer back.
func (c *connReader) release() {
	if c.buf == nil {
		return
	}
	c.buffers.put(c.buf)
	c.buf, c.r, c.w = nil, 0, 0
}

// unread is what has arrived and was not read.
func (c *connReader) unread() []byte {
	if c.buf == nil {
		return nil
	}
	return c.buf.b[c.r:c.w]
}

// skip marks n bytes as read; an empty buffer is given back.
func (c *connReader) skip(n int) {
	if c.r += n; c.r == c.w {
		c.release()
	}
}

// quiet says whether an idle connection is still open and nothing has come that
// nobody asked for. Where that cannot be asked it hopes for the best.
func (c *connReader) quiet() bool {
	if c.raw == nil {
		return true
	}
	return c.raw.Read(c.look) == nil && errors.Is(c.fail, errNothing)
}

// fill waits for what arrives next and adds it to the buffer, which must have
// room if there is one. While it waits an empty buffer is not held.
func (c *connReader) fill() error {
	if c.raw == nil {
		c.hold()
		n, err := c.nc.Read(c.buf.b[c.w:])
		return c.took(n, err)
	}
	c.got, c.fail = 0, nil
	if err := c.raw.Read(c.pull); err != nil {
		return c.took(0, err)
	}
	return c.took(c.got, c.fail)
}

// hold takes a buffer unless there is one.
func (c *connReader) hold() {
	if c.buf == nil {
		c.buf = c.buffers.take()
	}
}

// took accounts for n bytes that were read into the buffer, which may be none.
// An error that came with bytes comes again without them.
func (c *connReader) took(n int, err error) error {
	c.w += n
	if n > 0 {
		c.came = true
		return nil
	}
	if c.r == c.w {
		c.release()
	}
	return err
}

// grow makes room in a buffer that is full.
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

// more is fill with room made for it; the end is io.ErrUnexpectedEOF.
func (c *connReader) more() error {
	if c.buf != nil {
		c.grow()
	}
	err := c.fill()
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
