package printable

import (
	"io"
	"sync"
)

// Writer writes text sanitised by Text to another writer. It is safe for concurrent use. An
// incomplete character or colour sequence at the end of a write is buffered until the next
// write or Flush.
type Writer struct {
	mu      sync.Mutex
	w       io.Writer
	pending []byte
	out     []byte
}

// maxKept is the maximum size in bytes of the buffer that a Writer reuses.
const maxKept = 64 << 10

// NewWriter returns a Writer that writes to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes all of b, or returns 0 and the error.
func (p *Writer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.pending) == 0 && plain(b, true) {
		return p.w.Write(b)
	}
	src := b
	if len(p.pending) > 0 {
		src = append(p.pending, b...)
	}
	out, used := appendSafe(p.out[:0], src, false, false)
	p.pending = append([]byte(nil), src[used:]...) // rare, and only a few bytes
	if p.out = out; cap(out) > maxKept {
		p.out = nil
	}
	if len(out) > 0 {
		if _, err := p.w.Write(out); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// Flush writes the buffered bytes.
func (p *Writer) Flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flush()
}

func (p *Writer) flush() error {
	if len(p.pending) == 0 {
		return nil
	}
	out, _ := appendSafe(nil, p.pending, false, true)
	p.pending = p.pending[:0]
	_, err := p.w.Write(out)
	return err
}

// Unwrap returns the writer to which a Writer writes; w itself if it is not a Writer. It is for
// tests such as whether the output is a terminal.
func Unwrap(w io.Writer) io.Writer {
	if p, ok := w.(*Writer); ok {
		return p.w
	}
	return w
}

// Raw returns a writer that bypasses the sanitising of a Writer, for a program's own escape
// codes; untrusted text in them must be sanitised by Text or Line. If w is not a Writer, it
// returns w.
func Raw(w io.Writer) io.Writer {
	if p, ok := w.(*Writer); ok {
		return raw{p}
	}
	return w
}

type raw struct{ p *Writer }

func (r raw) Write(b []byte) (int, error) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if err := r.p.flush(); err != nil {
		return 0, err
	}
	return r.p.w.Write(b)
}
