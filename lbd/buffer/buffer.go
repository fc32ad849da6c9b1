// Package buffer pools byte buffers of fixed sizes for the bodies of requests and buffered answers.
// A buffer has one owner, who releases it once.
package buffer

import (
	"math/bits"
	"sync"
)

// Sizes are powers of two and quarter steps between them, so that a buffer is at most a quarter
// larger than requested.
const (
	// MinSize is the smallest size, UsualSize that of most requests.
	MinSize   = 1 << 10
	UsualSize = 4 << 10
	// MaxPooled is the maximum size of a buffer that is kept for reuse. Larger ones are rare and
	// would occupy memory.
	MaxPooled = 256 << 10
)

// Buffer is a byte buffer that can be released for reuse.
type Buffer struct{ B []byte }

// buffers contains the unused buffers by sizeClass.
var buffers [1 + 4*8]sync.Pool

// sizeClass returns the index and size of the smallest buffer that has capacity for n bytes.
func sizeClass(n int) (class, size int) {
	if n <= MinSize {
		return 0, MinSize
	}
	doublings := bits.Len(uint(n-1)) - bits.Len(MinSize)
	quarter := MinSize << doublings / 4
	quarters := (n + quarter - 1) / quarter
	return 4*doublings + quarters - 4, quarters * quarter
}

// SizeFor returns the size of the smallest buffer that has capacity for n bytes.
func SizeFor(n int) int {
	_, size := sizeClass(n)
	return size
}

// Get returns an empty buffer with capacity for n bytes.
func Get(n int) *Buffer {
	class, size := sizeClass(n)
	if class < len(buffers) {
		if p, ok := buffers[class].Get().(*Buffer); ok {
			p.B = p.B[:0]
			return p
		}
	}
	return &Buffer{B: make([]byte, 0, size)}
}

// Poison makes Release overwrite buffers, so that tests detect later reads.
var Poison = false

// Release returns the buffer to the pool. It must not be used afterwards.
func (p *Buffer) Release() {
	if Poison {
		for i := range p.B {
			p.B[i] = 0xDB
		}
	}
	if class, size := sizeClass(cap(p.B)); class < len(buffers) && size == cap(p.B) {
		buffers[class].Put(p)
	}
}

// Grow ensures capacity for n more bytes. If there is less, it extends the capacity by at least a quarter.
func (p *Buffer) Grow(n int) {
	if cap(p.B)-len(p.B) < n {
		p.GrowTo(max(5*cap(p.B)/4, len(p.B)+n))
	}
}

// GrowTo sets the capacity to at least n bytes in total.
func (p *Buffer) GrowTo(n int) {
	larger := Get(n)
	larger.B = append(larger.B, p.B...)
	p.B, larger.B = larger.B, p.B
	larger.Release()
}
