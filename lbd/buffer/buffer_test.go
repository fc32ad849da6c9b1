package buffer

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// Buffers have the sizes that are accounted for, and the requested capacity.
func TestSizesOfBuffers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 1<<20).Draw(t, "n")
		p := Get(n)
		if cap(p.B) < n || cap(p.B) > max(1024, n+n/4+1) || len(p.B) != 0 {
			t.Fatalf("%d bytes for %d", cap(p.B), n)
		}
		p.B = append(p.B, bytes.Repeat([]byte{7}, n)...)
		more := rapid.IntRange(0, 1<<20).Draw(t, "more")
		p.Grow(more)
		if cap(p.B)-len(p.B) < more || len(p.B) != n || bytes.Count(p.B, []byte{7}) != n {
			t.Fatalf("grown by %d: %d of %d bytes", more, len(p.B), cap(p.B))
		}
		p.Release()
	})
}
