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

// smallBody is how much memory a client gets for a body that it merely declares;
// beyond that, for what it sends.
const smallBody = 64 << 10

// sharedBody is a request body that several tries may be reading: a transport
// may go on with it after its round trip failed. Its memory is used again when
// everybody has let go of it.
type sharedBody struct {
	buf    *buffer.Buffer
	refs   atomic.Int32
	held   quota.MemoryUse
	counts openai.Edit // asks for the usage so far with each event; its text is empty where nothing does
}

// share takes over a buffer, and what is accounted for it.
func share(buf *buffer.Buffer, held quota.MemoryUse) *sharedBody {
	s := &sharedBody{buf: buf, held: held}
	s.refs.Store(1)
	return s
}

func (s *sharedBody) release() {
	if s.refs.Add(-1) == 0 {
		s.buf.Release()
		s.held.Release()
	}
}

// open is a reader of the whole body for one try, with the edit counts where it is
// wanted.
func (s *sharedBody) open(counts bool) io.ReadCloser {
	s.refs.Add(1)
	r := &bodyReader{shared: s, parts: [3][]byte{s.buf.B}}
	if counts {
		r.parts = [3][]byte{s.buf.B[:s.counts.From], s.counts.With, s.buf.B[s.counts.To:]}
	}
	return r
}

// size is how long what open gives is.
func (s *sharedBody) size(counts bool) int64 {
	n := len(s.buf.B)
	if counts {
		n += len(s.counts.With) - (s.counts.To - s.counts.From)
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
func bodyBuffer(declared int64) *buffer.Buffer {
	return buffer.Take(max(buffer.UsualSize, int(min(max(declared, 0), smallBody))+spareBody))
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
func readBody(w http.ResponseWriter, req *http.Request, limit int64, mem *quota.MemoryUse) (*buffer.Buffer, error) {
	declared := req.ContentLength
	if declared > limit {
		return nil, &http.MaxBytesError{Limit: limit}
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
		n, err = body.Read(buf.B[len(buf.B):cap(buf.B)])
		if buf.B = buf.B[:len(buf.B)+n]; len(buf.B) < cap(buf.B) || err != nil {
			continue
		}
		size := buffer.SizeFor(nextBody(cap(buf.B), declared))
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

// hold begins to account for something of the request.
func (x *exchange) hold() quota.MemoryUse { return x.rt.memory.Use(x.tenant) }

// errNoMemory answers a request that there is no memory for. What is held moves on as
// answers end.
func errNoMemory(err error) *openai.Error {
	if errors.Is(err, quota.ErrShareFull) {
		return &openai.Error{
			Status: http.StatusTooManyRequests, Kind: openai.TypeRateLimit, Code: "tenant_memory", RetryAfter: 1,
			Message: "too much is under way for this tenant: " + err.Error(),
		}
	}
	return &openai.Error{
		Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, Code: "memory", RetryAfter: 2,
		Message: "too much is under way: " + err.Error(),
	}
}
