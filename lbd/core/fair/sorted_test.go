package fair

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type item struct {
	key  int
	node node[item]
}

func newItems() sorted[item] {
	return sorted[item]{node: func(x *item) *node[item] { return &x.node }, before: func(a, b *item) bool { return a.key < b.key }}
}

// listed walks through s and checks its links in both directions, and the tree.
func listed(t fatal, s *sorted[item]) (keys []int) {
	for x := s.first(); x != nil; x = s.nextItem(x) {
		for _, child := range []*item{x.node.left, x.node.right} {
			if child != nil && (child.node.parent != x || child.node.priority > x.node.priority) {
				t.Fatalf("%d is no child of %d", child.key, x.key)
			}
		}
		keys = append(keys, x.key)
	}
	if held := inTree(s.root, nil); !slices.Equal(held, keys) {
		t.Fatalf("the tree holds %v, its elements follow each other as %v", held, keys)
	}
	return keys
}

func inTree(x *item, into []int) []int {
	if x == nil {
		return into
	}
	return inTree(x.node.right, append(inTree(x.node.left, into), x.key))
}

// A sorted behaves like a slice that is sorted after every change.
func TestSortedMatchesSlice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newItems()
		in := map[int]*item{}
		var want []int
		for range rapid.IntRange(1, 120).Draw(rt, "changes") {
			k := rapid.IntRange(0, 60).Draw(rt, "key")
			if x := in[k]; x != nil {
				s.removeItem(x)
				delete(in, k)
				i, _ := slices.BinarySearch(want, k)
				want = slices.Delete(want, i, i+1)
			} else {
				in[k] = &item{key: k}
				s.addItem(in[k])
				i, _ := slices.BinarySearch(want, k)
				want = slices.Insert(want, i, k)
			}
			if got := listed(rt, &s); !slices.Equal(got, want) {
				rt.Fatalf("got %v, want %v", got, want)
			}
			if last := s.last(); (last == nil) != (len(want) == 0) || last != nil && last.key != want[len(want)-1] {
				rt.Fatalf("the last is %v, want that of %v", last, want)
			}
		}
	})
}

// Elements added in order, like requests, must not degrade the tree to a list.
func TestSortedDepthIsLogarithmic(t *testing.T) {
	s := newItems()
	for k := range 4096 {
		s.addItem(&item{key: k})
	}
	deepest := 0
	for x := s.first(); x != nil; x = s.nextItem(x) {
		depth := 0
		for up := x; up != nil; up = up.node.parent {
			depth++
		}
		deepest = max(deepest, depth)
	}
	if deepest > 48 { // 4 * log2(4096); a treap's expected depth is below 2.9 * log2(n)
		t.Errorf("4096 elements stand %d deep", deepest)
	}
}
