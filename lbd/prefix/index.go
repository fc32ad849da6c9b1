package prefix

import "math/bits"

// index finds a node by its parent and the first hash of its edge: an open-addressing table with
// linear probing. An entry contains 32 bits of a mix of both, and the node's number. The tree
// compares the result with the node itself. The mix includes the parent, so that prefixes whose
// hashes collide, by chance or by intent, do not cluster.
//
// The upper bits of an entry's mix determine its home, the slot where probing starts. Entries are
// therefore almost in the order of their mixes in a table of any size. When the table grows, both the
// old and the new one are accessed sequentially, which is fast.
type index struct {
	slots []uint64 // mix in the upper half, node in the lower; 0 is free, because the root is never in the index
	shift int      // 32 - log2(len(slots))
	count int
}

const minSlots = 64

func mix(hash uint64, parent int32) uint64 {
	return (hash ^ uint64(parent)*0x9e3779b97f4a7c15) * 0xd6e8feb86659fd93 >> 32
}

func (x *index) home(entry uint64) int { return int(entry >> 32 >> x.shift) }

// nextEntry returns the node of the first entry of this mix at or after slot *at, and advances *at past
// it; none when there are no more.
func (x *index) nextEntry(m uint64, at *int) int32 {
	mask := len(x.slots) - 1
	for {
		e := x.slots[*at]
		*at = (*at + 1) & mask
		if e == 0 {
			return none
		}
		if e>>32 == m {
			return int32(uint32(e))
		}
	}
}

func (x *index) putEntry(hash uint64, parent, id int32) {
	if 4*(x.count+1) > 3*len(x.slots) {
		x.resize(max(minSlots, 2*len(x.slots)))
	}
	x.count++
	x.place(mix(hash, parent)<<32 | uint64(uint32(id)))
}

func (x *index) place(entry uint64) {
	mask := len(x.slots) - 1
	at := x.home(entry)
	for x.slots[at] != 0 {
		at = (at + 1) & mask
	}
	x.slots[at] = entry
}

// resize allocates a table of size slots, a power of two.
func (x *index) resize(size int) {
	old := x.slots
	x.slots, x.shift = make([]uint64, size), 32-bits.Len(uint(size-1))
	for _, e := range old {
		if e != 0 {
			x.place(e)
		}
	}
}

// slotOf returns the slot of an entry, which must exist.
func (x *index) slotOf(hash uint64, parent, id int32) int {
	entry := mix(hash, parent)<<32 | uint64(uint32(id))
	at := x.home(entry)
	for x.slots[at] != entry {
		at = (at + 1) & (len(x.slots) - 1)
	}
	return at
}

// replace sets the node of an entry to by.
func (x *index) replace(hash uint64, parent, id, by int32) {
	at := x.slotOf(hash, parent, id)
	x.slots[at] = x.slots[at]>>32<<32 | uint64(uint32(by))
}

// removeEntry removes an entry and moves later ones up, so that no probe stops early at a gap.
func (x *index) removeEntry(hash uint64, parent, id int32) {
	mask := len(x.slots) - 1
	gap := x.slotOf(hash, parent, id)
	for at := (gap + 1) & mask; x.slots[at] != 0; at = (at + 1) & mask {
		if home := x.home(x.slots[at]); (at-home)&mask >= (at-gap)&mask {
			x.slots[gap], gap = x.slots[at], at
		}
	}
	x.slots[gap] = 0
	x.count--
	if len(x.slots) > minSlots && 4*x.count < len(x.slots) {
		x.resize(len(x.slots) / 2)
	}
}
