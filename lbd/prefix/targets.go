package prefix

import (
	"math/bits"
	"slices"
)

// The targets of a node are a set of bits. The first 64 are in the node, the others in extra
// words, which are stored by chunk. All nodes of a chunk have the same number of extra words: as many
// as one of them has needed.

// stride returns the number of extra words per node in id's chunk.
func (t *Tree) stride(id int32) int { return len(t.extraTargets[id>>chunkBits]) >> chunkBits }

// extraWords returns the extra words of node id.
func (t *Tree) extraWords(id int32) []uint64 {
	m := t.extraTargets[id>>chunkBits]
	stride := len(m) >> chunkBits
	at := int(id&chunkMask) * stride
	return m[at : at+stride]
}

// word returns word w of node id's targets.
func (t *Tree) word(id int32, w int) uint64 {
	if w == 0 {
		return t.node(id).lowTargets
	}
	if m := t.extraWords(id); w <= len(m) {
		return m[w-1]
	}
	return 0
}

func (t *Tree) hasTarget(id int32, target int) bool {
	return t.word(id, target/64)&(1<<(target%64)) != 0
}

// addTarget adds target to node id's set and reports whether it was not in the set.
func (t *Tree) addTarget(id int32, target int) bool {
	if t.hasTarget(id, target) {
		return false
	}
	w, bit := target/64, uint64(1)<<(target%64)
	if w == 0 {
		t.node(id).lowTargets |= bit
	} else {
		t.widenTargets(id, w)
		t.extraWords(id)[w-1] |= bit
	}
	t.countTarget(id, target)
	t.cachedBytes[target] += int(t.node(id).length) * BlockBytes
	return true
}

// widenTargets extends the nodes of id's chunk to w extra words.
func (t *Tree) widenTargets(id int32, w int) {
	stride := t.stride(id)
	if w <= stride {
		return
	}
	t.width = max(t.width, w)
	chunk, wider := t.extraTargets[id>>chunkBits], make([]uint64, w<<chunkBits)
	for i := range chunkSize {
		copy(wider[i*w:], chunk[i*stride:(i+1)*stride])
	}
	t.extraTargets[id>>chunkBits] = wider
}

// unsetTarget removes target from node id's set, and changes no counter or list.
func (t *Tree) unsetTarget(id int32, target int) {
	if w, bit := target/64, uint64(1)<<(target%64); w == 0 {
		t.node(id).lowTargets &^= bit
	} else {
		t.extraWords(id)[w-1] &^= bit
	}
}

func (t *Tree) clearTargets(id int32) {
	t.node(id).lowTargets = 0
	clear(t.extraWords(id))
}

// copyTargets copies the targets of node from to node to, which must not have any.
func (t *Tree) copyTargets(from, to int32) {
	t.node(to).lowTargets = t.node(from).lowTargets
	if m := t.extraWords(from); slices.ContainsFunc(m, func(w uint64) bool { return w != 0 }) {
		t.widenTargets(to, len(m))
		copy(t.extraWords(to), m)
	}
}

func (t *Tree) hasNoTargets(id int32) bool {
	return t.node(id).lowTargets == 0 && !slices.ContainsFunc(t.extraWords(id), func(w uint64) bool { return w != 0 })
}

func (t *Tree) sameTargets(a, b int32) bool {
	if t.node(a).lowTargets != t.node(b).lowTargets {
		return false
	}
	for w := 1; w <= max(t.stride(a), t.stride(b)); w++ {
		if t.word(a, w) != t.word(b, w) {
			return false
		}
	}
	return true
}

// hasOnlyTarget reports whether target is the only target of node id.
func (t *Tree) hasOnlyTarget(id int32, target int) bool {
	for w := 0; w <= t.stride(id); w++ {
		want := uint64(0)
		if w == target/64 {
			want = 1 << (target % 64)
		}
		if t.word(id, w) != want {
			return false
		}
	}
	return t.hasTarget(id, target)
}

// eachTarget calls f for every target of node id in increasing order.
func (t *Tree) eachTarget(id int32, f func(target int)) {
	for w := 0; w <= t.stride(id); w++ {
		for m := t.word(id, w); m != 0; m &= m - 1 {
			f(w*64 + bits.TrailingZeros64(m))
		}
	}
}

// ensureTarget extends the tree's counters to include target.
func (t *Tree) ensureTarget(target int) {
	for len(t.cachedBytes) <= target {
		t.cachedBytes = append(t.cachedBytes, 0)
		t.counts = append(t.counts, 0)
		t.members = append(t.members, nil)
	}
}

// countTarget adds node id to target's counters.
func (t *Tree) countTarget(id int32, target int) {
	t.counts[target]++
	t.memberships++
	t.addMember(id, target)
}

// addMember appends node id to target's list. The list makes removal cheap, because it contains target's nodes and few
// others: those that target no longer has. It is compacted at about twice the number of target's nodes here, and at
// three times that number in uncountTarget.
func (t *Tree) addMember(id int32, target int) {
	if len(t.members[target]) > 2*t.counts[target]+32 {
		t.compactMembers(target)
	}
	t.members[target] = append(t.members[target], id)
}

// uncountTarget removes a node from target's counters. The node is removed from the list later,
// when the list is too long for target's count.
func (t *Tree) uncountTarget(target int) {
	t.counts[target]--
	t.memberships--
	if len(t.members[target]) > 3*t.counts[target]+64 {
		t.compactMembers(target)
	}
}

// compactMembers reduces target's list to the nodes that target has, each once: a node occurs twice
// if target lost it and got it again, or if its number was freed and reused for target.
func (t *Tree) compactMembers(target int) {
	list := t.members[target]
	current := list[:0]
	for _, id := range list {
		if id >= t.end || !t.hasTarget(id, target) {
			continue
		}
		if n := t.node(id); !n.seen() {
			n.setSeen(true)
			current = append(current, id)
		}
	}
	for _, id := range current {
		t.node(id).setSeen(false)
	}
	if cap(current) > 4*len(current)+64 {
		current = slices.Clone(current)
	}
	t.members[target] = current
}
