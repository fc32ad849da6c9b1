package prefix

import (
	"slices"
	"time"
)

// Owners are the owners of prompts in a tree: small integers from 0 that the caller assigns. A node
// belongs to the owner that last inserted a key through it. Each owner's nodes have their own age
// order, and a full tree evicts the oldest leaf of an owner above its share, so that no owner's
// prompts evict all others'. A released owner has no share: its nodes are evicted first.
//
// While everything inserted belongs to owner 0, a tree does not track owners.

// ownerState is what the tree counts of an owner.
type ownerState struct {
	newest, oldest int32 // of its nodes
	weight         int   // what they cost, more or less, in bytes
	released       bool
}

// MaxOwners bounds the owners' numbers.
const MaxOwners = 1 << 16

// InsertFor is Insert for an owner; Insert is for owner 0.
func (t *Tree) InsertFor(owner int, key Key, target int) { t.insert(owner, key, target, 0, false) }

// InsertAnswerFor is InsertAnswer for an owner.
func (t *Tree) InsertAnswerFor(owner int, key Key, target int, start time.Duration) {
	t.insert(owner, key, target, start, true)
}

// Weight is about how many bytes the tree spends on an owner's nodes.
func (t *Tree) Weight(owner int) int {
	switch {
	case t.ownerOfNode == nil && owner == 0:
		return t.Bytes()
	case owner < len(t.owners):
		return t.owners[owner].weight
	}
	return 0
}

// Release takes an owner's share away until something is inserted for it again.
func (t *Tree) Release(owner int) {
	if owner >= len(t.owners) || t.owners[owner].weight == 0 || t.owners[owner].released {
		return
	}
	t.owners[owner].released = true
	t.active--
	t.released = append(t.released, int32(owner))
}

// startInsert makes owner the one whose key is inserted now.
func (t *Tree) startInsert(owner int) {
	t.insertingOwner = owner
	if owner >= len(t.owners) {
		t.ensureOwner(owner)
	}
	if t.owners[owner].released {
		t.unrelease(owner)
		t.active++
	}
}

// unrelease takes an owner off the released.
func (t *Tree) unrelease(owner int) {
	t.owners[owner].released = false
	t.released = slices.DeleteFunc(t.released, func(o int32) bool { return int(o) == owner })
}

// ensureOwner makes room for what the tree counts of an owner, and for the owners of nodes.
func (t *Tree) ensureOwner(owner int) {
	for len(t.owners) <= owner {
		t.owners = append(t.owners, ownerState{newest: none, oldest: none})
	}
	if t.ownerOfNode != nil {
		return
	}
	t.ownerOfNode = make([]*[chunkSize]uint16, len(t.chunks))
	for i := range t.ownerOfNode {
		t.ownerOfNode[i] = new([chunkSize]uint16)
	}
	for id := t.owners[0].oldest; id != none; id = t.node(id).newer {
		t.addWeight(0, weightOf(int(t.node(id).length)))
	}
}

// ownerOf is whose node id is.
func (t *Tree) ownerOf(id int32) int {
	if t.ownerOfNode == nil {
		return 0
	}
	return int(t.ownerOfNode[id>>chunkBits][id&chunkMask])
}

// setOwner notes whose node id is, and counts nothing.
func (t *Tree) setOwner(id int32, owner int) {
	if t.ownerOfNode != nil {
		t.ownerOfNode[id>>chunkBits][id&chunkMask] = uint16(owner)
	}
}

// listOf is the order of age that node id is in.
func (t *Tree) listOf(id int32) *ownerState { return &t.owners[t.ownerOf(id)] }

// weightOf is what a node of so many hashes counts.
func weightOf(length int) int { return nodeBytes + wordBytes*length }

// addWeight adds to what an owner's nodes cost, where owners are known.
func (t *Tree) addWeight(owner, by int) {
	if t.ownerOfNode != nil {
		t.addOwnerWeight(owner, by)
	}
}

func (t *Tree) addOwnerWeight(owner, by int) {
	o := &t.owners[owner]
	before := o.weight
	o.weight += by
	t.weight += by
	switch {
	case o.weight == 0 && o.released:
		t.unrelease(owner)
	case o.weight == 0 && before > 0:
		t.active--
	case before == 0 && o.weight > 0:
		t.active++
	}
}

// transfer makes node id, which is in no order of age, owner's.
func (t *Tree) transfer(id int32, owner int) {
	was := t.ownerOf(id)
	if was == owner {
		return
	}
	w := weightOf(int(t.node(id).length))
	t.addWeight(was, -w)
	t.addWeight(owner, w)
	t.setOwner(id, owner)
}

// victim is the leaf to evict next: of an owner that was released, else of the one that
// inserts if it has more than its share, else of the one that has the most. What was
// just inserted stays, unless its owner has more than its share and nobody else has.
func (t *Tree) victim() int32 {
	if t.ownerOfNode == nil {
		return t.owners[0].oldest
	}
	for i := len(t.released) - 1; i >= 0; i-- {
		if id := t.oldestLeaf(int(t.released[i])); id != none {
			return id
		}
	}
	for {
		share := t.weight / max(1, t.active)
		over := t.owners[t.insertingOwner].weight > share
		if over {
			if id := t.oldestLeaf(t.insertingOwner); id != none {
				return id
			}
		}
		if t.owners[t.heaviest].weight <= share || t.owners[t.heaviest].oldest == t.protectedNode {
			t.heaviest = t.heaviestOwner()
		}
		if w := t.owners[t.heaviest].weight; w == 0 || over && w <= share || t.owners[t.heaviest].oldest == t.protectedNode {
			t.protectedNode = none // from its end on
			continue
		}
		if id := t.oldestLeaf(t.heaviest); id != none {
			return id
		}
	}
}

// heaviestOwner is the owner with the most, but for one that has only what was just
// inserted.
func (t *Tree) heaviestOwner() (heaviest int) {
	for o := range t.owners {
		if x, most := &t.owners[o], &t.owners[heaviest]; x.oldest != t.protectedNode && (x.weight > most.weight || most.oldest == t.protectedNode) {
			heaviest = o
		}
	}
	return heaviest
}

// oldestLeaf is an owner's oldest leaf, none if it has none but what was just inserted.
// Where the oldest node is no leaf, others inserted below it: it becomes theirs.
func (t *Tree) oldestLeaf(owner int) int32 {
	for {
		switch id := t.owners[owner].oldest; {
		case id == none || id == t.protectedNode:
			return none
		case t.node(id).child == none:
			return id
		default:
			t.giveToChildOwner(id)
		}
	}
}

// giveToChildOwner gives node id, and what is above it of the same owner, to the owner of its
// first child, as the newest it has: so a parent stays newer than its children.
func (t *Tree) giveToChildOwner(id int32) {
	heir := t.ownerOf(t.node(id).child)
	for at := id; at != 0; at = t.node(at).parent {
		if at == id || t.ownerOf(at) == heir {
			t.unlink(at)
			t.transfer(at, heir)
			t.linkNewest(at)
		}
	}
}
