package bfio

import "math/bits"

// bitset is a set of small positions with a search for the nearest member in both directions.
type bitset []uint64

func (b *bitset) reset(n int) {
	*b = resize(*b, n/64+1)
	clear(*b)
}

func (b bitset) setBit(i int32)   { b[i>>6] |= 1 << (i & 63) }
func (b bitset) clearBit(i int32) { b[i>>6] &^= 1 << (i & 63) }

// nextBit returns the first member in [from, to), or -1.
func (b bitset) nextBit(from, to int32) int32 {
	if from >= to {
		return -1
	}
	w := from >> 6
	word := b[w] >> (from & 63) << (from & 63)
	for word == 0 {
		if w++; w > (to-1)>>6 {
			return -1
		}
		word = b[w]
	}
	if at := w<<6 + int32(bits.TrailingZeros64(word)); at < to {
		return at
	}
	return -1
}

// prevBit returns the last member in [from, to), or -1.
func (b bitset) prevBit(from, to int32) int32 {
	if from >= to {
		return -1
	}
	last := to - 1
	w := last >> 6
	word := b[w] << (63 - last&63) >> (63 - last&63)
	for word == 0 {
		if w--; w < from>>6 {
			return -1
		}
		word = b[w]
	}
	if at := w<<6 + 63 - int32(bits.LeadingZeros64(word)); at >= from {
		return at
	}
	return -1
}
