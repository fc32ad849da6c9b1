package prefix

// RemoveBelow records that target has evicted a block of key. kept is the number of blocks before the evicted one. Cached
// text needs all blocks before it, so target loses the block and everything after it. Besides the path to the block,
// RemoveBelow visits only the nodes from the block on.
func (t *Tree) RemoveBelow(key Key, kept, target int) {
	if kept < 0 || kept >= len(key) || target >= len(t.counts) || t.counts[target] == 0 {
		return
	}
	t.descend(key[:kept+1])
	d := &t.walked
	if d.depth <= kept {
		return // no target has the block
	}
	id, before := d.tip, d.pathDepth // the node that contains the block, and the blocks before it
	if id == none {
		id = d.end()
		before -= int(t.node(id).length)
	}
	if !t.hasTarget(id, target) {
		return
	}
	d.known = false
	if kept > before {
		t.split(id, kept-before) // id is the lower part
	}
	parent := t.node(id).parent
	list := t.collectBelow(id, target)
	for _, n := range list {
		t.unsetTarget(n, target)
		t.cachedBytes[target] -= int(t.node(n).length) * BlockBytes
	}
	t.memberships -= len(list)
	t.counts[target] -= len(list)
	for _, n := range list {
		t.prune(n)
	}
	for _, n := range append(list, parent) {
		if n != 0 && t.node(n).parent != unused {
			t.mergeChild(n)
		}
	}
	if len(t.members[target]) > 3*t.counts[target]+64 {
		t.compactMembers(target)
	}
	t.compactNodes(compactPerRemoval * len(list))
	t.protectedNode = none
	t.evict() // a split node needs memory
	t.edges.compact(t.moved)
}

// collectBelow returns node id and the nodes below it that target has, parents first.
func (t *Tree) collectBelow(id int32, target int) []int32 {
	list := []int32{id}
	for i := 0; i < len(list); i++ {
		for c := t.node(list[i]).child; c != none; c = t.node(c).right {
			if t.hasTarget(c, target) {
				list = append(list, c)
			}
		}
	}
	return list
}
