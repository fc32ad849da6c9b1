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

func (p *pooled) release() {
	if cap(p.b) <= maxPooled {
		buffers.Put(p)
	}
}

// grow makes room for at least n more bytes.
func (p *pooled) grow(n int) {
	if cap(p.b)-len(p.b) >= n {
		return
	}
	b := make([]byte, len(p.b), max(2*cap(p.b), len(p.b)+n))
	copy(b, p.b)
	p.b = b
}

// smallBody is up to which size a request body is handed out in a type that
// net/http knows to be in memory: it then sends header and body in one packet.
// Such a reader does not tell when it is let go of, so its memory is left to the
// garbage collector, which for small bodies is no loss.
const smallBody = 64 << 10

// sharedBody is a request body that several tries may be reading: a transport
// may go on with it after its round trip failed. The memory of a large one is
// used again when everybody has let go of it.
type sharedBody struct {
	buf  *pooled
	refs atomic.Int32
}

func share(buf *pooled) *sharedBody {
	s := &sharedBody{buf: buf}
	s.refs.Store(1)
	return s
}

func (s *sharedBody) release() {
	if s.refs.Add(-1) == 0 && len(s.buf.b) > smallBody {
		s.buf.release()
	}
}

// open is a reader of the whole body for one try.
func (s *sharedBody) open() io.ReadCloser {
	if len(s.buf.b) <= smallBody {
		return io.NopCloser(bytes.NewReader(s.buf.b))
	}
	s.refs.Add(1)
	r := &bodyReader{shared: s}
	r.Reset(s.buf.b)
	return r
}

type bodyReader struct {
	bytes.Reader
	shared *sharedBody
	closed atomic.Bool
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
	switch {
	case declared > smallBody:
		buf := takeBuffer()
		buf.grow(smallBody)
		return buf
	case declared >= 0:
		return &pooled{b: make([]byte, 0, declared+spare)}
	}
	return &pooled{b: make([]byte, 0, 4<<10)}
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
		buf.grow(bytes.MinRead)
	}
}
