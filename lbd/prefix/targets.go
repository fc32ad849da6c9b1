package prefix

import (
	"math/bits"
	"slices"
)

// The targets of a node are a set of bits: the first 64 in the node, those
// beyond in words beside the node's chunk, which a chunk has only as far as one
// of its nodes needs them.

// stride is how many words beyond the first the nodes of id's chunk have.
func (t *Tree) stride(id int32) int { return len(t.more[id>>chunkBits]) >> chunkBits }

// beyond is those words of node id.
func (t *Tree) beyond(id int32) []uint64 {
	m := t.more[id>>chunkBits]
	stride := len(m) >> chunkBits
	at := int(id&chunkMask) * stride
	return m[at : at+stride]
}

// word is word w of node id's targets.
func (t *Tree) word(id int32, w int) uint64 {
	if w == 0 {
		return t.node(id).low
	}
	if m := t.beyond(id); w <= len(m) {
		return m[w-1]
	}
	return 0
}

func (t *Tree) has(id int32, target int) bool {
	return t.word(id, target/64)&(1<<(target%64)) != 0
}

// add puts target into node id's set and reports whether it is new there.
func (t *Tree) add(id int32, target int) bool {
	if t.has(id, target) {
		return false
	}
	w, bit := target/64, uint64(1)<<(target%64)
	if w == 0 {
		t.node(id).low |= bit
	} else {
		t.widen(id, w)
		t.beyond(id)[w-1] |= bit
	}
	t.join(id, target)
	t.held[target] += int(t.node(id).length) * BlockBytes
	return true
}

// widen gives the nodes of id's chunk w words beyond the first.
func (t *Tree) widen(id int32, w int) {
	stride := t.stride(id)
	if w <= stride {
		return
	}
	t.width = max(t.width, w)
	chunk, wider := t.more[id>>chunkBits], make([]uint64, w<<chunkBits)
	for i := range chunkSize {
		copy(wider[i*w:], chunk[i*stride:(i+1)*stride])
	}
	t.more[id>>chunkBits] = wider
}

// drop takes target out of node id's set, and of nothing else.
func (t *Tree) drop(id int32, target int) {
	if w, bit := target/64, uint64(1)<<(target%64); w == 0 {
		t.node(id).low &^= bit
	} else {
		t.beyond(id)[w-1] &^= bit
	}
}

func (t *Tree) clearTargets(id int32) {
	t.node(id).low = 0
	clear(t.beyond(id))
}

// copyTargets gives node to, which has none, the targets of node from.
func (t *Tree) copyTargets(from, to int32) {
	t.node(to).low = t.node(from).low
	if m := t.beyond(from); slices.ContainsFunc(m, func(w uint64) bool { return w != 0 }) {
		t.widen(to, len(m))
		copy(t.beyond(to), m)
	}
}

func (t *Tree) unheld(id int32) bool {
	return t.node(id).low == 0 && !slices.ContainsFunc(t.beyond(id), func(w uint64) bool { return w != 0 })
}

func (t *Tree) sameTargets(a, b int32) bool {
	if t.node(a).low != t.node(b).low {
		return false
	}
	for w := 1; w <= max(t.stride(a), t.stride(b)); w++ {
		if t.word(a, w) != t.word(b, w) {
			return false
		}
	}
	return true
}

// only reports whether target alone holds node id.
func (t *Tree) only(id int32, target int) bool {
	for w := 0; w <= t.stride(id); w++ {
		want := uint64(0)
		if w == target/64 {
			want = 1 << (target % 64)
		}
		if t.word(id, w) != want {
			return false
		}
	}
	return t.has(id, target)
}

// eachTarget calls f for every target of node id in increasing order.
func (t *Tree) eachTarget(id int32, f func(target int)) {
	for w := 0; w <= t.stride(id); w++ {
		for m := t.word(id, w); m != 0; m &= m - 1 {
			f(w*64 + bits.TrailingZeros64(m))
		}
	}
}

// know makes room for what the tree counts of target.
func (t *Tree) know(target int) {
	for len(t.held) <= target {
		t.held = append(t.held, 0)
		t.counts = append(t.counts, 0)
		t.members = append(t.members, nil)
	}
}

// join counts target into node id.
func (t *Tree) join(id int32, target int) {
	t.counts[target]++
	t.memberships++
	t.enlist(id, target)
}

// enlist writes node id into target's list. The list is what makes removal
// cheap: it leads to target's nodes and to no others. A node that target lost
// stays in it until half of the list is such.
func (t *Tree) enlist(id int32, target int) {
	if len(t.members[target]) > 2*t.counts[target]+32 {
		t.weed(target)
	}
	t.members[target] = append(t.members[target], id)
}

// leave counts target out of a node; its list forgets the node later, when it
// is long for what target has.
func (t *Tree) leave(target int) {
	t.counts[target]--
	t.memberships--
	if len(t.members[target]) > 3*t.counts[target]+64 {
		t.weed(target)
	}
}

// weed leaves in target's list the nodes that it has, each once: a place of a
// node may have been given back and be target's again.
func (t *Tree) weed(target int) {
	list := t.members[target]
	kept := list[:0]
	for _, id := range list {
		if id >= t.end || !t.has(id, target) {
			continue
		}
		if n := t.node(id); !n.seen() {
			n.setSeen(true)
			kept = append(kept, id)
		}
	}
	for _, id := range kept {
		t.node(id).setSeen(false)
	}
	if cap(kept) > 4*len(kept)+64 {
		kept = slices.Clone(kept)
	}
	t.members[target] = kept
}
