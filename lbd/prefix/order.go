package prefix

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

func (t *Tree) touch(id int32) {
	if t.newest == id {
		return
	}
	t.unlink(id)
	t.linkNewest(id)
}

func (t *Tree) linkNewest(id int32) {
	n := t.node(id)
	n.newer, n.older = none, t.newest
	t.newest = id
	t.relink(id)
}

// linkBefore puts id right on the newer side of other.
func (t *Tree) linkBefore(id, other int32) {
	n := t.node(id)
	n.newer, n.older = t.node(other).newer, other
	t.relink(id)
}

// relink makes the neighbours that id names name id.
func (t *Tree) relink(id int32) {
	n := t.node(id)
	if n.newer == none {
		t.newest = id
	} else {
		t.node(n.newer).older = id
	}
	if n.older == none {
		t.oldest = id
	} else {
		t.node(n.older).newer = id
	}
}

func (t *Tree) unlink(id int32) {
	n := t.node(id)
	if n.newer == none {
		t.newest = n.older
	} else {
		t.node(n.newer).older = n.older
	}
	if n.older == none {
		t.oldest = n.newer
	} else {
		t.node(n.older).newer = n.newer
	}
}
