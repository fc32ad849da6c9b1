package prefix

// addLeaf adds a new node below parent.
func (t *Tree) addLeaf(parent int32, edge []uint64, target int) int32 {
	id := t.allocNode()
	*t.node(id) = node{child: none, left: none, right: none}
	t.setOwner(id, t.insertingOwner)
	t.addWeight(t.insertingOwner, weightOf(len(edge)))
	t.setEdge(id, edge)
	t.addChild(parent, id)
	t.addTarget(id, target)
	t.linkNewest(id)
	return id
}

// addChild makes id the first child of parent.
func (t *Tree) addChild(parent, id int32) {
	n, p := t.node(id), t.node(parent)
	n.parent, n.left, n.right = parent, none, p.child
	if p.child != none {
		t.node(p.child).left = id
	}
	p.child = id
	t.index.putEntry(n.first, parent, id)
}

// removeChild removes id from its parent's list of children.
func (t *Tree) removeChild(id int32) {
	n := t.node(id)
	if n.left == none {
		t.node(n.parent).child = n.right
	} else {
		t.node(n.left).right = n.right
	}
	if n.right != none {
		t.node(n.right).left = n.left
	}
	t.index.removeEntry(n.first, n.parent, id)
}

// setParent sets the parent of node id. The node keeps its position among its siblings.
func (t *Tree) setParent(id, parent int32) {
	n := t.node(id)
	t.index.removeEntry(n.first, n.parent, id)
	n.parent = parent
	t.index.putEntry(n.first, parent, id)
}

// split splits node id's edge after k hashes and returns the new upper node. The lower part keeps
// the number, the children and the mark.
func (t *Tree) split(id int32, k int) int32 {
	up := t.allocNode()
	low := t.node(id)
	length, last, first := int(low.length), t.hash(low, k-1), t.hash(low, k)
	t.removeChild(id)
	*t.node(up) = node{first: low.first, last: last, length: uint16(k), edge: low.edge, child: none, tags: low.tags &^ tagMarked, detail: max(1, int64(low.uses()))}
	if hasInner(length) {
		low.edge = t.edges.splitPiece(low.edge, length, k, up, id)
	}
	owner := t.ownerOf(id)
	t.setOwner(up, owner)
	t.addWeight(owner, nodeBytes)
	t.addChild(low.parent, up)
	low.first, low.length = first, uint16(length-k)
	t.addChild(up, id)
	t.copyTargets(id, up)
	t.eachTarget(up, func(target int) { t.countTarget(up, target) })
	t.linkNewer(up, id)
	return up
}

// canGrow reports whether the edge of node id can be extended in place of a new leaf of target below it: the node is a
// leaf, only target has it, and no response ends there. Eviction loses nothing by this: a new leaf would have the same age
// as the node.
func (t *Tree) canGrow(id int32, target int) bool {
	n := t.node(id)
	return id != 0 && n.child == none && !n.marked() && int(n.length) < maxEdge && t.hasOnlyTarget(id, target)
}

// growEdge extends node id's edge.
func (t *Tree) growEdge(id int32, by []uint64) {
	t.scratch = append(t.hashes(t.node(id), t.scratch[:0]), by...)
	t.dropEdge(id)
	t.setEdge(id, t.scratch)
	t.addWeight(t.ownerOf(id), wordBytes*len(by))
}

// mergeChild merges a node with its only child if both have the same targets, so that a shrinking
// tree does not become fragmented. A marked node is not merged; see InsertResponse. The child keeps
// its number, so that its own children need no update. It also keeps its mark and its latest target,
// which then applies to the text of the upper node too; it gets the upper node's age and owner.
func (t *Tree) mergeChild(id int32) {
	n, c := t.node(id), t.node(id).child
	if c == none || t.node(c).right != none || n.marked() || int(n.length)+int(t.node(c).length) > maxEdge || !t.sameTargets(id, c) {
		return
	}
	t.scratch = t.hashes(t.node(c), t.hashes(n, t.scratch[:0]))
	t.unlink(c)
	t.transfer(c, t.ownerOf(id))
	t.addWeight(t.ownerOf(id), -nodeBytes)
	if t.protectedNode == id {
		t.protectedNode = c
	}
	t.removeChild(c)
	t.removeChild(id)
	t.dropEdge(c)
	t.dropEdge(id)
	t.setEdge(c, t.scratch)
	t.addChild(n.parent, c)
	t.eachTarget(id, t.uncountTarget)
	t.linkNewer(c, id)
	t.unlink(id)
	t.freeNode(id)
}

// removeLeaf removes a node without children from the tree.
func (t *Tree) removeLeaf(id int32) {
	bytes := int(t.node(id).length) * BlockBytes
	t.eachTarget(id, func(target int) {
		t.cachedBytes[target] -= bytes
		t.uncountTarget(target)
	})
	t.addWeight(t.ownerOf(id), -weightOf(int(t.node(id).length)))
	t.removeChild(id)
	t.dropEdge(id)
	t.unlink(id)
	t.freeNode(id)
}
