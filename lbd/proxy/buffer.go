package proxy

import (
	"bytes"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// maxPooled is the largest buffer that is kept for later use: larger ones are
// rare and would pin memory.
const maxPooled = 256 << 10

// pooled is a byte buffer that goes back to where it came from.
type pooled struct{ b []byte }

var buffers = sync.Pool{New: func() any { return &pooled{b: make([]byte, 0, 4<<10)} }}

func takeBuffer() *pooled {
	p := buffers.Get().(*pooled)
	p.b = p.b[:0]
	return p
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
	if cap(p.b) <= maxPooled {
		buffers.Put(p)
	}
}

// grow makes room for at least n more bytes.
func (p *pooled) grow(n int) {
	if cap(p.b)-len(p.b) >= n {
		return
	}
	b := make([]byte, len(p.b), max(5*cap(p.b)/4, len(p.b)+n)) // a body of known length is held for as long as its stream
	copy(b, p.b)
	p.b = b
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
	counts edit // asks for the usage so far with each event; its text is empty where nothing does
}

func share(buf *pooled) *sharedBody {
	s := &sharedBody{buf: buf}
	s.refs.Store(1)
	return s
}

func (s *sharedBody) release() {
	if s.refs.Add(-1) == 0 {
		s.buf.release()
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

// bodyBuffer is room for a body of a declared length, -1 when it is not known.
// What a client merely declares does not get memory beyond a small body's.
func bodyBuffer(declared int64) *pooled {
	const spare = 16 // so that the read that finds the end has room
	buf := takeBuffer()
	buf.grow(int(min(max(declared, 0), smallBody)) + spare)
	return buf
}

// readBody reads a request's body, at most limit bytes of it. What is longer is
// refused as soon as that is known: by its declared length, else when limit is
// passed.
func readBody(w http.ResponseWriter, req *http.Request, limit int64) (*pooled, error) {
	if req.ContentLength > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	buf := bodyBuffer(req.ContentLength)
	body := http.MaxBytesReader(w, req.Body, limit)
	for {
		n, err := body.Read(buf.b[len(buf.b):cap(buf.b)])
		buf.b = buf.b[:len(buf.b)+n]
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			buf.release()
			return nil, err
		}
		if len(buf.b) == cap(buf.b) {
			buf.grow(bytes.MinRead)
		}
	}
}
