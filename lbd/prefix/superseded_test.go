package prefix

import (
	"testing"

	"pgregory.net/rapid"
)

// sentTexts is the reference for Superseded: by prefix, its receivers and the last one.
type sentTexts map[uint64]*receivers

type receivers struct {
	all  map[int]bool
	last int
}

func (s sentTexts) insert(key Key, target int) {
	for _, hash := range key { // a hash identifies all text before it
		if s[hash] == nil {
			s[hash] = &receivers{all: map[int]bool{}}
		}
		s[hash].all[target], s[hash].last = true, target
	}
}

// superseded returns the length, in bytes, of the longest beginning of key that the target has received, but not last.
func (s sentTexts) superseded(key Key, target int) int {
	bytes := 0
	for i, hash := range key {
		if r := s[hash]; r != nil && r.all[target] && r.last != target {
			bytes = (i + 1) * BlockBytes
		}
	}
	return bytes
}

// branches reports whether a text was sent that begins with the longest known part of key and continues.
func (s sentTexts) branches(key Key, found int, sent []Key) bool {
	for _, other := range sent {
		if found > 0 && len(other) > found && other[found-1] == key[found-1] {
			return true
		}
	}
	return false
}

func TestSupersededMatchesReference(t *testing.T) {
	targets := []int{0, 1, 63, 64, 700}
	rapid.Check(t, func(rt *rapid.T) {
		tree, dumb := NewTreeWithOrder(1<<24, drawOrder(rt)), sentTexts{}
		letters := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 1, 6, -1)
		var sent []Key
		for range rapid.IntRange(1, 40).Draw(rt, "operations") {
			key := blocks(letters.Draw(rt, "key"))
			if rapid.Bool().Draw(rt, "insert") {
				target := rapid.SampledFrom(targets).Draw(rt, "target")
				tree.Insert(key, target)
				dumb.insert(key, target)
				sent = append(sent, key)
				continue
			}
			found, out := tree.Match(key, nil), make([]int, rapid.SampledFrom([]int{0, 2, 65, 701}).Draw(rt, "out"))
			if want := dumb.branches(key, found.Bytes/BlockBytes, sent); found.Continues != want {
				rt.Fatalf("%d bytes match, text follows: %v, want %v", found.Bytes, found.Continues, want)
			}
			tree.Superseded(key, out)
			for _, target := range targets {
				if target < len(out) && out[target] != dumb.superseded(key, target) {
					rt.Fatalf("target %d: %d bytes are superseded, want %d", target, out[target], dumb.superseded(key, target))
				}
			}
		}
	})
}

// Of a text that a target was the last to receive, the beginning is superseded if another target received that
// beginning later.
func TestSupersededBeginning(t *testing.T) {
	tree, out := NewTree(1<<20), make([]int, 3)
	tree.Insert(blocks("abcd"), 0)
	tree.Insert(blocks("abef"), 1)
	tree.Insert(blocks("abcd"), 2)
	tree.Insert(blocks("abef"), 1)
	tree.Superseded(blocks("abcd"), out)
	if out[0] != 4*BlockBytes || out[1] != 0 || out[2] != 2*BlockBytes {
		t.Errorf("superseded bytes %v, want all four blocks, none and two", out)
	}
}

func TestLatestIsUnknownAfterRemoval(t *testing.T) {
	tree := NewTree(1 << 20)
	key, out := blocks("abc"), make([]int, 3)
	superseded := func() int {
		tree.Superseded(key, out)
		return out[1]
	}
	tree.Insert(key, 1)
	tree.Insert(key, 2)
	if n := superseded(); n != key.Bytes() {
		t.Errorf("%d bytes are superseded, want all", n)
	}
	tree.RemoveTarget(2)
	if n := superseded(); n != 0 {
		t.Errorf("%d bytes are superseded after the removal of the last receiver", n)
	}
	// A number that does not fit into the tags is unknown, and other tags are not affected.
	tree.InsertResponse(key, maxLatest, 5)
	if n := superseded(); n != 0 {
		t.Errorf("%d bytes are superseded by a target beyond the tags", n)
	}
	if found := tree.Match(key, nil); !found.AfterResponse || found.SessionStart != 5 {
		t.Errorf("the mark is lost: %+v", found)
	}
}
