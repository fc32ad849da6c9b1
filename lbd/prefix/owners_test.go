package prefix

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// own returns a key of an owner: it has no common prefix with keys of others, like keys of
// different seeds.
func own(owner int, text string) Key {
	return chained(append([]byte{byte(owner), byte(owner >> 8)}, text...))
}

// matchedBytes returns how many bytes of a key a tree contains.
func (t *Tree) matchedBytes(key Key) int { return t.Match(key, nil).Bytes }

// An owner that constantly inserts keys does not evict those of others.
func TestFloodLeavesOthersTheirShare(t *testing.T) {
	for _, order := range []Order{LeastRecent, EarliestInserted} {
		tree := NewTreeWithOrder(200*nodeBytes, order)
		for i := range 20 {
			tree.InsertFor(1, own(1, fmt.Sprint("mine", i)), 0)
			tree.InsertFor(2, own(2, fmt.Sprint("mine", i)), 1)
		}
		for i := range 5000 {
			tree.InsertFor(3, own(3, fmt.Sprint("flood", i)), i%3)
		}
		for i := range 20 {
			for owner := 1; owner <= 2; owner++ {
				if key := own(owner, fmt.Sprint("mine", i)); tree.matchedBytes(key) != key.Bytes() {
					t.Fatalf("order %d: owner %d lost what it inserted as number %d", order, owner, i)
				}
			}
		}
		if newest := own(3, "flood4999"); tree.matchedBytes(newest) != newest.Bytes() {
			t.Errorf("order %d: the owner that floods lost its newest", order)
		}
		if got := tree.Weight(3); got < tree.maxBytes/3 {
			t.Errorf("order %d: the owner that floods has %d of %d bytes, want its share", order, got, tree.maxBytes)
		}
	}
}

// An owner that is alone, or whose neighbours were released, has the whole tree. An owner that
// returns has its share again.
func TestReleasedOwnerIsEvictedFirst(t *testing.T) {
	tree := NewTree(100 * nodeBytes)
	fill := func(owner, n int) {
		for i := range n {
			tree.InsertFor(owner, own(owner, fmt.Sprint(i)), 0)
		}
	}
	fill(1, 1000)
	if w := tree.Weight(1); w < tree.maxBytes/2 {
		t.Fatalf("alone it has %d of %d bytes", w, tree.maxBytes)
	}
	fill(2, 1000)
	if w := tree.Weight(1); w < tree.maxBytes/4 {
		t.Fatalf("beside another one it has %d of %d bytes", w, tree.maxBytes)
	}
	tree.Release(1)
	fill(2, 2000)
	if w := tree.Weight(1); w != 0 {
		t.Errorf("released, it still has %d bytes", w)
	}
	fill(1, 1000)
	if a, b := tree.Weight(1), tree.Weight(2); a < b/2 || b < a/2 {
		t.Errorf("after it came back %d and %d bytes", a, b)
	}
	check(t, tree)
}

// For random inserts: an owner within its share loses nothing, unless it was released or the
// insert is its own. With LeastRecent, the latest insert stays if it is within its owner's share.
func TestOwnersKeepTheirShare(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tree := NewTreeWithOrder(rapid.IntRange(5, 60).Draw(rt, "room")*nodeBytes, drawOrder(rt))
		owners := rapid.IntRange(2, 6).Draw(rt, "owners")
		for range rapid.IntRange(1, 200).Draw(rt, "operations") {
			owner := rapid.IntRange(0, owners-1).Draw(rt, "owner")
			if rapid.IntRange(0, 15).Draw(rt, "release") == 0 {
				tree.Release(owner)
				continue
			}
			before := slices.Clone(tree.owners)
			text := rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 1, 12, -1).Draw(rt, "text")
			key := own(owner, text)
			tree.InsertFor(owner, key, rapid.IntRange(0, 2).Draw(rt, "target"))
			check(rt, tree)
			if missing := len(key) - tree.matchedBytes(key)/BlockBytes; missing > 0 && tree.order == LeastRecent &&
				tree.Weight(owner)+weightOf(missing) <= tree.weight/(tree.active+1) {
				rt.Fatalf("%d blocks of what was just inserted are gone; its owner has %d of %d bytes of %d owners", missing, tree.Weight(owner), tree.weight, tree.active)
			}
			active := 1
			for o := range before {
				if o != owner && before[o].weight > 0 && !before[o].released {
					active++
				}
			}
			for o := range before {
				if after := tree.Weight(o); o != owner && !before[o].released && before[o].weight <= tree.weight/active && after < before[o].weight {
					rt.Fatalf("owner %d fell from %d to %d bytes, the share of %d is %d", o, before[o].weight, after, active, tree.weight/active)
				}
			}
			if tree.Bytes() > tree.maxBytes && tree.Nodes() > len(tree.walked.path) && tree.Nodes() > 3 {
				rt.Fatalf("%d bytes, the bound is %d", tree.Bytes(), tree.maxBytes)
			}
		}
	})
}

// Owner 0 alone costs nothing: neither memory for owners nor another order of eviction.
func TestSingleOwnerTreeTracksNoOwners(t *testing.T) {
	tree := NewTree(50 * nodeBytes)
	for i := range 500 {
		tree.Insert(own(0, fmt.Sprint(i)), i%3)
	}
	if tree.ownerOfNode != nil || len(tree.owners) != 1 {
		t.Errorf("%d owners, and the owner of each node is stored: %v", len(tree.owners), tree.ownerOfNode != nil)
	}
	check(t, tree)
}
