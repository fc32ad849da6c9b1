// Package buffer keeps byte buffers of fixed sizes for later use: the bodies of requests,
// and what is kept of answers. A buffer has one owner, who releases it once.
package buffer

import (
	"math/bits"
	"sync"
)

// Buffers have sizes of powers of two and their quarters, so that one is never more than
// a quarter larger than what it is for.
const (
	// MinSize is the smallest size, UsualSize that of most requests.
	MinSize   = 1 << 10
	UsualSize = 4 << 10
	// MaxPooled is the largest buffer that is kept for later use: larger ones are
	// rare and would pin memory.
	MaxPooled = 256 << 10
)

// Buffer is a byte buffer that can be released for later use.
type Buffer struct{ B []byte }

// buffers are those that nobody uses, by sizeClass.
var buffers [1 + 4*8]sync.Pool

// sizeClass is the number of the smallest size of a buffer that has room for n bytes, and
// that size.
func sizeClass(n int) (class, size int) {
	if n <= MinSize {
		return 0, MinSize
	}
	doublings := bits.Len(uint(n-1)) - bits.Len(MinSize)
	quarter := MinSize << doublings / 4
	quarters := (n + quarter - 1) / quarter
	return 4*doublings + quarters - 4, quarters * quarter
}

// SizeFor is the size of the smallest buffer that has room for n bytes.
func SizeFor(n int) int {
	_, size := sizeClass(n)
	return size
}

// Take is an empty buffer with room for n bytes.
func Take(n int) *Buffer {
	class, size := sizeClass(n)
	if class < len(buffers) {
		if p, ok := buffers[class].Get().(*Buffer); ok {
			p.B = p.B[:0]
			return p
		}
	}
	return &Buffer{B: make([]byte, 0, size)}
}

// Poison makes released buffers useless, for tests: whoever still reads one is
// found out.
var Poison = false

// Release gives the buffer back. Nobody may use it afterwards.
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

// Grow makes room for at least n more bytes, and for a quarter of those that are there.
func (p *Buffer) Grow(n int) {
	if cap(p.B)-len(p.B) < n {
		p.GrowTo(max(5*cap(p.B)/4, len(p.B)+n))
	}
}

// GrowTo makes room for n bytes in all.
func (p *Buffer) GrowTo(n int) {
	larger := Take(n)
	larger.B = append(larger.B, p.B...)
	p.B, larger.B = larger.B, p.B
	larger.Release()
}
