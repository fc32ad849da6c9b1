package prefix

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"skyserve/internal/testkit"
)

func TestEmptyKeyHasNoEffect(t *testing.T) {
	tree, out := NewTree(1<<20), []int{7}
	tree.Insert(nil, 0)
	tree.InsertResponse(Key{}, 0, time.Second)
	tree.RemoveTarget(0)
	if found := tree.Match(nil, out); found != (Found{}) || out[0] != 0 || tree.Nodes() != 0 || tree.Bytes() != 0 {
		t.Errorf("found %+v for %v in a tree of %d nodes and %d bytes", found, out, tree.Nodes(), tree.Bytes())
	}
	tree.Insert(blocks("ab"), 0)
	if found := tree.Match(nil, out); found != (Found{}) || out[0] != 0 {
		t.Errorf("found %+v for %v", found, out)
	}
}

func TestMegabytePrompt(t *testing.T) {
	const size = 16_384
	w := newTraffic(size*BlockBytes, 1)
	key := slices.Clone(w.next())
	tree, out := NewTree(1<<20), make([]int, 1)
	tree.InsertResponse(key, 0, time.Second)
	check(t, tree)
	if found := tree.Match(key, out); found.Bytes != 1<<20 || !found.AfterResponse || tree.Nodes() != size/maxEdge {
		t.Errorf("found %+v in %d nodes", found, tree.Nodes())
	}
	for _, cut := range []int{1, maxEdge - 1, maxEdge, maxEdge + 1, size - 1} {
		part := append(slices.Clone(key[:cut]), 1)
		if found := tree.Match(part, out); found.Bytes != cut*BlockBytes || found.AfterResponse {
			t.Errorf("found %+v of a prompt that diverges after %d blocks", found, cut)
		}
		tree.Insert(part, 0)
		check(t, tree)
	}
}

// A key that does not fit completely is stored from its beginning.
func TestOversizedPromptKeepsBeginning(t *testing.T) {
	const (
		bound     = 64 << 10
		minCached = bound / 4 / 8 * BlockBytes // a quarter of the memory, with 8 bytes per hash
	)
	tree, out := NewTree(bound), make([]int, 1)
	key := newTraffic(1<<20, 1).next()
	tree.Insert(key, 0)
	check(t, tree)
	tree.Match(key, out)
	if tree.Bytes() > bound || out[0] < minCached {
		t.Errorf("a tree of %d bytes has %d bytes of the prompt, want at most %d and at least %d", tree.Bytes(), out[0], bound, minCached)
	}
}

func TestMillionPrefixesStayUnderBound(t *testing.T) {
	const bound = 256 << 10
	tree, rng, key := NewTree(bound), rand.New(rand.NewPCG(3, 4)), make(Key, 4)
	for i := range 1_000_000 {
		for j := range key {
			key[j] = rng.Uint64()
		}
		if tree.Insert(key[:1+i%4], i%64); tree.Bytes() > bound {
			t.Fatalf("after %d prefixes the tree takes %d bytes, bound %d", i+1, tree.Bytes(), bound)
		}
	}
	check(t, tree)
	if numbers := len(tree.chunks) * chunkSize; numbers > 3*tree.Nodes()+8*chunkSize {
		t.Errorf("%d node numbers for %d nodes", numbers, tree.Nodes())
	}
}

// Many short prefixes, then few long ones: the memory of the short ones is released.
func TestMemoryFollowsContents(t *testing.T) {
	testkit.Slow(t)
	tree := NewTree(4 << 20)
	for _, size := range []int{1, 400, 3, 512, 20} {
		w := newTraffic(size*BlockBytes, 1<<40)
		for range 40_000 {
			tree.Insert(w.next(), 0)
		}
		check(t, tree)
		used := len(tree.chunks)*chunkSize*64 + 8*len(tree.index.slots) + 4*cap(tree.members[0])
		for _, c := range tree.edges.chunks {
			if c != nil {
				used += 8 * edgeChunk
			}
		}
		if slack := 8*edgeChunk + 8*chunkSize*64; used > tree.Bytes()+slack {
			t.Errorf("prefixes of %d blocks: %d bytes are used for %d by the tree's measure", size, used, tree.Bytes())
		}
	}
}

// The removal of a target frees most of the tree: the nodes of the others are moved together and
// lose no information.
func TestMovedNodesKeepState(t *testing.T) {
	tree, w, kept := NewTree(1<<30), newTraffic(12*BlockBytes, 1500), []Key(nil)
	for i := range 12_000 {
		if i%6 != 0 {
			tree.Insert(w.next(), 0)
			continue
		}
		kept = append(kept, slices.Clone(w.next()))
		tree.InsertResponse(w.key, 70, time.Duration(i))
	}
	numbers := tree.end
	tree.RemoveTarget(0)
	if check(t, tree); tree.end > numbers/2 {
		t.Errorf("%d of %d node numbers are left for %d nodes", tree.end, numbers, tree.Nodes())
	}
	out := make([]int, 71)
	for i, key := range kept {
		if found := tree.Match(key, out); out[70] != key.Bytes() || found.SessionStart != time.Duration(6*i) {
			t.Fatalf("prompt %d: %d bytes are known, found %+v", i, out[70], found)
		}
	}
	for i := range 12_000 { // the edges move too
		if tree.Insert(w.next(), 1+i%2); i%4000 == 0 {
			tree.RemoveTarget(1 + i/4000%2)
		}
	}
	check(t, tree)
	tree.RemoveTarget(70)
	check(t, tree)
}

// Keys whose hashes collide break no invariant, and a walk from the root distinguishes equal hashes
// by their ancestors.
func TestHashesThatCollide(t *testing.T) {
	tree, out := NewTree(1<<20), make([]int, 2)
	for i, key := range []Key{{1, 2, 3}, {4, 2, 5}, {1, 7}, {4, 7}} {
		tree.walked.known = false
		tree.Insert(key, i%2)
		check(t, tree)
	}
	for _, c := range []struct {
		key  Key
		want []int
	}{
		{Key{1, 2, 3}, []int{3, 0}},
		{Key{4, 2, 5}, []int{0, 3}},
		{Key{1, 2, 5}, []int{2, 0}},
		{Key{4, 7, 2}, []int{0, 2}},
		{Key{2}, []int{0, 0}},
	} {
		tree.walked.known = false
		tree.Match(c.key, out)
		if out[0] != c.want[0]*BlockBytes || out[1] != c.want[1]*BlockBytes {
			t.Errorf("%v: %v bytes, want %v blocks", c.key, out, c.want)
		}
	}
	rng := rand.New(rand.NewPCG(5, 6))
	small := NewTree(20 * nodeBytes)
	for range 3000 {
		key := make(Key, 1+rng.IntN(12))
		for i := range key {
			key[i] = rng.Uint64N(3)
		}
		small.Match(key, out)
		if small.InsertResponse(key, rng.IntN(3), 0); rng.IntN(20) == 0 {
			small.RemoveTarget(rng.IntN(3))
		}
		check(t, small)
	}
}

func TestTargetsUpTo1023(t *testing.T) {
	tree, out := NewTree(1<<24), make([]int, 1024)
	for target := 1023; target >= 0; target-- {
		tree.Insert(blocks("ab"), target)
		tree.Insert(blocks("abcd"[:2+target%3]), target)
	}
	check(t, tree)
	found := tree.Match(blocks("abcd"), out)
	for target, got := range out {
		if want := (2 + target%3) * BlockBytes; got != want || tree.CachedBytes(target) != want {
			t.Errorf("target %d has %d bytes and %d in all, want %d", target, got, tree.CachedBytes(target), want)
		}
	}
	if found.Bytes != 4*BlockBytes || tree.CachedBytes(5000) != 0 {
		t.Errorf("found %+v, an unknown target has %d", found, tree.CachedBytes(5000))
	}
	for target := range 1024 {
		tree.RemoveTarget(target)
	}
	check(t, tree)
	if tree.Nodes() != 0 || tree.Bytes() != 0 {
		t.Errorf("%d nodes and %d bytes are left", tree.Nodes(), tree.Bytes())
	}
}

func TestResponsesOnMatchedPath(t *testing.T) {
	tree, out := NewTree(1<<20), make([]int, 3)
	expect := func(when, key string, want Found) {
		t.Helper()
		if found := tree.Match(blocks(key), out); found.SessionStart != want.SessionStart || found.AfterResponse != want.AfterResponse {
			t.Errorf("%s: %s found %+v, want %+v", when, key, found, want)
		}
		check(t, tree)
	}
	none, first, second, third := Found{}, Found{SessionStart: 9, AfterResponse: true}, Found{SessionStart: -4, AfterResponse: true}, Found{SessionStart: 2, AfterResponse: true}
	tree.InsertResponse(blocks("abcd"), 0, 9)
	tree.InsertResponse(blocks("abcdefgh"), 0, -4)
	expect("two responses", "abc", none)
	expect("two responses", "abcd", first)
	expect("two responses", "abcdefg", first)
	expect("two responses", "abcdefgh", second)
	expect("two responses", "abcdefghi", second)
	tree.Insert(blocks("abcdexy"), 1)
	tree.Insert(blocks("ab"), 2)
	expect("after splits", "abc", none)
	expect("after splits", "abcdexyz", first)
	expect("after splits", "abcdefghi", second)
	tree.InsertResponse(blocks("abcd"), 1, 2)
	expect("marked again, with an earlier start", "abcde", third)
	tree.RemoveTarget(1)
	tree.RemoveTarget(2)
	expect("without the branches", "abcde", third)
	expect("without the branches", "abcdefgh", second)
	if tree.Nodes() != 2 {
		t.Errorf("%d nodes of two responses in a line", tree.Nodes())
	}
	tree.RemoveTarget(0)
	tree.Insert(blocks("abcdefgh"), 0)
	expect("all removed", "abcdefgh", none)
}
