package proxy

import (
	"errors"
	"io"
	"math/bits"
	"net/http"
	"sync"
	"sync/atomic"
)

// Buffers have sizes of powers of two and their quarters, so that one is never more than
// a quarter larger than what it is for.
const (
	leastBuffer = 1 << 10
	usualBuffer = 4 << 10
	// maxPooled is the largest buffer that is kept for later use: larger ones are
	// rare and would pin memory.
	maxPooled = 256 << 10
)

// pooled is a byte buffer that goes back to where it came from.
type pooled struct{ b []byte }

// buffers are those that nobody uses, by sizeClass.
var buffers [1 + 4*8]sync.Pool

// sizeClass is the number of the smallest size of a buffer that has room for n bytes, and
// that size.
func sizeClass(n int) (class, size int) {
	if n <= leastBuffer {
		return 0, leastBuffer
	}
	doublings := bits.Len(uint(n-1)) - bits.Len(leastBuffer)
	quarter := leastBuffer << doublings / 4
	quarters := (n + quarter - 1) / quarter
	return 4*doublings + quarters - 4, quarters * quarter
}

// takeBuffer is an empty buffer with room for n bytes.
func takeBuffer(n int) *pooled {
	class, size := sizeClass(n)
	if class < len(buffers) {
		if p, ok := buffers[class].Get().(*pooled); ok {
			p.b = p.b[:0]
			return p
		}
	}
	return &pooled{b: make([]byte, 0, size)}
}

// poison makes released buffers useless, for tests: whoever still reads one is
// found out.
var poison = false

func (p *pooled) release() {
	if poison {
		for i := range p.b {
			p.b[i] = 0xDB
		}
	}
	if class, size := sizeClass(cap(p.b)); class < len(buffers) && size == cap(p.b) {
		buffers[class].Put(p)
	}
}

// grow makes room for at least n more bytes, and for a quarter of those that are there.
func (p *pooled) grow(n int) {
	if cap(p.b)-len(p.b) < n {
		p.growTo(max(5*cap(p.b)/4, len(p.b)+n))
	}
}

// growTo makes room for n bytes in all.
func (p *pooled) growTo(n int) {
	larger := takeBuffer(n)
	larger.b = append(larger.b, p.b...)
	p.b, larger.b = larger.b, p.b
	larger.release()
}

// smallBody is how much memory a client gets for a body that it merely declares;
// beyond that, for what it sends.
const smallBody = 64 << 10

// sharedBody is a request body that several tries may be reading: a transport
// may go on with it after its round trip failed. Its memory is used again when
// everybody has let go of it.
type sharedBody struct {
	buf    *pooled
	refs   atomic.Int32
	held   held
	counts edit // asks for the usage so far with each event; its text is empty where nothing does
}

// share takes over a buffer, and what is accounted for it.
func share(buf *pooled, held held) *sharedBody {
	s := &sharedBody{buf: buf, held: held}
	s.refs.Store(1)
	return s
}

func (s *sharedBody) release() {
	if s.refs.Add(-1) == 0 {
		s.buf.release()
		s.held.release()
	}
}

// open is a reader of the whole body for one try, with the edit counts where it is
// wanted.
func (s *sharedBody) open(counts bool) io.ReadCloser {
	s.refs.Add(1)
	r := &bodyReader{shared: s, parts: [3][]byte{s.buf.b}}
	if counts {
		r.parts = [3][]byte{s.buf.b[:s.counts.from], s.counts.with, s.buf.b[s.counts.to:]}
	}
	return r
}

// size is how long what open gives is.
func (s *sharedBody) size(counts bool) int64 {
	n := len(s.buf.b)
	if counts {
		n += len(s.counts.with) - (s.counts.to - s.counts.from)
	}
	return int64(n)
}

type bodyReader struct {
	shared *sharedBody
	parts  [3][]byte // that were not read
	closed atomic.Bool
}

// Read gives the next bytes of the body.
func (r *bodyReader) Read(p []byte) (n int, err error) {
	for i := range r.parts {
		m := copy(p[n:], r.parts[i])
		r.parts[i] = r.parts[i][m:]
		n += m
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// WriteTo writes the rest of the body.
func (r *bodyReader) WriteTo(w io.Writer) (written int64, err error) {
	for i := range r.parts {
		if len(r.parts[i]) == 0 {
			continue
		}
		n, err := w.Write(r.parts[i])
		r.parts[i] = r.parts[i][n:]
		written += int64(n)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// Close lets go of the body. It never fails.
func (r *bodyReader) Close() error {
	if r.closed.CompareAndSwap(false, true) {
		r.shared.release()
	}
	return nil
}

// spareBody is how much room a body's buffer has beyond the body: for the read that finds
// its end, and for the edits that are made to most.
const spareBody = 256

// bodyBuffer is room for a body of a declared length, -1 when it is not known.
// What a client merely declares does not get memory beyond a small body's.
func bodyBuffer(declared int64) *pooled {
	return takeBuffer(max(usualBuffer, int(min(max(declared, 0), smallBody))+spareBody))
}

// nextBody is how large the buffer of a body is to be that has filled one of size bytes:
// twice as large, but not larger than the body.
func nextBody(size int, declared int64) int {
	if declared < 0 {
		return size + size/4
	}
	return int(min(2*int64(size), declared+spareBody))
}

// readBody reads a request's body, at most limit bytes of it, into memory that mem
// accounts for. What is longer is refused as soon as that is known: by its declared
// length, else when limit is passed. So is one that there is no memory for.
func readBody(w http.ResponseWriter, req *http.Request, limit int64, mem *held) (*pooled, error) {
	declared := req.ContentLength
	if declared > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	if err := mem.fits(declared); err != nil {
		return nil, err
	}
	taken := mem.taken
	buf := bodyBuffer(declared)
	err := mem.set(taken + int64(cap(buf.b)))
	body := http.MaxBytesReader(w, req.Body, limit)
	for err == nil {
		var n int
		n, err = body.Read(buf.b[len(buf.b):cap(buf.b)])
		if buf.b = buf.b[:len(buf.b)+n]; len(buf.b) < cap(buf.b) || err != nil {
			continue
		}
		_, size := sizeClass(nextBody(cap(buf.b), declared))
		if err = mem.set(taken + int64(size)); err == nil {
			buf.growTo(size)
		}
	}
	if errors.Is(err, io.EOF) {
		return buf, nil
	}
	buf.release()
	mem.release()
	return nil, err
}
