package prefix

import "math/bits"

const (
	// nodeBytes is the memory that a node costs beside its hashes: the struct,
	// its entry in the index and the slack of both.
	nodeBytes = 160
	none      = int32(-1)
)

// node is one edge of the radix tree with the point it leads to. Nodes live in
// one slice and name each other by position.
type node struct {
	edge    []uint64 // chain hashes from the parent to here; never empty but at the root
	targets set      // who has the prefix that ends here; a subset of the parent's
	parent  int32
	child   int32 // first child
	sibling int32 // next child of the same parent
	newer   int32 // towards the newest by the tree's order
	older   int32 // towards the oldest
}

// Order says which leaves a full tree gives up first.
type Order int

const (
	// LeastRecent gives up the leaves whose prefix was sent longest ago (SGLang's
	// router).
	LeastRecent Order = iota
	// EarliestInserted gives up the leaves that became known first, however often
	// they were sent since (SkyLB section 3.2). A prefix becomes known when it, or
	// one more target that holds it, enters the tree.
	EarliestInserted
)

// Tree maps prefixes to the targets that hold them. Targets are small integers
// that the owner hands out. Memory stays under the bound given to New: the
// oldest leaves by the tree's Order go first.
//
// Invariants: a node's targets are a non-empty subset of its parent's; a
// node is at least as new as its children, so the oldest node is a leaf; every
// hash in index leads to the node whose edge begins with it; held[i] is the sum
// of the edges that target i has.
type Tree struct {
	nodes    []node
	free     []int32
	index    map[uint64]int32 // first hash of an edge -> its node
	newest   int32
	oldest   int32
	used     int
	maxBytes int
	order    Order
	held     []int   // bytes of prefixes by target
	path     []int32 // scratch of Insert
}

// NewTree makes a tree that keeps within maxBytes of memory (its own estimate
// of nodes and hashes; at least one prefix is always kept) and gives up the
// least recent leaves first.
func NewTree(maxBytes int) *Tree { return NewTreeInOrder(maxBytes, LeastRecent) }

// NewTreeInOrder is NewTree with another order of eviction.
func NewTreeInOrder(maxBytes int, order Order) *Tree {
	t := &Tree{index: make(map[uint64]int32), newest: none, oldest: none, maxBytes: maxBytes, order: order}
	t.nodes = append(t.nodes, node{parent: none, child: none, sibling: none, newer: none, older: none})
	return t
}

// Bytes is the memory in use, by the measure that the bound holds for.
func (t *Tree) Bytes() int { return t.used }

// Nodes is the number of nodes, the root not counted.
func (t *Tree) Nodes() int { return len(t.nodes) - 1 - len(t.free) }

// Held is how many bytes of prefixes the tree knows target to hold; what
// several prefixes share counts once.
func (t *Tree) Held(target int) int {
	if target < len(t.held) {
		return t.held[target]
	}
	return 0
}

// Match finds how much of key each target holds: out[i] becomes the number of
// leading bytes that target i has (a multiple of BlockBytes). Targets beyond
// len(out) are left out. It returns the longest of them. Match changes nothing
// in the tree and allocates nothing.
func (t *Tree) Match(key Key, out []int) int {
	clear(out)
	depth, at := 0, int32(0)
	have := &t.nodes[0].targets
	for depth < len(key) {
		next, ok := t.index[key[depth]]
		if !ok || t.nodes[next].parent != at {
			break
		}
		n := &t.nodes[next]
		settle(have, &n.targets, depth, out)
		have, at = &n.targets, next
		common := commonPrefix(n.edge, key[depth:])
		depth += common
		if common < len(n.edge) {
			break
		}
	}
	settle(have, &set{}, depth, out)
	return depth * BlockBytes
}

// settle writes the final depth of every target that is in prev but not in next.
func settle(prev, next *set, depth int, out []int) {
	if depth == 0 {
		return
	}
	for i := 0; i <= len(prev.more); i++ {
		for w := prev.word(i) &^ next.word(i); w != 0; w &= w - 1 {
			if target := i*64 + bits.TrailingZeros64(w); target < len(out) {
				out[target] = depth * BlockBytes
			}
		}
	}
}

func commonPrefix(a, b []uint64) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// Insert records that target holds key, and evicts the oldest leaves if that
// takes the tree over its bound.
func (t *Tree) Insert(key Key, target int) {
	if len(key) == 0 {
		return
	}
	t.nodes[0].targets.add(target)
	if len(t.held) <= target {
		t.held = append(t.held, make([]int, target+1-len(t.held))...)
	}
	news := t.walk(key, target)
	if news || t.order == LeastRecent {
		// The leaf first: afterwards every parent is newer than its children.
		for i := len(t.path) - 1; i >= 0; i-- {
			t.touch(t.path[i])
		}
	}
	t.evict()
}

// walk makes key's nodes, leaves them in path from the top down and puts target
// into each. It reports whether the last of them is new to target: when it is
// not, none is, as whoever has a node has its parents.
func (t *Tree) walk(key Key, target int) (news bool) {
	path, depth, at := t.path[:0], 0, int32(0)
	for depth < len(key) {
		next, ok := t.index[key[depth]]
		if !ok || t.nodes[next].parent != at {
			if ok {
				// Two prefixes whose chain hashes collide: keep the older.
				break
			}
			path, news = append(path, t.addNode(at, key[depth:], target)), true
			break
		}
		common := commonPrefix(t.nodes[next].edge, key[depth:])
		if common < len(t.nodes[next].edge) {
			next = t.split(next, common)
		}
		if news = t.nodes[next].targets.add(target); news {
			t.held[target] += common * BlockBytes
		}
		path = append(path, next)
		depth, at = depth+common, next
	}
	t.path = path
	return news
}

// addNode hangs a new leaf under parent.
func (t *Tree) addNode(parent int32, edge []uint64, target int) int32 {
	id := t.alloc()
	n := &t.nodes[id]
	*n = node{edge: append([]uint64(nil), edge...), parent: parent, child: none, sibling: t.nodes[parent].child, newer: none, older: none}
	n.targets.add(target)
	t.nodes[parent].child = id
	t.index[edge[0]] = id
	t.linkNewest(id)
	t.used += nodeBytes + 8*len(edge)
	t.held[target] += len(edge) * BlockBytes
	return id
}

// split cuts node id's edge after k hashes and returns the new upper node. The
// lower part keeps its id.
func (t *Tree) split(id int32, k int) int32 {
	up := t.alloc()
	low := &t.nodes[id]
	upper, lower := append([]uint64(nil), low.edge[:k]...), append([]uint64(nil), low.edge[k:]...)
	t.nodes[up] = node{edge: upper, targets: low.targets.clone(), parent: low.parent, child: id, sibling: none, newer: none, older: none}
	t.replaceChild(low.parent, id, up)
	low.edge, low.parent, low.sibling = lower, up, none
	t.index[upper[0]] = up
	t.index[lower[0]] = id
	t.linkBefore(up, id)
	t.used += nodeBytes
	return up
}

func (t *Tree) replaceChild(parent, old, replacement int32) {
	t.nodes[replacement].sibling = t.nodes[old].sibling
	if t.nodes[parent].child == old {
		t.nodes[parent].child = replacement
		return
	}
	for c := t.nodes[parent].child; c != none; c = t.nodes[c].sibling {
		if t.nodes[c].sibling == old {
			t.nodes[c].sibling = replacement
			return
		}
	}
}

func (t *Tree) alloc() int32 {
	if n := len(t.free); n > 0 {
		id := t.free[n-1]
		t.free = t.free[:n-1]
		return id
	}
	t.nodes = append(t.nodes, node{})
	return int32(len(t.nodes) - 1)
}

// RemoveTarget forgets everything that target holds. Only nodes that the
// target has are visited.
func (t *Tree) RemoveTarget(target int) {
	if !t.nodes[0].targets.has(target) {
		return
	}
	t.nodes[0].targets.remove(target)
	t.held[target] = 0
	stack := t.children(0, nil)
	var visited []int32
	for len(stack) > 0 {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if !t.nodes[id].targets.has(target) {
			continue
		}
		t.nodes[id].targets.remove(target)
		visited = append(visited, id)
		stack = t.children(id, stack)
	}
	// Children come after their parents in visited: backwards, every node that
	// nobody holds any more is a leaf when its turn comes.
	for i := len(visited) - 1; i >= 0; i-- {
		if t.nodes[visited[i]].targets.empty() {
			t.removeLeaf(visited[i])
		}
	}
	for _, id := range visited {
		if len(t.nodes[id].edge) > 0 {
			t.mergeChild(id)
		}
	}
}

func (t *Tree) children(id int32, into []int32) []int32 {
	for c := t.nodes[id].child; c != none; c = t.nodes[c].sibling {
		into = append(into, c)
	}
	return into
}

// evict removes the oldest leaves until the bound holds.
func (t *Tree) evict() {
	for t.used > t.maxBytes && t.oldest != none && t.Nodes() > 1 {
		parent := t.nodes[t.oldest].parent
		t.removeLeaf(t.oldest)
		if parent != 0 {
			t.mergeChild(parent)
		}
	}
}

// removeLeaf takes a node without children out of the tree.
func (t *Tree) removeLeaf(id int32) {
	n := &t.nodes[id]
	n.targets.each(func(target int) { t.held[target] -= len(n.edge) * BlockBytes })
	p := &t.nodes[n.parent]
	if p.child == id {
		p.child = n.sibling
	} else {
		for c := p.child; c != none; c = t.nodes[c].sibling {
			if t.nodes[c].sibling == id {
				t.nodes[c].sibling = n.sibling
				break
			}
		}
	}
	t.release(id)
}

func (t *Tree) release(id int32) {
	n := &t.nodes[id]
	t.unlink(id)
	delete(t.index, n.edge[0])
	t.used -= nodeBytes + 8*len(n.edge)
	*n = node{parent: none, child: none, sibling: none, newer: none, older: none}
	t.free = append(t.free, id)
}

// mergeChild joins a node with its only child when both are held by the same
// targets, so that a tree that shrinks does not stay in splinters.
func (t *Tree) mergeChild(id int32) {
	c := t.nodes[id].child
	if c == none || t.nodes[c].sibling != none || !t.nodes[id].targets.equal(&t.nodes[c].targets) {
		return
	}
	grandchild, lower := t.nodes[c].child, t.nodes[c].edge
	t.release(c)
	n := &t.nodes[id]
	n.edge = append(n.edge[:len(n.edge):len(n.edge)], lower...)
	n.child = grandchild
	t.used += 8 * len(lower)
	for g := grandchild; g != none; g = t.nodes[g].sibling {
		t.nodes[g].parent = id
	}
}

func (t *Tree) touch(id int32) {
	if t.newest == id {
		return
	}
	t.unlink(id)
	t.linkNewest(id)
}

func (t *Tree) linkNewest(id int32) {
	t.nodes[id].newer, t.nodes[id].older = none, t.newest
	if t.newest != none {
		t.nodes[t.newest].newer = id
	}
	t.newest = id
	if t.oldest == none {
		t.oldest = id
	}
}

// linkBefore puts id right on the newer side of other.
func (t *Tree) linkBefore(id, other int32) {
	newer := t.nodes[other].newer
	t.nodes[id].newer, t.nodes[id].older = newer, other
	t.nodes[other].newer = id
	if newer == none {
		t.newest = id
	} else {
		t.nodes[newer].older = id
	}
}

func (t *Tree) unlink(id int32) {
	n := &t.nodes[id]
	if n.newer != none {
		t.nodes[n.newer].older = n.older
	} else if t.newest == id {
		t.newest = n.older
	}
	if n.older != none {
		t.nodes[n.older].newer = n.newer
	} else if t.oldest == id {
		t.oldest = n.newer
	}
	n.newer, n.older = none, none
}
