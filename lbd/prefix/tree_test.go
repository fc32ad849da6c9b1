package prefix

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func keyOf(s string) Key {
	h := NewHasher(1)
	_, _ = h.WriteString(s)
	return h.Key()
}

// blocks converts letters to a key: every letter is one block.
func blocks(letters string) Key {
	var b strings.Builder
	for _, l := range letters {
		b.WriteString(strings.Repeat(string(l), BlockBytes))
	}
	return keyOf(b.String())
}

func TestKeyIsIndependentOfPieces(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.SliceOf(rapid.Byte()).Draw(rt, "text")
		whole := NewHasher(7)
		_, _ = whole.Write(text)
		pieces := NewHasher(7)
		for rest := text; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(rt, "n")
			if rapid.Bool().Draw(rt, "as string") {
				_, _ = pieces.WriteString(string(rest[:n]))
			} else {
				_, _ = pieces.Write(rest[:n])
			}
			rest = rest[n:]
		}
		if !slices.Equal(whole.Key(), pieces.Key()) || whole.Len() != pieces.Len() {
			rt.Fatalf("whole %v, pieces %v", whole.Key(), pieces.Key())
		}
		if len(whole.Key()) != len(text)/BlockBytes {
			rt.Fatalf("%d bytes gave %d blocks", len(text), len(whole.Key()))
		}
	})
}

func TestKeyDependsOnSeedAndPrefix(t *testing.T) {
	a, b := NewHasher(1), NewHasher(2)
	text := strings.Repeat("x", 3*BlockBytes)
	_, _ = a.WriteString(text)
	_, _ = b.WriteString(text)
	if a.Key()[0] == b.Key()[0] {
		t.Error("the seed does not matter")
	}
	if k := a.Key(); k[0] == k[1] || k[1] == k[2] {
		t.Errorf("equal blocks at different depths share a hash: %v", k)
	}
}

func TestMatchPerTarget(t *testing.T) {
	tree := NewTree(1 << 20)
	tree.Insert(blocks("abcd"), 0)
	tree.Insert(blocks("abxy"), 1)
	tree.Insert(blocks("ab"), 2)
	tree.Insert(blocks("abcdef"), 70) // beyond the first word
	cases := []struct {
		key  string
		want map[int]int // target -> blocks
	}{
		{"abcd", map[int]int{0: 4, 1: 2, 2: 2, 70: 4}},
		{"abcdefg", map[int]int{0: 4, 1: 2, 2: 2, 70: 6}},
		{"abc", map[int]int{0: 3, 1: 2, 2: 2, 70: 3}},
		{"abxz", map[int]int{0: 2, 1: 3, 2: 2, 70: 2}},
		{"zz", map[int]int{}},
		{"", map[int]int{}},
	}
	for _, c := range cases {
		out := make([]int, 71)
		longest := tree.Match(blocks(c.key), out).Bytes
		best := 0
		for target, got := range out {
			if want := c.want[target] * BlockBytes; got != want {
				t.Errorf("%s: target %d has %d bytes, want %d", c.key, target, got, want)
			}
			best = max(best, c.want[target]*BlockBytes)
		}
		if longest != best {
			t.Errorf("%s: longest %d, want %d", c.key, longest, best)
		}
	}
}

func TestMemoryStaysBoundedUnderChurn(t *testing.T) {
	const bound = 64 << 10
	tree := NewTree(bound)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 20_000 {
		key := make(Key, 1+rng.IntN(40))
		for j := range key {
			key[j] = rng.Uint64()
		}
		if i%3 == 0 { // a shared beginning
			key[0] = 42
		}
		tree.Insert(key, rng.IntN(8))
		if tree.Bytes() > bound {
			t.Fatalf("after %d inserts the tree takes %d bytes, bound %d", i, tree.Bytes(), bound)
		}
	}
	check(t, tree)
}

func TestDefaultOrderEvictsLeastRecent(t *testing.T) {
	const one = nodeBytes + memberBytes
	tree := NewTree(3 * one)
	for _, k := range []string{"a", "b", "c", "a", "d"} { // b is the oldest when d is inserted
		tree.Insert(blocks(k), 0)
	}
	for key, want := range map[string]int{"a": 64, "b": 0, "c": 64, "d": 64} {
		out := make([]int, 1)
		if got := tree.Match(blocks(key), out).Bytes; got != want {
			t.Errorf("%s: %d bytes matched, want %d", key, got, want)
		}
	}
}

func TestNodesMergeBackAfterRemoval(t *testing.T) {
	tree := NewTree(1 << 20)
	tree.Insert(blocks("abcdefgh"), 0)
	for i, tail := range []string{"x", "y", "z"} {
		tree.Insert(append(blocks("abcd"), blocks("abcd" + tail)[4]), 1+i)
	}
	for target := 1; target <= 3; target++ {
		tree.RemoveTarget(target)
	}
	check(t, tree)
	if tree.Nodes() != 1 {
		t.Errorf("%d nodes left of one unshared prefix", tree.Nodes())
	}
}

func TestFullHitDoesNotAllocate(t *testing.T) {
	for _, order := range []Order{LeastRecent, EarliestInserted} {
		tree := NewTreeWithOrder(1<<20, order)
		known := []Key{blocks("abcdefgh"), blocks("abcdxyz"), blocks("abcd")}
		for i, key := range known {
			tree.InsertResponse(key, 64*i, time.Second)
		}
		out, i := make([]int, 129), 0
		hit := func() {
			at := i % len(known)
			tree.Match(known[at], out)
			tree.Insert(known[at], 64*at)
			tree.InsertResponse(known[at], 64*at, time.Second)
			i++
		}
		if n := testing.AllocsPerRun(100, hit); n != 0 {
			t.Errorf("order %d: %v allocations on a full hit", order, n)
		}
	}
}

func TestUnknownPromptAllocatesLessThanOnce(t *testing.T) {
	w := newTraffic(4<<10, 256)
	tree := NewTree(1 << 30)
	fill(tree, w, 4000, 8)
	tree.maxBytes = tree.Bytes()
	out := make([]int, 8)
	miss := func() {
		tree.Match(w.next(), out)
		tree.Insert(w.key, int(w.serial%8))
	}
	if n := testing.AllocsPerRun(2000, miss); n >= 1 {
		t.Errorf("%v allocations for a prompt in a full tree", n)
	}
}

// The tree counts the prompts with a shared prefix, however they continue and wherever they were sent, but not their
// responses.
func TestUsesOfSharedPrefix(t *testing.T) {
	tree, out := NewTree(1<<20), make([]int, 3)
	for i, text := range []string{"abcd", "abce", "abcf", "abd"} {
		prompt := chained([]byte(text))
		tree.Insert(prompt, i%3)
		tree.InsertResponse(append(prompt, uint64(i)), i%3, 0)
	}
	for text, want := range map[string]int{"abcx": 3, "abx": 4, "ab": 4, "x": 0} {
		if got := tree.Match(chained([]byte(text)), out).Uses; got != want {
			t.Errorf("%d prompts have the beginning of %q, want %d", got, text, want)
		}
	}
	if got := tree.Match(append(chained([]byte("abd")), 3, 9), out).Uses; got != 0 {
		t.Errorf("%d prompts have the text of one conversation, want 0: unknown", got)
	}
}
