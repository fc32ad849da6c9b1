package printable

import (
	"io"
	"sync"
)

// Writer passes text on, made harmless as Text does. It may be written to from several
// goroutines. What a write ends with and only the next one can tell the meaning of, part
// of a character or of a colour sequence, is held back until then, or until Flush.
type Writer struct {
	mu   sync.Mutex
	w    io.Writer
	held []byte
	out  []byte
}

// mostKept bounds the memory that a Writer keeps between two writes, in bytes.
const mostKept = 64 << 10

// NewWriter writes to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write takes all of p, or none of it when it cannot be written.
func (p *Writer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.held) == 0 && plain(b, true) {
		return p.w.Write(b)
	}
	src := b
	if len(p.held) > 0 {
		src = append(p.held, b...)
	}
	out, used := appendSafe(p.out[:0], src, false, false)
	p.held = append([]byte(nil), src[used:]...) // some bytes, and rarely
	if p.out = out; cap(out) > mostKept {
		p.out = nil
	}
	if len(out) > 0 {
		if _, err := p.w.Write(out); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// Flush writes what is held back.
func (p *Writer) Flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flush()
}

func (p *Writer) flush() error {
	if len(p.held) == 0 {
		return nil
	}
	out, _ := appendSafe(nil, p.held, false, true)
	p.held = p.held[:0]
	_, err := p.w.Write(out)
	return err
}

// Unwrap is where a Writer writes to; w itself when it is none. It is for questions to
// what is behind it, such as whether that is a terminal.
func Unwrap(w io.Writer) io.Writer {
	if p, ok := w.(*Writer); ok {
		return p.w
	}
	return w
}

// Raw is the way around a Writer, for bytes of our own that style or draw; text from
// outside among them must have gone through Text or Line. It is w itself when that is
// no Writer.
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
