package prefix

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"skyserve/internal/testkit"
)

// traffic creates prompts that begin like one of several conversations and continue with new text.
// The new text begins in the second or third quarter, on average in the middle.
type traffic struct {
	rng           *rand.Rand
	conversations uint64
	key           Key
	serial        uint64
}

func newTraffic(prompt int, conversations uint64) *traffic {
	return &traffic{rng: rand.New(rand.NewPCG(1, 2)), conversations: conversations, key: make(Key, prompt/BlockBytes)}
}

// next returns a new prompt, which reuses the memory of the previous one.
func (w *traffic) next() Key {
	w.serial++
	n := uint64(len(w.key))
	cut := n/4 + w.rng.Uint64N(n/2+1)
	conversation := w.rng.Uint64N(w.conversations)
	for i := range w.key {
		from := conversation
		if uint64(i) >= cut {
			from = 1<<32 + w.serial
		}
		w.key[i] = scramble(from<<16 + uint64(i))
	}
	return w.key
}

// scramble is the finaliser of splitmix64.
func scramble(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fill inserts prompts until the tree has that many nodes.
func fill(t *Tree, w *traffic, nodes, targets int) {
	for i := 0; t.Nodes() < nodes; i++ {
		t.Insert(w.next(), i%targets)
	}
}

// BenchmarkMatchInsert measures a new prompt whose first half is in the tree:
// match, insert, and eviction of the oldest.
func BenchmarkMatchInsert(b *testing.B) {
	for _, c := range []struct{ kb, targets, nodes int }{
		{1, 64, 100_000},
		{4, 64, 100_000},
		{32, 64, 100_000},
		{128, 64, 10_000},
		{4, 8, 100_000},
		{4, 512, 100_000},
		{4, 64, 10_000},
		{4, 64, 1_000_000},
	} {
		b.Run(fmt.Sprintf("prompt=%dKB/targets=%d/nodes=%d", c.kb, c.targets, c.nodes), func(b *testing.B) {
			if c.nodes > 100_000 {
				testkit.Slow(b)
			}
			w := newTraffic(c.kb<<10, uint64(c.nodes/8))
			tree := NewTree(1 << 40)
			fill(tree, w, c.nodes, c.targets)
			tree.maxBytes = tree.Bytes()
			out := make([]int, c.targets)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				key := w.next()
				tree.Match(key, out)
				tree.Insert(key, i%c.targets)
				i++
			}
			b.ReportMetric(float64(tree.Bytes())/float64(tree.Nodes()), "bytes/node")
		})
	}
}

// BenchmarkOwners is BenchmarkMatchInsert for prompts of several owners, one of which
// sends more than half of them.
func BenchmarkOwners(b *testing.B) {
	for _, owners := range []int{1, 2, 50, 1000} {
		b.Run(fmt.Sprintf("owners=%d", owners), func(b *testing.B) {
			const nodes = 100_000
			w := newTraffic(4<<10, nodes/8)
			tree, out, i := NewTree(1<<40), make([]int, 64), 0
			insert := func() {
				key, owner := w.next(), 0
				if i%2 > 0 {
					owner = i / 2 % owners
				}
				for j := range key {
					key[j] ^= uint64(owner) * 0x9e3779b97f4a7c15
				}
				tree.Match(key, out)
				tree.InsertFor(owner, key, i%64)
				i++
			}
			for tree.Nodes() < nodes {
				insert()
			}
			tree.maxBytes = tree.Bytes()
			b.ReportAllocs()
			for b.Loop() {
				insert()
			}
		})
	}
}

// BenchmarkKnown measures a prompt that its target already has: matched and inserted again.
func BenchmarkKnown(b *testing.B) {
	for _, kb := range []int{4, 32} {
		b.Run(fmt.Sprintf("prompt=%dKB", kb), func(b *testing.B) {
			w := newTraffic(kb<<10, 1000)
			tree, keys, out := NewTree(1<<40), make([]Key, 4096), make([]int, 64)
			for i := range keys {
				keys[i] = slices.Clone(w.next())
				tree.Insert(keys[i], i%64)
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				at := i % len(keys)
				tree.Match(keys[at], out)
				tree.Insert(keys[at], at%64)
				i++
			}
		})
	}
}

// heap returns the memory in use after a collection.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// BenchmarkResident measures the growth of the heap over 100,000 prompts of 4 KB that share half,
// and reports the tree's own count.
func BenchmarkResident(b *testing.B) {
	const prompts = 100_000
	for b.Loop() {
		w := newTraffic(4<<10, prompts/4)
		before := heap()
		tree := NewTree(1 << 40)
		for i := range prompts {
			tree.Insert(w.next(), i%64)
		}
		b.ReportMetric(float64(heap()-before)/prompts, "heap-bytes/prompt")
		b.ReportMetric(float64(tree.Bytes())/prompts, "tree-bytes/prompt")
		runtime.KeepAlive(tree)
	}
}

// BenchmarkBound measures the memory of a tree that has been full for long, by its own count and on
// the heap.
func BenchmarkBound(b *testing.B) {
	const bound = 16 << 20
	for _, size := range []int{256, 4 << 10, 100 << 10} {
		b.Run(fmt.Sprintf("prompt=%dB", size), func(b *testing.B) {
			if size < 4<<10 {
				testkit.Slow(b) // two million prompts
			}
			w := newTraffic(size, uint64(64<<20/size))
			before := heap()
			tree := NewTree(bound)
			for i := range (512 << 20) / size {
				tree.Insert(w.next(), i%64)
			}
			grown := heap() - before
			for b.Loop() {
				tree.Insert(w.next(), int(w.serial%64))
			}
			b.ReportMetric(100*float64(grown)/bound, "heap-%-of-bound")
			b.ReportMetric(100*float64(tree.Bytes())/bound, "tree-%-of-bound")
		})
	}
}

// BenchmarkRemoveTarget removes a target that has one in a hundred nodes of a
// tree whose root has about half of all nodes as children.
func BenchmarkRemoveTarget(b *testing.B) {
	for _, nodes := range []int{10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			if nodes > 100_000 {
				testkit.Slow(b)
			}
			w := newTraffic(1<<10, uint64(nodes))
			tree := NewTree(1 << 40)
			fill(tree, w, nodes, 100)
			removed := 0
			for b.Loop() {
				b.StopTimer()
				for i := 0; tree.counts[7] < nodes/100; i++ {
					tree.Insert(w.next(), 7)
				}
				removed += tree.counts[7]
				b.StartTimer()
				tree.RemoveTarget(7)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(removed), "ns/node")
		})
	}
}
