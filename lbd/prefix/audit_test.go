package prefix

import "slices"

type fataler interface{ Fatalf(string, ...any) }

// check verifies the tree's invariants.
func check(t fataler, tree *Tree) {
	a := audit{t: t, tree: tree, cachedBytes: make([]int, len(tree.cachedBytes)), counts: make([]int, len(tree.cachedBytes))}
	a.children(0)
	a.totals()
	a.edges()
	a.order()
}

type audit struct {
	t                   fataler
	tree                *Tree
	nodes, words        int
	cachedBytes, counts []int
}

func (a *audit) children(id int32) {
	tree, left := a.tree, none
	for c := tree.node(id).child; c != none; c = tree.node(c).right {
		n := tree.node(c)
		a.nodes++
		if n.parent != id || n.left != left {
			a.t.Fatalf("node %d is a child of %d after the sibling %d, but its fields name the parent %d and the left sibling %d", c, id, left, n.parent, n.left)
		}
		if got := tree.findChild(id, n.first); got != c {
			a.t.Fatalf("the index says %d for node %d", got, c)
		}
		if n.length < 1 || n.length > maxEdge || tree.hasNoTargets(c) || n.seen() {
			a.t.Fatalf("node %d has %d hashes, has targets %v, seen %v", c, n.length, !tree.hasNoTargets(c), n.seen())
		}
		if hasInner(int(n.length)) {
			a.piece(c, n)
		}
		a.targets(id, c)
		left = c
		a.children(c)
	}
}

func (a *audit) piece(id int32, n *node) {
	h := *a.tree.edges.header(n.edge)
	if size := int(h >> 32); int32(uint32(h)) != id || size < int(n.length)-1 || size > int(n.length) {
		a.t.Fatalf("the edge of node %d with %d hashes is a piece of %d words whose header names node %d", id, n.length, size, uint32(h))
	}
	a.words += int(h >> 32)
}

func (a *audit) targets(parent, id int32) {
	a.tree.eachTarget(id, func(target int) {
		a.cachedBytes[target] += int(a.tree.node(id).length) * BlockBytes
		a.counts[target]++
		if parent != 0 && !a.tree.hasTarget(parent, target) {
			a.t.Fatalf("target %d has node %d but not its parent", target, id)
		}
		if !slices.Contains(a.tree.members[target], id) {
			a.t.Fatalf("node %d is not in the list of target %d", id, target)
		}
	})
}

func (a *audit) totals() {
	tree, memberships := a.tree, 0
	for target, n := range a.counts {
		memberships += n
		if most := 3*n + 64; n > 0 && len(tree.members[target]) > most {
			a.t.Fatalf("the list of target %d has %d lines for %d nodes", target, len(tree.members[target]), n)
		}
	}
	inUse := int(tree.end) - 1
	for _, id := range tree.holes {
		if id < tree.end {
			inUse--
		}
	}
	if a.nodes != tree.count || a.nodes != tree.index.count || a.nodes != inUse {
		a.t.Fatalf("walked %d nodes; the tree says %d, %d indexed, %d in use", a.nodes, tree.count, tree.index.count, inUse)
	}
	if !slices.Equal(a.cachedBytes, tree.cachedBytes) || !slices.Equal(a.counts, tree.counts) || memberships != tree.memberships {
		a.t.Fatalf("counted %v bytes and %v nodes by target; the tree says %v and %v", a.cachedBytes, a.counts, tree.cachedBytes, tree.counts)
	}
}

func (a *audit) edges() {
	e, live, fill := &a.tree.edges, 0, 0
	for i, c := range e.chunks {
		live, fill = live+e.live[i], fill+e.fill[i]
		if c == nil && e.fill[i] != 0 {
			a.t.Fatalf("chunk %d was let go but has %d words", i, e.fill[i])
		}
	}
	if live != e.used || fill != e.used+e.dead || live != a.words {
		a.t.Fatalf("edges of %d words; the chunks have %d of %d, %d in use and %d dead", a.words, live, fill, e.used, e.dead)
	}
}

// order checks the age orders of the owners.
func (a *audit) order() {
	listed, weight, active, tree := 0, 0, 0, a.tree
	for owner := range tree.owners {
		o, own := &tree.owners[owner], 0
		seen := map[int32]bool{}
		for id := o.oldest; id != none; id = tree.node(id).newer {
			listed++
			own += weightOf(int(tree.node(id).length))
			if older := tree.node(id).older; older != none && tree.node(older).newer != id {
				a.t.Fatalf("node %d is not next to the older %d", id, older)
			}
			if tree.ownerOf(id) != owner || seen[tree.node(id).parent] {
				a.t.Fatalf("node %d of owner %d is in the order of %d, its parent before it: %v", id, tree.ownerOf(id), owner, seen[tree.node(id).parent])
			}
			seen[id] = true
			if tree.node(id).newer == none && o.newest != id {
				a.t.Fatalf("owner %d: the newest is said to be %d, it is %d", owner, o.newest, id)
			}
		}
		if tree.ownerOfNode == nil {
			own = 0 // owners are not tracked
		}
		if o.weight != own || o.released && own == 0 {
			a.t.Fatalf("owner %d has nodes of %d bytes and is said to have %d, released %v", owner, own, o.weight, o.released)
		}
		if slices.Contains(tree.released, int32(owner)) != o.released {
			a.t.Fatalf("owner %d: released is %v, but the list of released owners is %v", owner, o.released, tree.released)
		}
		weight += own
		if own > 0 && !o.released {
			active++
		}
	}
	if listed != a.nodes || weight != tree.weight || active != tree.active {
		a.t.Fatalf("%d nodes in the orders of age, want %d; %d bytes, said to be %d; %d owners, said to be %d", listed, a.nodes, weight, tree.weight, active, tree.active)
	}
	if tree.ownerOfNode == nil && tree.owners[0].oldest != none && tree.node(tree.owners[0].oldest).child != none {
		a.t.Fatalf("the oldest node %d is not a leaf", tree.owners[0].oldest)
	}
}
