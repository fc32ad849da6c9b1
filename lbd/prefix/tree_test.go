package prefix

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func keyOf(s string) Key {
	h := NewHasher(1)
	_, _ = h.WriteString(s)
	return h.Key()
}

// blocks makes a key out of letters: every letter is one block.
func blocks(letters string) Key {
	var b strings.Builder
	for _, l := range letters {
		b.WriteString(strings.Repeat(string(l), BlockBytes))
	}
	return keyOf(b.String())
}

func TestKeyIsTheSameInOnePieceOrMany(t *testing.T) {
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

func TestKeyDependsOnSeedAndOnEverythingBefore(t *testing.T) {
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
		longest := tree.Match(blocks(c.key), out)
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

// twin is the dumb tree: a list of keys a target.
type twin map[int][]Key

func (w twin) match(key Key, target int) int {
	best := 0
	for _, k := range w[target] {
		best = max(best, commonPrefix(k, key))
	}
	return best * BlockBytes
}

func TestTreeEqualsItsDumbTwin(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tree, dumb := NewTreeInOrder(1<<30, drawOrder(rt)), twin{}
		letters := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, 7, -1)
		for range rapid.IntRange(1, 40).Draw(rt, "operations") {
			target := rapid.SampledFrom([]int{0, 1, 2, 63, 64, 130}).Draw(rt, "target")
			key := blocks(letters.Draw(rt, "key"))
			switch rapid.IntRange(0, 4).Draw(rt, "operation") {
			case 0:
				tree.RemoveTarget(target)
				delete(dumb, target)
			default:
				tree.Insert(key, target)
				dumb[target] = append(dumb[target], key)
			}
			check(rt, tree)
			probe, out := blocks(letters.Draw(rt, "probe")), make([]int, 131)
			tree.Match(probe, out)
			for i, got := range out {
				if want := dumb.match(probe, i); got != want {
					rt.Fatalf("target %d: matched %d bytes, want %d", i, got, want)
				}
			}
		}
		for target := range 131 {
			tree.RemoveTarget(target)
		}
		if tree.Nodes() != 0 || tree.Bytes() != 0 {
			rt.Fatalf("all targets removed, but %d nodes and %d bytes are left", tree.Nodes(), tree.Bytes())
		}
	})
}

type fataler interface{ Fatalf(string, ...any) }

// check verifies the tree's invariants.
func check(t fataler, tree *Tree) {
	seen, bytes, held := 0, 0, make([]int, len(tree.held))
	var walk func(id int32)
	walk = func(id int32) {
		for c := tree.nodes[id].child; c != none; c = tree.nodes[c].sibling {
			n := &tree.nodes[c]
			seen++
			bytes += nodeBytes + 8*len(n.edge)
			if n.parent != id {
				t.Fatalf("node %d hangs under %d but says %d", c, id, n.parent)
			}
			if got, ok := tree.index[n.edge[0]]; !ok || got != c {
				t.Fatalf("node %d is not in the index", c)
			}
			if n.targets.empty() {
				t.Fatalf("node %d is held by nobody", c)
			}
			n.targets.each(func(target int) {
				held[target] += len(n.edge) * BlockBytes
				if !tree.nodes[id].targets.has(target) {
					t.Fatalf("target %d holds node %d but not its parent", target, c)
				}
			})
			walk(c)
		}
	}
	walk(0)
	if seen != tree.Nodes() || seen != len(tree.index) || bytes != tree.used {
		t.Fatalf("walked %d nodes of %d bytes; the tree says %d (%d indexed) and %d", seen, bytes, tree.Nodes(), len(tree.index), tree.used)
	}
	if !slices.Equal(held, tree.held) {
		t.Fatalf("counted %v bytes by target; the tree says %v", held, tree.held)
	}
	listed := 0
	for id := tree.oldest; id != none; id = tree.nodes[id].newer {
		listed++
	}
	if listed != seen {
		t.Fatalf("%d nodes in the order of age, want %d", listed, seen)
	}
	if tree.oldest != none && tree.nodes[tree.oldest].child != none {
		t.Fatalf("the oldest node %d is not a leaf", tree.oldest)
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
		if i%3 == 0 { // a shared head
			key[0] = 42
		}
		tree.Insert(key, rng.IntN(8))
		if tree.Bytes() > bound {
			t.Fatalf("after %d inserts the tree takes %d bytes, bound %d", i, tree.Bytes(), bound)
		}
	}
	check(t, tree)
	if got := len(tree.nodes); got > 2*bound/nodeBytes {
		t.Errorf("%d node slots for a bound of %d bytes", got, bound)
	}
}

func TestEvictionTakesTheLeastRecentlyInserted(t *testing.T) {
	one := nodeBytes + 8
	tree := NewTree(3 * one)
	for _, k := range []string{"a", "b", "c", "a", "d"} { // b is the oldest when d comes
		tree.Insert(blocks(k), 0)
	}
	for key, want := range map[string]int{"a": 64, "b": 0, "c": 64, "d": 64} {
		out := make([]int, 1)
		if got := tree.Match(blocks(key), out); got != want {
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

func TestMatchAllocatesNothing(t *testing.T) {
	tree := NewTree(1 << 20)
	tree.Insert(blocks("abcdefgh"), 3)
	key, out := blocks("abcdefgh"), make([]int, 64)
	if n := testing.AllocsPerRun(100, func() { tree.Match(key, out); tree.Insert(key, 3) }); n != 0 {
		t.Errorf("%v allocations on a full hit", n)
	}
}

func drawOrder(rt *rapid.T) Order {
	return rapid.SampledFrom([]Order{LeastRecent, EarliestInserted}).Draw(rt, "order")
}

func FuzzTree(f *testing.F) {
	f.Add([]byte("abcabxabc"), uint8(3))
	f.Add([]byte("abcabxabcaxxabc"), uint8(19))
	f.Fuzz(func(t *testing.T, data []byte, cut uint8) {
		tree := NewTreeInOrder(4<<10, Order(cut>>4)%2)
		out := make([]int, 8)
		step := int(cut%16) + 1
		for i := 0; i < len(data); i += step {
			piece := data[i:min(i+step, len(data))]
			key := make(Key, len(piece))
			chain := uint64(0)
			for j, b := range piece {
				chain = chain*131 + uint64(b%4) + 1
				key[j] = chain
			}
			switch piece[0] % 8 {
			case 7:
				tree.RemoveTarget(int(piece[0]>>3) % 8)
			default:
				tree.Insert(key, int(piece[0])%8)
				// By age of insertion alone a repeated prefix may be the next to go.
				if tree.Match(key, out); tree.order == LeastRecent && out[int(piece[0])%8] != len(key)*BlockBytes && tree.Nodes() > 1 {
					t.Fatalf("just inserted %d blocks, matched %d bytes", len(key), out[int(piece[0])%8])
				}
			}
			check(t, tree)
		}
	})
}

func BenchmarkMatchInsert(b *testing.B) {
	for _, size := range []int{1 << 10, 4 << 10, 32 << 10} {
		b.Run(fmt.Sprintf("prompt=%dKB", size>>10), func(b *testing.B) {
			tree := NewTree(256 << 20)
			rng := rand.New(rand.NewPCG(1, 2))
			keys := make([]Key, 4096)
			for i := range keys {
				keys[i] = make(Key, size/BlockBytes)
				shared := 0
				if i > 0 {
					shared = copy(keys[i], keys[rng.IntN(i)][:rng.IntN(len(keys[i]))])
				}
				for j := shared; j < len(keys[i]); j++ {
					keys[i][j] = rng.Uint64()
				}
			}
			out := make([]int, 64)
			for i, k := range keys {
				tree.Insert(k, i%64)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				k := keys[i%len(keys)]
				tree.Match(k, out)
				tree.Insert(k, i%64)
			}
			b.ReportMetric(float64(tree.Bytes())/float64(len(keys)), "bytes/prompt")
		})
	}
}
