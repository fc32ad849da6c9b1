package prefix

// Order is the order in which a full tree evicts leaves.
type Order int

const (
	// LeastRecent evicts the leaves whose prefix was sent longest ago (SGLang's router).
	LeastRecent Order = iota
	// EarliestInserted evicts the leaves that were inserted first, regardless of how often they were
	// sent since (SkyLB section 3.2). A leaf counts as inserted when it is added to the tree, and again when a further
	// target gets it.
	EarliestInserted
)

// makeNewest makes id the newest node of the owner of the current insert.
func (t *Tree) makeNewest(id int32) {
	if t.owners[t.insertingOwner].newest == id {
		return
	}
	t.unlink(id)
	t.transfer(id, t.insertingOwner)
	t.linkNewest(id)
}

func (t *Tree) linkNewest(id int32) {
	n, list := t.node(id), t.listOf(id)
	n.newer, n.older = none, list.newest
	list.newest = id
	t.relink(id)
}

// linkNewer inserts id into the age order as the next newer node after other. Both must have the
// same owner.
func (t *Tree) linkNewer(id, other int32) {
	n := t.node(id)
	n.newer, n.older = t.node(other).newer, other
	t.relink(id)
}

// relink updates the neighbours of id to refer to id.
func (t *Tree) relink(id int32) {
	n := t.node(id)
	if n.newer == none {
		t.listOf(id).newest = id
	} else {
		t.node(n.newer).older = id
	}
	if n.older == none {
		t.listOf(id).oldest = id
	} else {
		t.node(n.older).newer = id
	}
}

func (t *Tree) unlink(id int32) {
	n := t.node(id)
	if n.newer == none {
		t.listOf(id).newest = n.older
	} else {
		t.node(n.newer).older = n.older
	}
	if n.older == none {
		t.listOf(id).oldest = n.newer
	} else {
		t.node(n.older).newer = n.newer
	}
}
