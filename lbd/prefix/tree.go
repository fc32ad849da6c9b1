package prefix

import (
	"math/bits"
	"time"
)

// Tree maps prefixes to the targets that have them. Targets are small integers from 0 that the
// caller assigns. Memory stays under the bound passed to NewTree: the oldest leaves by the tree's
// Order are evicted first. Leaves of owners above their share (see owners.go) are evicted before
// others.
//
// Invariants: the root, which is node 0, has no targets; every other node has at least one, a subset
// of its parent's if the parent is not the root; a node is at least as new as its children of the same
// owner; every node but the root is in index by its parent and the first hash of its edge, and no two
// children of a node have the same first hash; cachedBytes[i] is the sum of the edges of target i and
// counts[i] their number; every node of target i is in members[i].
type Tree struct {
	chunks       []*[chunkSize]node // the nodes, which refer to each other by number
	extraTargets [][]uint64         // targets from 64 on, by chunk
	end          int32              // above all numbers in use
	holes        []int32            // node numbers below end that are not in use, and numbers >= end, which are ignored
	count        int                // nodes in use, without the root
	width        int                // maximum number of words of extraTargets that any node has had

	index    index
	edges    edges
	maxBytes int
	order    Order
	walked   descent

	cachedBytes    []int        // bytes of prefixes, by target
	counts         []int        // nodes, by target
	members        [][]int32    // current and some former nodes, by target
	memberships    int          // sum of counts
	owners         []ownerState // by owner, see owners.go
	ownerOfNode    []*[chunkSize]uint16
	weight         int     // sum of the owners' weights
	active         int     // owners that have a node and are not released
	released       []int32 // released owners
	heaviest       int     // the last result of heaviestOwner, see victim
	insertingOwner int     // the owner of the current insert, else of the last one: RemoveBelow may evict too
	protectedNode  int32   // the end of the inserted key, none = no protection; only valid during evict

	scratch []uint64                  // of growEdge and mergeChild
	moved   func(id int32, at uint32) // for edges.compact
}

// maxTreeBytes keeps the numbers of nodes and words within 32 bits: 16 GB.
const maxTreeBytes = 1 << 34

// NewTree returns a tree that stays within maxBytes of memory, by its own estimate. The
// maximum is 16 GB; one node is always kept. It evicts the least recent leaves first.
func NewTree(maxBytes int) *Tree { return NewTreeWithOrder(maxBytes, LeastRecent) }

// NewTreeWithOrder is NewTree with another eviction order.
func NewTreeWithOrder(maxBytes int, order Order) *Tree {
	t := &Tree{owners: []ownerState{{newest: none, oldest: none}}, maxBytes: min(maxBytes, maxTreeBytes), order: order}
	t.moved = func(id int32, at uint32) { t.node(id).edge = at }
	root := t.allocNode()
	*t.node(root) = node{parent: none, child: none, left: none, right: none, newer: none, older: none}
	t.count = 0
	return t
}

// Bytes returns the memory in use, as compared with the bound.
func (t *Tree) Bytes() int {
	bytes := t.count*(nodeBytes+8*t.width) + t.memberships*memberBytes + t.edges.used*wordBytes
	if t.ownerOfNode != nil {
		bytes += t.count * ownerBytes
	}
	return bytes
}

// Nodes returns the number of nodes without the root.
func (t *Tree) Nodes() int { return t.count }

// CachedBytes returns the number of bytes of prefixes that the target has. A part that several prefixes
// share counts once.
func (t *Tree) CachedBytes(target int) int {
	if target < len(t.cachedBytes) {
		return t.cachedBytes[target]
	}
	return 0
}

// Found is the result of matching a key.
type Found struct {
	Bytes         int           // longest leading part of the key that any target has, a multiple of BlockBytes
	SessionStart  time.Duration // start of the session of the last response in the key, see InsertResponse
	AfterResponse bool          // whether there is such a response; without one, SessionStart is 0
	Continues     bool          // whether the tree has text that follows these bytes; false if Bytes is 0
	// Uses is about the number of prompts that were inserted with these bytes: after nodes were merged, or a prompt was
	// extended, it may be that of longer or shorter bytes. 0 = unknown: the bytes end within the text of one conversation.
	Uses int
}

// Match sets out[i] to the number of leading bytes of key that target i has, a multiple of
// BlockBytes. Targets beyond len(out) are ignored. A response counts only if key matches up to the end
// of that response. Match does not change the tree's contents, and allocates only if its path is longer
// than all before.
func (t *Tree) Match(key Key, out []int) (found Found) {
	clear(out)
	t.descend(key)
	d := &t.walked
	depth := 0
	for i, id := range d.path {
		n := t.node(id)
		depth += int(n.length)
		if n.marked() {
			found.SessionStart, found.AfterResponse = n.sessionStart(), true
		}
		t.writeDepths(id, d.after(i), depth, out)
	}
	if d.tip != none {
		t.writeDepths(d.tip, none, d.depth, out)
	}
	found.Bytes = d.depth * BlockBytes
	last := d.tip
	if last == none {
		last = d.end()
	}
	found.Uses = t.node(last).uses()
	found.Continues = d.depth > 0 && (d.tip != none || t.node(d.end()).child != none)
	return found
}

// Superseded sets out[i] to the number of leading bytes of target i's match with key that were sent to another
// target later, a multiple of BlockBytes. Of several targets that have a text, the engine of the target that
// received it last is the least likely to have evicted it. Text does not count as superseded if the target that
// received it last is unknown, as after the removal of that target. After nodes were merged, an earlier receiver
// may count as the last one (see mergeChild). Targets beyond len(out) are ignored. Superseded does not change the tree's
// contents.
func (t *Tree) Superseded(key Key, out []int) {
	clear(out)
	t.descend(key)
	d := &t.walked
	// The path is walked from its deepest node towards the root, so that each target is met at the end of its match. The
	// result of a target is the depth of the deepest of its nodes that another target received last, or 0.
	//
	// For example, target 0 received "ab", then target 1 received "ac", and key is "ab". At node "b", target 0 is met. It
	// received "b" last, so it has no result yet. At node "a", target 1 is met. It received "a" last, so the result of
	// target 0 is the depth of "a". The walk ends, and the result of target 1 is 0.
	//
	// At every step, at most one target that was met has no result yet: undecided (-1 = none). It is the last receiver of
	// every node since it was met.
	undecided := -1
	below, depth := none, d.pathDepth
	if d.tip != none {
		undecided, below = t.writeSuperseded(d.tip, below, undecided, d.depth, out)
	}
	for i := len(d.path) - 1; i >= 0; i-- {
		undecided, below = t.writeSuperseded(d.path[i], below, undecided, depth, out)
		depth -= int(t.node(d.path[i]).length)
	}
}

// writeSuperseded is the step of Superseded for node id of the path, whose end is at depth. latest is the target that
// received id last, and below is the node of the last step that was not skipped, or none.
//  1. If latest is unknown or no longer has id, the step is skipped.
//  2. If undecided is another target than latest, its result is depth.
//  3. The targets that have id but not below are met now. Their result is depth, except that of latest, which becomes
//     undecided.
//
// writeSuperseded returns undecided and below for the next step.
func (t *Tree) writeSuperseded(id, below int32, undecided, depth int, out []int) (nextUndecided int, nextBelow int32) {
	latest := t.node(id).latest()
	if latest < 0 || !t.hasTarget(id, latest) {
		return undecided, below
	}
	if undecided >= 0 && undecided != latest {
		if undecided < len(out) {
			out[undecided] = depth * BlockBytes
		}
		undecided = -1
	}
	t.writeDepths(id, below, depth, out)
	if below == none || !t.hasTarget(below, latest) {
		if undecided = latest; latest < len(out) {
			out[latest] = 0
		}
	}
	return undecided, id
}

// writeDepths writes depth for the targets that have node id but not its descendant next, or for all
// targets that have id if next is none.
func (t *Tree) writeDepths(id, next int32, depth int, out []int) {
	for w := 0; w <= t.stride(id) && w*64 < len(out); w++ {
		m := t.word(id, w)
		if next != none {
			m &^= t.word(next, w)
		}
		for ; m != 0; m &= m - 1 {
			if target := w*64 + bits.TrailingZeros64(m); target < len(out) {
				out[target] = depth * BlockBytes
			}
		}
	}
}

// Insert records that target has key, and evicts the oldest leaves if the tree exceeds its bound.
func (t *Tree) Insert(key Key, target int) { t.insert(0, key, target, 0, false) }

// InsertResponse is Insert for a prompt together with its response: the end of key is marked as the end
// of a response of a session that began at start, by the caller's clock. A later mark at the same
// point replaces the earlier one, even if its start is earlier.
//
// A mark exists as long as its node. The marked node is not merged with its child, even if a response
// ends at the child too: a second continuation of the conversation could branch off at the end of the
// marked node. So a mark costs one node, which counts towards the bound.
func (t *Tree) InsertResponse(key Key, target int, start time.Duration) {
	t.insert(0, key, target, start, true)
}

func (t *Tree) insert(owner int, key Key, target int, start time.Duration, response bool) {
	if len(key) == 0 {
		return
	}
	t.ensureTarget(target)
	t.startInsert(owner)
	changed := t.insertNodes(key, target)
	for _, id := range t.walked.path {
		n := t.node(id)
		n.setLatest(target)
		if !response { // a response's prompt was counted when it was inserted
			n.countUse()
		}
	}
	if response {
		t.node(t.walked.end()).mark(start)
	}
	if changed || t.order == LeastRecent {
		// From the leaf to the root, so that every parent is newer than its children.
		for i := len(t.walked.path) - 1; i >= 0; i-- {
			t.makeNewest(t.walked.path[i])
		}
	}
	t.protectedNode = t.walked.end()
	t.evict()
	t.edges.compact(t.moved)
}

// insertNodes adds key's nodes, leaves them in the walked path, and adds target to each. It reports
// whether any of key is new to target.
func (t *Tree) insertNodes(key Key, target int) (changed bool) {
	t.descend(key)
	d := &t.walked
	if d.tip != none {
		d.push(t.split(d.tip, d.depth-d.pathDepth))
	}
	// A target that has a node has all nodes above it.
	for i := len(d.path) - 1; i >= 0 && t.addTarget(d.path[i], target); i-- {
		changed = true
	}
	if rest := key[d.depth:]; len(rest) > 0 {
		t.extend(rest, target)
		changed = true
	}
	d.extendTo(key)
	return changed
}

// extend adds rest below the walked path.
func (t *Tree) extend(rest []uint64, target int) {
	d := &t.walked
	if at := d.end(); t.canGrow(at, target) {
		k := min(len(rest), maxEdge-int(t.node(at).length))
		t.growEdge(at, rest[:k])
		t.cachedBytes[target] += k * BlockBytes
		rest = rest[k:]
	}
	for len(rest) > 0 {
		k := min(len(rest), maxEdge)
		d.path = append(d.path, t.addLeaf(d.end(), rest[:k], target))
		rest = rest[k:]
	}
}

// RemoveTarget removes everything that target has. It visits only the target's nodes.
func (t *Tree) RemoveTarget(target int) {
	if target >= len(t.counts) || t.counts[target] == 0 {
		return
	}
	t.walked.known = false
	t.compactMembers(target)
	list := t.members[target]
	for _, id := range list {
		t.unsetTarget(id, target)
	}
	t.memberships -= t.counts[target]
	t.cachedBytes[target], t.counts[target], t.members[target] = 0, 0, nil
	for _, id := range list {
		t.prune(id)
	}
	for _, id := range list {
		if t.node(id).parent != unused {
			t.mergeChild(id)
		}
	}
	t.compactNodes(compactPerRemoval * len(list))
	t.edges.compact(t.moved)
}

// prune removes node id if it has no children and no target has it, and then its ancestors
// likewise. When the last child of a node is pruned, the node is pruned too, so the order of calls
// does not matter.
func (t *Tree) prune(id int32) {
	for id != 0 && t.node(id).parent != unused && t.node(id).child == none && t.hasNoTargets(id) {
		parent := t.node(id).parent
		t.removeLeaf(id)
		id = parent
	}
}

// evict removes the oldest leaves until the tree is within its bound.
func (t *Tree) evict() {
	if t.Bytes() <= t.maxBytes {
		return
	}
	removed := 0 // number of leaves; each removal may have merged a parent with another node
	for ; t.Bytes() > t.maxBytes && t.count > 1; removed++ {
		leaf := t.victim()
		parent := t.node(leaf).parent
		t.removeLeaf(leaf)
		if parent != 0 {
			t.mergeChild(parent)
		}
	}
	t.walked.known = false
	t.compactNodes(compactPerRemoval * removed)
}
