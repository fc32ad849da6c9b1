package prefix

import "time"

const (
	// nodeBytes is the memory of a node without its hashes and targets, in bytes:
	//   - 64: the node itself.
	//   - 22: its slots in the index, 8/3 of 8 bytes when the index has just grown (see putEntry); after removals, up to 32.
	//   - 18 = (64+4)/4 + 1: one hole, an unused node with its number in Tree.holes, for every 4 nodes (see
	//     compactNodes); 1 more because the capacity of Tree.holes may exceed its length.
	nodeBytes = 64 + 22 + 18
	// ownerBytes is the additional memory of a node in a tree with owners.
	ownerBytes = 3
	// memberBytes is the memory of one target of a node: 4 bytes for the node's number in the target's
	// list, times 3, because the list may have three times as many entries as the target has nodes
	// (see uncountTarget).
	memberBytes = 12
	// maxEdge is the maximum number of hashes of one edge (32 KB of a prompt); longer text is stored
	// as a chain of nodes. It bounds the cost of moving an edge.
	maxEdge = 512

	chunkBits = 8
	chunkSize = 1 << chunkBits
	chunkMask = chunkSize - 1

	none   = int32(-1)
	unused = int32(-2) // the parent of a node that is not in use
)

// node is one edge of the tree with the point it leads to. Its size is one cache line, so that
// reading it costs one cache miss; a step down also reads the index. The hashes between the edge's
// first and last are stored separately. A hash identifies all text before it, so a walk that finds
// an equal last hash does not need them.
type node struct {
	first, last uint64
	// detail has two meanings, so that a node stays within a cache line. In a marked node, it is the start of the marked
	// response's session (sessionStart), in others the number of prompts that were inserted through the node (uses).
	detail       int64
	lowTargets   uint64 // targets 0 to 63; see Tree.word for the others
	parent       int32
	child        int32  // first child
	left, right  int32  // siblings
	newer, older int32  // neighbours in the age order of its owner
	edge         uint32 // position of the piece with the hashes between first and last, if there are any
	length       uint16 // hashes of the edge, 1 to maxEdge
	tags         uint16 // see below
}

// The tags of a node, from the lowest bit: whether a response ends here; scratch of compactMembers;
// and 1 + the target to which the prefix was sent last, if that fits the bits.
const (
	tagMarked   = 1 << 0
	tagSeen     = 1 << 1
	latestShift = 2
	maxLatest   = 1<<(16-latestShift) - 1
)

func (n *node) marked() bool { return n.tags&tagMarked != 0 }

// sessionStart returns when the session of a marked node's response began.
func (n *node) sessionStart() time.Duration { return time.Duration(n.detail) }

// uses returns how many prompts were inserted through the node, 0 if it is marked.
func (n *node) uses() int {
	if n.marked() {
		return 0
	}
	return int(n.detail)
}

// countUse counts a prompt that was inserted through the node.
func (n *node) countUse() {
	if !n.marked() {
		n.detail++
	}
}

// mark marks the node as the end of a response of a session that began at start.
func (n *node) mark(start time.Duration) { n.detail, n.tags = int64(start), n.tags|tagMarked }

func (n *node) seen() bool { return n.tags&tagSeen != 0 }

func (n *node) setSeen(seen bool) {
	n.tags &^= tagSeen
	if seen {
		n.tags |= tagSeen
	}
}

// setLatest records that the node's prefix was sent to target last.
func (n *node) setLatest(target int) {
	n.tags &= tagMarked | tagSeen
	if target < maxLatest {
		n.tags |= uint16(target+1) << latestShift
	}
}

// latest returns the target to which the node's prefix was sent last, or -1 if that is unknown.
func (n *node) latest() int { return int(n.tags>>latestShift) - 1 }

// hasInner reports whether an edge of n hashes has any between its first and its last.
func hasInner(n int) bool { return n > 2 }

func (t *Tree) node(id int32) *node { return &t.chunks[id>>chunkBits][id&chunkMask] }

// hash returns hash i of n's edge.
func (t *Tree) hash(n *node, i int) uint64 {
	switch i {
	case 0:
		return n.first
	case int(n.length) - 1:
		return n.last
	}
	return t.edges.word(n.edge + uint32(i))
}

// hashes appends n's edge to into.
func (t *Tree) hashes(n *node, into []uint64) []uint64 {
	into = append(into, n.first)
	if hasInner(int(n.length)) {
		into = append(into, t.edges.words(n.edge+1, int(n.length)-2)...)
	}
	if n.length > 1 {
		into = append(into, n.last)
	}
	return into
}

// setEdge sets the edge of node id, which must not have one.
func (t *Tree) setEdge(id int32, hashes []uint64) {
	n := t.node(id)
	n.first, n.last, n.length = hashes[0], hashes[len(hashes)-1], uint16(len(hashes))
	if hasInner(len(hashes)) {
		n.edge = t.edges.appendPiece(hashes[1:len(hashes)-1], id)
	}
}

// dropEdge frees the memory of node id's edge.
func (t *Tree) dropEdge(id int32) {
	if n := t.node(id); hasInner(int(n.length)) {
		t.edges.free(n.edge)
	}
}

// allocNode returns the number of a free node; the caller sets its fields. compactNodes lowers end, and leaves numbers
// >= end in holes. Therefore end grows only when holes is empty: otherwise the new node's number could be in holes too,
// and would be allocated twice.
func (t *Tree) allocNode() int32 {
	t.count++
	if id := t.takeHole(); id != none {
		return id
	}
	if int(t.end>>chunkBits) == len(t.chunks) {
		t.chunks = append(t.chunks, new([chunkSize]node))
		t.extraTargets = append(t.extraTargets, nil)
		if t.ownerOfNode != nil {
			t.ownerOfNode = append(t.ownerOfNode, new([chunkSize]uint16))
		}
	}
	t.end++
	return t.end - 1
}

// takeHole returns the number of a free node below end, or none.
func (t *Tree) takeHole() int32 {
	for n := len(t.holes); n > 0; n = len(t.holes) {
		id := t.holes[n-1]
		if t.holes = t.holes[:n-1]; id < t.end {
			return id
		}
	}
	return none
}

// freeNode frees node id.
func (t *Tree) freeNode(id int32) {
	t.clearTargets(id)
	*t.node(id) = node{parent: unused}
	t.holes = append(t.holes, id)
	t.count--
}

// compactPerRemoval is the limit of compactNodes for each removed node. A removal leaves up to two holes, because the
// parent may be merged with another node. With a higher limit, earlier holes are filled too.
const compactPerRemoval = 4

// compactNodes moves the last nodes into the holes while the number of holes exceeds a quarter of the number of
// nodes by more than a chunk. So a tree of few long edges does not keep the memory of many short ones. It
// frees at most limit node numbers, so that no single call takes long.
func (t *Tree) compactNodes(limit int) {
	const slack = 4 * chunkSize
	for ; limit > 0 && 4*(int(t.end)-1-t.count) > t.count+slack; limit-- {
		t.walked.known = false
		t.end--
		if t.node(t.end).parent != unused {
			t.moveNode(t.end, t.takeHole())
		}
	}
	if used := int(t.end)>>chunkBits + 1; used < len(t.chunks) {
		clear(t.chunks[used:])
		clear(t.extraTargets[used:])
		t.chunks, t.extraTargets = t.chunks[:used], t.extraTargets[:used]
		if t.ownerOfNode != nil {
			clear(t.ownerOfNode[used:])
			t.ownerOfNode = t.ownerOfNode[:used]
		}
	}
}

// moveNode moves a node from number from to number to and updates everything that refers to it,
// except walked, which the caller invalidates, and protectedNode, which is not used after evict.
func (t *Tree) moveNode(from, to int32) {
	n := t.node(to)
	*n = *t.node(from)
	n.lowTargets = 0
	t.copyTargets(from, to)
	t.clearTargets(from)
	t.eachTarget(to, func(target int) { t.addMember(to, target) })
	if hasInner(int(n.length)) {
		t.edges.setNode(n.edge, to)
	}
	t.index.replace(n.first, n.parent, from, to)
	if n.left == none {
		t.node(n.parent).child = to
	} else {
		t.node(n.left).right = to
	}
	if n.right != none {
		t.node(n.right).left = to
	}
	for c := n.child; c != none; c = t.node(c).right {
		t.setParent(c, to)
	}
	t.setOwner(to, t.ownerOf(from))
	t.relink(to)
}
