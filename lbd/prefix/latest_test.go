package prefix

import (
	"testing"

	"pgregory.net/rapid"
)

// lastSent is the reference for Latest: by prefix, the target to which it was sent last.
type lastSent map[uint64]int

func (l lastSent) insert(key Key, target int) {
	for _, hash := range key { // a hash identifies all text before it
		l[hash] = target
	}
}

func TestLatestMatchesReference(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tree, dumb := NewTreeWithOrder(1<<24, drawOrder(rt)), lastSent{}
		letters := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 1, 6, -1)
		for range rapid.IntRange(1, 40).Draw(rt, "operations") {
			key := blocks(letters.Draw(rt, "key"))
			if rapid.Bool().Draw(rt, "insert") {
				target := rapid.SampledFrom([]int{0, 1, 63, 64, 700}).Draw(rt, "target")
				tree.Insert(key, target)
				dumb.insert(key, target)
				continue
			}
			found := tree.Match(key, nil)
			got, known := found.Latest()
			if known != (found.Bytes > 0) {
				rt.Fatalf("%d bytes match, latest known %v", found.Bytes, known)
			}
			if want := dumb[key[max(1, found.Bytes/BlockBytes)-1]]; known && got != want {
				rt.Fatalf("sent to %d last, want %d", got, want)
			}
		}
	})
}

func TestLatestIsUnknownAfterRemoval(t *testing.T) {
	tree := NewTree(1 << 20)
	key := blocks("abc")
	tree.Insert(key, 1)
	tree.Insert(key, 2)
	tree.RemoveTarget(2)
	found := tree.Match(key, nil)
	if target, known := found.Latest(); known || found.Bytes != key.Bytes() {
		t.Errorf("found %+v, latest %d", found, target)
	}
	tree.Insert(key, 1)
	if target, known := tree.Match(key, nil).Latest(); !known || target != 1 {
		t.Errorf("latest %d, %v", target, known)
	}
	// A number that does not fit into the tags is unknown, and other tags are not affected.
	tree.InsertAnswer(key, maxLatest, 5)
	if _, known := tree.Match(key, nil).Latest(); known {
		t.Error("a target beyond the tags is known")
	}
	if found := tree.Match(key, nil); !found.Answered || found.SessionStart != 5 {
		t.Errorf("the mark is lost: %+v", found)
	}
}
