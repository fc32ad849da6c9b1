package prefix

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// record is one prefix of the reference for eviction.
type record struct {
	letter  string
	targets []int
}

// ledger is that reference: prefixes of one block each, without common parts, oldest first.
type ledger struct {
	order    Order
	maxBytes int
	records  []record
}

func (l *ledger) bytes() (sum int) {
	for _, r := range l.records {
		sum += nodeBytes + memberBytes*len(r.targets)
	}
	return sum
}

func (l *ledger) evict() {
	for l.bytes() > l.maxBytes && len(l.records) > 1 {
		l.records = l.records[1:]
	}
}

func (l *ledger) insert(letter string, target int) {
	defer l.evict()
	at := slices.IndexFunc(l.records, func(r record) bool { return r.letter == letter })
	if at < 0 {
		l.records = append(l.records, record{letter, []int{target}})
		return
	}
	r := l.records[at]
	known := slices.Contains(r.targets, target)
	if !known {
		r.targets = append(r.targets, target)
	}
	if !known || l.order == LeastRecent {
		l.records = append(slices.Delete(l.records, at, at+1), r)
	} else {
		l.records[at] = r
	}
}

func (l *ledger) remove(target int) {
	for i := range l.records {
		l.records[i].targets = slices.DeleteFunc(l.records[i].targets, func(t int) bool { return t == target })
	}
	l.records = slices.DeleteFunc(l.records, func(r record) bool { return len(r.targets) == 0 })
}

func (l *ledger) has(letter string, target int) bool {
	return slices.ContainsFunc(l.records, func(r record) bool {
		return r.letter == letter && slices.Contains(r.targets, target)
	})
}

func TestEvictionMatchesReferenceInBothOrders(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f"}
	rapid.Check(t, func(rt *rapid.T) {
		order := drawOrder(rt)
		const room = 3*(nodeBytes+memberBytes) + memberBytes
		tree := NewTreeWithOrder(room, order)
		dumb := &ledger{order: order, maxBytes: room}
		for range rapid.IntRange(1, 40).Draw(rt, "operations") {
			target := rapid.IntRange(0, 2).Draw(rt, "target")
			if rapid.IntRange(0, 9).Draw(rt, "operation") == 0 {
				tree.RemoveTarget(target)
				dumb.remove(target)
			} else {
				name := rapid.SampledFrom(names).Draw(rt, "name")
				tree.Insert(blocks(name), target)
				dumb.insert(name, target)
			}
			check(rt, tree)
			for _, name := range names {
				out := make([]int, 3)
				tree.Match(blocks(name), out)
				for i, got := range out {
					if (got > 0) != dumb.has(name, i) {
						rt.Fatalf("target %d has %d bytes of %s; the reference has %v", i, got, name, dumb.records)
					}
				}
			}
		}
	})
}

// Prefixes with common beginnings under a bound: the invariants and the bound hold in both orders
// for any evictions.
func TestEvictionKeepsInvariantsWithCommonPrefixes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const bound = 8 * nodeBytes
		tree := NewTreeWithOrder(bound, drawOrder(rt))
		letters := rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 1, 5, -1)
		for range rapid.IntRange(1, 60).Draw(rt, "operations") {
			target := rapid.SampledFrom([]int{0, 1, 70}).Draw(rt, "target")
			if rapid.IntRange(0, 9).Draw(rt, "operation") == 0 {
				tree.RemoveTarget(target)
			} else {
				tree.Insert(blocks(letters.Draw(rt, "key")), target)
			}
			check(rt, tree)
			if tree.Bytes() > bound && tree.Nodes() > 1 {
				rt.Fatalf("%d bytes in %d nodes", tree.Bytes(), tree.Nodes())
			}
		}
	})
}

func TestOrderDecidesWhetherRepeatedPrefixIsEvicted(t *testing.T) {
	for order, gone := range map[Order]string{LeastRecent: "b", EarliestInserted: "a"} {
		tree := NewTreeWithOrder(3*(nodeBytes+memberBytes), order)
		for _, k := range []string{"a", "b", "c", "a", "d"} { // a is sent twice
			tree.Insert(blocks(k), 0)
		}
		for _, k := range []string{"a", "b", "c", "d"} {
			if got := tree.Match(blocks(k), make([]int, 1)).Bytes > 0; got == (k == gone) {
				t.Errorf("order %d: %s there %v, want only %s gone", order, k, got, gone)
			}
		}
	}
}

func TestHeldCountsSharedBytesOnce(t *testing.T) {
	tree := NewTree(1 << 20)
	for _, k := range []string{"abcd", "abxy", "ab"} {
		tree.Insert(blocks(k), 1)
	}
	tree.Insert(blocks("abcd"), 2)
	for target, want := range []int{0, 6 * BlockBytes, 4 * BlockBytes, 0} {
		if got := tree.CachedBytes(target); got != want {
			t.Errorf("target %d: %d bytes, want %d", target, got, want)
		}
	}
	tree.RemoveTarget(1)
	if tree.CachedBytes(1) != 0 || tree.CachedBytes(2) != 4*BlockBytes {
		t.Errorf("after removing target 1: %d and %d bytes", tree.CachedBytes(1), tree.CachedBytes(2))
	}
}

// Two conversations that begin with the same message diverge at the second: the key covers the
// whole rendered conversation.
func TestKeyCoversWholeConversation(t *testing.T) {
	tree := NewTree(1 << 20)
	tree.Insert(blocks("hello-one"), 0)
	tree.Insert(blocks("hello-two"), 1)
	out := make([]int, 2)
	tree.Match(blocks("hello-two-more"), out)
	if out[0] != 6*BlockBytes || out[1] != 9*BlockBytes {
		t.Errorf("matched %v bytes, want the shared opening at 0 and the conversation at 1", out)
	}
}
