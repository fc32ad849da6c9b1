package prefix

import (
	"slices"
	"sort"

	"github.com/zeebo/xxh3"
)

// BlockBytes is the number of bytes per hash of a Key. Smaller blocks would also find shorter matches,
// but cost more memory; 64 bytes are about 16 tokens, the size of a KV block of engines.
const BlockBytes = 64

// Key is a prompt as chain hashes, one per full block: Key[i] depends on every byte of blocks 0..i.
// A trailing partial block is not part of the key.
type Key []uint64

// Bytes returns the number of prompt bytes that the key covers.
func (k Key) Bytes() int { return len(k) * BlockBytes }

// CommonBlocks returns the number of leading blocks that two keys have in common.
func (k Key) CommonBlocks(other Key) int {
	// A hash covers all blocks before it, so the equal ones come first.
	return sort.Search(min(len(k), len(other)), func(i int) bool { return k[i] != other[i] })
}

// Hasher converts a stream of bytes to a Key. The key is the same whether a prompt is written in
// one piece or many, so a response can be appended to its prompt as it streams. The zero Hasher has
// the seed 0; see NewHasher.
type Hasher struct {
	chain uint64
	key   Key
	part  [BlockBytes]byte
	n     int // bytes in part
	total int
}

// NewHasher starts a key. Hashers with different seeds return unrelated keys: with a seed that
// clients cannot know, they cannot construct collisions.
func NewHasher(seed uint64) *Hasher { return &Hasher{chain: seed} }

// Reset starts over with seed. If reuse is true, it reuses the key's memory, and the caller must
// not use an earlier Key.
func (h *Hasher) Reset(seed uint64, reuse bool) {
	if reuse {
		h.key = h.key[:0]
	} else {
		h.key = nil
	}
	h.chain, h.n, h.total = seed, 0, 0
}

// Grow reserves memory for the key of that many further bytes.
func (h *Hasher) Grow(bytes int) { h.key = slices.Grow(h.key, max(0, bytes)/BlockBytes) }

// Write appends bytes to the prompt. It never fails.
func (h *Hasher) Write(p []byte) (int, error) {
	written := len(p)
	h.total += written
	if h.n > 0 {
		c := copy(h.part[h.n:], p)
		h.n += c
		p = p[c:]
		if h.n < BlockBytes {
			return written, nil
		}
		h.block(h.part[:])
		h.n = 0
	}
	for len(p) >= BlockBytes {
		h.block(p[:BlockBytes])
		p = p[BlockBytes:]
	}
	h.n = copy(h.part[:], p)
	return written, nil
}

// WriteString appends a string to the prompt.
func (h *Hasher) WriteString(s string) (int, error) {
	written := len(s)
	for len(s) > 0 {
		var buf [BlockBytes]byte
		c := copy(buf[:], s)
		_, _ = h.Write(buf[:c])
		s = s[c:]
	}
	return written, nil
}

func (h *Hasher) block(b []byte) {
	h.chain = xxh3.HashSeed(b, h.chain)
	h.key = append(h.key, h.chain)
}

// Key returns the key of the bytes written so far. Later writes may append to its memory but never
// change it.
func (h *Hasher) Key() Key { return h.key[:len(h.key):len(h.key)] }

// Len returns the number of bytes written so far, including the partial block.
func (h *Hasher) Len() int { return h.total }
