package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"skyserve/lbd/buffer"
	"skyserve/lbd/openai"
	"skyserve/lbd/quota"
)

// maxDeclaredMemory is the maximum memory that is allocated because of a declared body length alone. More is
// allocated only for received bytes.
const maxDeclaredMemory = 64 << 10

// sharedBody is a request body that several attempts may be reading: a transport may continue to read
// it after its round trip failed. Its memory is reused when all attempts have released it.
type sharedBody struct {
	buf    *buffer.Buffer
	refs   atomic.Int32
	memory quota.MemoryUse
	counts openai.Edit // the edit that requests the usage so far in each event; With is empty if there is none
}

// newSharedBody takes ownership of a buffer and its accounted memory.
func newSharedBody(buf *buffer.Buffer, held quota.MemoryUse) *sharedBody {
	s := &sharedBody{buf: buf, memory: held}
	s.refs.Store(1)
	return s
}

func (s *sharedBody) release() {
	if s.refs.Add(-1) == 0 {
		s.buf.Release()
		s.memory.Release()
	}
}

// open returns a reader of the whole body for one attempt, with the edit counts if requested.
func (s *sharedBody) open(counts bool) io.ReadCloser {
	s.refs.Add(1)
	r := &bodyReader{shared: s, parts: [3][]byte{s.buf.B}}
	if counts {
		r.parts = [3][]byte{s.buf.B[:s.counts.From], s.counts.With, s.buf.B[s.counts.To:]}
	}
	return r
}

// size returns the length of the body that open returns.
func (s *sharedBody) size(counts bool) int64 {
	n := len(s.buf.B)
	if counts {
		n += len(s.counts.With) - (s.counts.To - s.counts.From)
	}
	return int64(n)
}

type bodyReader struct {
	shared *sharedBody
	parts  [3][]byte // unread parts
	closed atomic.Bool
}

// Read returns the next bytes of the body.
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

// WriteTo writes the unread part of the body.
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

// Close releases the body. It never fails.
func (r *bodyReader) Close() error {
	if r.closed.CompareAndSwap(false, true) {
		r.shared.release()
	}
	return nil
}

// bodySlack is the extra space in a body's buffer: for the read that finds its end, and for the usual
// edits.
const bodySlack = 256

// bodyBuffer returns a buffer for a body of a declared length, -1 if it is unknown. It
// allocates at most about maxDeclaredMemory.
func bodyBuffer(declared int64) *buffer.Buffer {
	return buffer.Get(max(buffer.UsualSize, int(min(max(declared, 0), maxDeclaredMemory))+bodySlack))
}

// nextBodySize returns the next buffer size for a body that has filled a buffer of size bytes: twice the
// size, but at most the declared length and bodySlack; a quarter more if the length is unknown.
func nextBodySize(size int, declared int64) int {
	if declared < 0 {
		return size + size/4
	}
	return int(min(2*int64(size), declared+bodySlack))
}

// readBody reads a request's body, at most limit bytes, into memory that mem accounts for. If decoded
// is set, it reads the body from there. A longer body is rejected as early as possible: by its declared
// length, otherwise when it exceeds limit. A body is also rejected if there is no memory for it.
func readBody(w http.ResponseWriter, req *http.Request, decoded io.Reader, limit int64, mem *quota.MemoryUse) (*buffer.Buffer, error) {
	declared := req.ContentLength
	if declared > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	if decoded != nil {
		declared = -1
	}
	if err := mem.Fits(declared); err != nil {
		return nil, err
	}
	taken := mem.Bytes()
	buf := bodyBuffer(declared)
	err := mem.Set(taken + int64(cap(buf.B)))
	body := http.MaxBytesReader(w, req.Body, limit)
	for err == nil {
		var n int
		if space := buf.B[len(buf.B):cap(buf.B)]; decoded != nil {
			n, err = decoded.Read(space)
		} else {
			n, err = body.Read(space) // not through an interface, so that body needs no allocation
		}
		if buf.B = buf.B[:len(buf.B)+n]; len(buf.B) < cap(buf.B) || err != nil {
			continue
		}
		size := buffer.SizeFor(nextBodySize(cap(buf.B), declared))
		if err = mem.Set(taken + int64(size)); err == nil {
			buf.GrowTo(size)
		}
	}
	if errors.Is(err, io.EOF) {
		return buf, nil
	}
	buf.Release()
	mem.Release()
	return nil, err
}

// useMemory starts accounting for memory of the request.
func (x *exchange) useMemory() quota.MemoryUse { return x.rt.memory.Use(x.tenant) }

// errNoMemory rejects a request for which there is no memory. Memory is freed as responses end.
func errNoMemory(err error) *openai.Error {
	if errors.Is(err, quota.ErrShareFull) {
		return &openai.Error{
			Status: http.StatusTooManyRequests, Kind: openai.TypeRateLimit, Code: "tenant_memory", RetryAfter: 1,
			Message: err.Error() + ": retry later",
		}
	}
	return &openai.Error{
		Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, Code: "memory", RetryAfter: 2,
		Message: err.Error() + ": retry later",
	}
}
