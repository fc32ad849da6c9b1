package prefix

import (
	"slices"
	"time"
)

// An owner is a party whose prompts are in a tree (in lbd/core: a tenant), as a small integer from 0
// that the caller assigns. It must be below 1 << 16, which the tree does not check: nodes store their
// owner in 16 bits. A node belongs to the owner that last inserted a key through it. With EarliestInserted, an
// insert that adds nothing to its target does not change the owner.
//
// Each owner's nodes have their own age order, and a full tree evicts the oldest leaf of an owner above its share, so
// that the prompts of one owner cannot evict all others. If the owner's oldest node is not a leaf, its children belong
// to other owners, and one of these gets the node (giveToChildOwner). All shares are equal: the weight of the tree
// divided by the number of active owners. A released owner has no share: its nodes are evicted first.
//
// While everything inserted belongs to owner 0, a tree does not track owners.

// ownerState contains the tree's counters for an owner.
type ownerState struct {
	newest, oldest int32 // of its nodes
	weight         int   // approximate bytes of its nodes
	released       bool
}

// InsertFor is Insert for an owner; Insert is for owner 0.
func (t *Tree) InsertFor(owner int, key Key, target int) { t.insert(owner, key, target, 0, false) }

// InsertResponseFor is InsertResponse for an owner.
func (t *Tree) InsertResponseFor(owner int, key Key, target int, start time.Duration) {
	t.insert(owner, key, target, start, true)
}

// Weight returns the approximate number of bytes that an owner's nodes use.
func (t *Tree) Weight(owner int) int {
	switch {
	case t.ownerOfNode == nil && owner == 0:
		return t.Bytes()
	case owner < len(t.owners):
		return t.owners[owner].weight
	}
	return 0
}

// Release removes an owner's share until something is inserted for it again.
func (t *Tree) Release(owner int) {
	if owner >= len(t.owners) || t.owners[owner].weight == 0 || t.owners[owner].released {
		return
	}
	t.owners[owner].released = true
	t.active--
	t.released = append(t.released, int32(owner))
}

// startInsert sets the owner of the current insert.
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

// unrelease removes an owner from the list of released ones.
func (t *Tree) unrelease(owner int) {
	t.owners[owner].released = false
	t.released = slices.DeleteFunc(t.released, func(o int32) bool { return int(o) == owner })
}

// ensureOwner extends the tree's counters to an owner, and starts to track the owners of nodes.
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

// ownerOf returns the owner of node id.
func (t *Tree) ownerOf(id int32) int {
	if t.ownerOfNode == nil {
		return 0
	}
	return int(t.ownerOfNode[id>>chunkBits][id&chunkMask])
}

// setOwner sets the owner of node id without changing any counter.
func (t *Tree) setOwner(id int32, owner int) {
	if t.ownerOfNode != nil {
		t.ownerOfNode[id>>chunkBits][id&chunkMask] = uint16(owner)
	}
}

// listOf returns the state of the owner in whose age order node id is.
func (t *Tree) listOf(id int32) *ownerState { return &t.owners[t.ownerOf(id)] }

// weightOf returns the weight of a node with that many hashes.
func weightOf(length int) int { return nodeBytes + wordBytes*length }

// addWeight changes the weight of an owner's nodes, if owners are tracked.
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

// transfer changes the owner of node id, which must not be in an age order.
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

// victim returns the leaf to evict next: the oldest one
//  1. of a released owner,
//  2. else of the inserting owner, if it exceeds its share,
//  3. else of the heaviest owner. This is the last result of heaviestOwner while that exceeds its share and has other
//     nodes than the most recent insert.
//
// The most recent insert is evicted in two cases only: its owner exceeds its share and no other owner does, or no other
// leaf is left.
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
		if t.owners[t.heaviest].weight <= share || t.onlyProtected(t.heaviest) {
			t.heaviest = t.heaviestOwner()
		}
		if w := t.owners[t.heaviest].weight; w == 0 || over && w <= share || t.onlyProtected(t.heaviest) {
			t.protectedNode = none // no longer protected
			continue
		}
		if id := t.oldestLeaf(t.heaviest); id != none {
			return id
		}
	}
}

// onlyProtected reports whether an owner has no nodes but those of the most recent insert.
func (t *Tree) onlyProtected(owner int) bool { return t.owners[owner].oldest == t.protectedNode }

// heaviestOwner returns the owner with the highest weight, except one of which onlyProtected is true.
func (t *Tree) heaviestOwner() (heaviest int) {
	for o := range t.owners {
		if !t.onlyProtected(o) && (t.owners[o].weight > t.owners[heaviest].weight || t.onlyProtected(heaviest)) {
			heaviest = o
		}
	}
	return heaviest
}

// oldestLeaf returns an owner's oldest leaf, or none if it has only the most recent insert. If the
// oldest node is not a leaf, other owners inserted below it: the node is transferred to one of
// them.
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

// giveToChildOwner transfers node id to the owner of its first child. The node and its ancestors of
// that owner become the owner's newest nodes, so that a parent stays newer than its children.
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
