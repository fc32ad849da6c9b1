package prefix

import "time"

const (
	// nodeBytes is what a node costs beside its hashes and targets: itself, its
	// share of the index after that has grown, and of the holes between nodes.
	nodeBytes = 64 + 22 + 18
	// ownerBytes is what a node costs besides in a tree that knows owners.
	ownerBytes = 3
	// memberBytes is what one target of a node costs: its line in the target's list
	// at the list's longest.
	memberBytes = 12
	// maxEdge is the most hashes of one edge (32 KB of a prompt); a longer piece
	// of text is a chain of nodes. It bounds what one move of an edge costs.
	maxEdge = 512

	chunkBits = 8
	chunkSize = 1 << chunkBits
	chunkMask = chunkSize - 1

	none   = int32(-1)
	unused = int32(-2) // the parent of a node that is not in use
)

// node is one edge of the tree with the point it leads to: a cache line, so
// that a step down costs one miss. The hashes between the edge's first and last
// are kept apart: as a hash stands for all text before it, a walk that finds the
// last one equal needs none of them.
type node struct {
	first, last  uint64
	start        time.Duration // when the marked answer's session began
	lowTargets   uint64        // targets 0 to 63; see Tree.word for the others
	parent       int32
	child        int32  // first child
	left, right  int32  // siblings
	newer, older int32  // neighbours in the tree's order
	edge         uint32 // where the hashes between first and last are, if there are any
	length       uint16 // hashes of the edge, 1 to maxEdge
	tags         uint16 // see below
}

// A node's tags, from the lowest bit: whether an answer ends here, scratch of
// Tree.weed, and one more than the number of the target that was sent it last,
// as far as the bits go.
const (
	tagMarked   = 1 << 0
	tagSeen     = 1 << 1
	latestShift = 2
	maxLatest   = 1<<(16-latestShift) - 1
)

func (n *node) marked() bool { return n.tags&tagMarked != 0 }

func (n *node) seen() bool { return n.tags&tagSeen != 0 }

func (n *node) setSeen(seen bool) {
	n.tags &^= tagSeen
	if seen {
		n.tags |= tagSeen
	}
}

// setLatest notes that target was sent the node last.
func (n *node) setLatest(target int) {
	n.tags &= tagMarked | tagSeen
	if target < maxLatest {
		n.tags |= uint16(target+1) << latestShift
	}
}

// latest is the target that was sent the node last, -1 if that is not known.
func (n *node) latest() int { return int(n.tags>>latestShift) - 1 }

// hasInner reports whether an edge of so many hashes has any between its first
// and its last.
func hasInner(length int) bool { return length > 2 }

func (t *Tree) node(id int32) *node { return &t.chunks[id>>chunkBits][id&chunkMask] }

// hash is hash i of n's edge.
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

// setEdge makes hashes the edge of node id, which has none.
func (t *Tree) setEdge(id int32, hashes []uint64) {
	n := t.node(id)
	n.first, n.last, n.length = hashes[0], hashes[len(hashes)-1], uint16(len(hashes))
	if hasInner(len(hashes)) {
		n.edge = t.edges.appendPiece(hashes[1:len(hashes)-1], id)
	}
}

// dropEdge gives back the memory of node id's edge.
func (t *Tree) dropEdge(id int32) {
	if n := t.node(id); hasInner(int(n.length)) {
		t.edges.free(n.edge)
	}
}

// allocNode hands out a node, whose fields the caller sets. It makes a place only
// when there is no hole, so holes beyond the end are forgotten before the end
// comes back to them.
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

// takeHole is a free place below the end, none if there is none.
func (t *Tree) takeHole() int32 {
	for n := len(t.holes); n > 0; n = len(t.holes) {
		id := t.holes[n-1]
		if t.holes = t.holes[:n-1]; id < t.end {
			return id
		}
	}
	return none
}

// freeNode takes node id back.
func (t *Tree) freeNode(id int32) {
	t.clearTargets(id)
	*t.node(id) = node{parent: unused}
	t.holes = append(t.holes, id)
	t.count--
}

// compact moves the last nodes into the holes while a fifth of all places is
// such, so that a tree of few long edges does not keep the memory of many short
// ones. It frees as many places as most, so that no single call takes long.
func (t *Tree) compact(most int) {
	const slack = 4 * chunkSize
	for ; most > 0 && 4*(int(t.end)-1-t.count) > t.count+slack; most-- {
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

// moveNode makes node from node to, in everything that names it.
func (t *Tree) moveNode(from, to int32) {
	n := t.node(to)
	*n = *t.node(from)
	n.lowTargets = 0
	t.copyTargets(from, to)
	t.clearTargets(from)
	t.eachTarget(to, func(target int) { t.addMember(to, target) })
	if hasInner(int(n.length)) {
		t.edges.setOwner(n.edge, to)
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
