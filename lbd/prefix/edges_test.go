package prefix

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// edgesReference is the reference for edges: the edge of each node, and where the
// edges store its inner hashes.
type edgesReference struct {
	t     *testing.T
	rng   *rand.Rand
	edges edges
	edge  map[int32][]uint64
	at    map[int32]uint32
	ids   []int32 // keys of edge, in order of addition
	last  int32
}

func (s *edgesReference) put(length int) {
	edge := make([]uint64, length)
	for i := range edge {
		edge[i] = s.rng.Uint64()
	}
	s.last++
	s.keep(s.last, edge)
	if hasInner(length) {
		s.at[s.last] = s.edges.appendPiece(edge[1:length-1], s.last)
	}
}

func (s *edgesReference) keep(id int32, edge []uint64) {
	if _, known := s.edge[id]; !known {
		s.ids = append(s.ids, id)
	}
	s.edge[id] = edge
}

func (s *edgesReference) any() int32 { return s.ids[s.rng.IntN(len(s.ids))] }

func (s *edgesReference) free(id int32) {
	if hasInner(len(s.edge[id])) {
		s.edges.free(s.at[id])
	}
	delete(s.edge, id)
	delete(s.at, id)
	s.ids = slices.DeleteFunc(s.ids, func(x int32) bool { return x == id })
}

// cut assigns the upper part of id's edge to a new node, and may drop the lower part.
func (s *edgesReference) cut(id int32) {
	edge := s.edge[id]
	if len(edge) < 2 {
		return
	}
	k := 1 + s.rng.IntN(len(edge)-1)
	s.last++
	up, shorten := s.last, s.rng.IntN(3) == 0
	if at := s.at[id]; hasInner(len(edge)) {
		s.at[up], s.at[id] = at, s.edges.splitPiece(at, len(edge), k, up, id)
	}
	s.keep(up, edge[:k])
	s.keep(id, edge[k:])
	if shorten {
		s.free(id)
	}
}

// own assigns id's edge to another node.
func (s *edgesReference) own(id int32) {
	s.last++
	edge, at := s.edge[id], s.at[id]
	if hasInner(len(edge)) {
		s.edges.setNode(at, s.last)
	}
	delete(s.edge, id)
	delete(s.at, id)
	s.ids[slices.Index(s.ids, id)] = s.last
	s.edge[s.last], s.at[s.last] = edge, at
}

// clean compacts the edges. It fails if an unknown edge is moved, the words in use change, or too
// many stay dead.
func (s *edgesReference) clean() {
	words := s.edges.used
	s.edges.compact(func(id int32, at uint32) {
		if _, known := s.edge[id]; !known || !hasInner(len(s.edge[id])) {
			s.t.Fatalf("an edge of node %d moved, which has none", id)
		}
		s.at[id] = at
	})
	if s.edges.used != words {
		s.t.Fatalf("%d words were in use before cleaning, %d after", words, s.edges.used)
	}
	if e := &s.edges; 3*e.dead > e.used+edgeChunk {
		s.t.Fatalf("%d words are dead beside %d in use", e.dead, e.used)
	}
}

// check compares every edge with the map's, and the counts with the chunks.
func (s *edgesReference) check() {
	e := &s.edges
	live := make([]int, len(e.chunks))
	for id, edge := range s.edge {
		if !hasInner(len(edge)) {
			continue
		}
		at := s.at[id]
		h := *e.header(at)
		if int32(uint32(h)) != id || !slices.Equal(e.words(at+1, len(edge)-2), edge[1:len(edge)-1]) {
			s.t.Fatalf("the edge of node %d with %d hashes is another's or not the same: header %x", id, len(edge), h)
		}
		live[at>>edgeBits] += int(h >> 32)
	}
	used, dead := 0, 0
	for i := range e.chunks {
		used, dead = used+e.live[i], dead+e.fill[i]-e.live[i]
		if live[i] != e.live[i] {
			s.t.Fatalf("chunk %d counts %d live words, the edges in it have %d", i, e.live[i], live[i])
		}
	}
	if used != e.used || dead != e.dead {
		s.t.Fatalf("%d words in use and %d dead, the chunks say %d and %d", e.used, e.dead, used, dead)
	}
}

// After random additions, cuts, frees and changes of node, every edge has its contents and node,
// and compaction ends with few dead words.
func TestEdgesEqualAMap(t *testing.T) {
	for seed := range uint64(12) {
		s := &edgesReference{t: t, rng: rand.New(rand.NewPCG(seed, 7)), edge: map[int32][]uint64{}, at: map[int32]uint32{}}
		longest := []int{4, 40, maxEdge}[seed%3]
		for step := range 4000 {
			grow := step/500%2 == 0 // grow and shrink alternately
			switch op := s.rng.IntN(8); {
			case len(s.ids) == 0 || op < 2 || grow && op < 4:
				s.put(1 + s.rng.IntN(longest))
			case op < 5:
				s.free(s.any())
			case op < 7:
				s.cut(s.any())
			default:
				s.own(s.any())
			}
			if step%3 == 0 {
				s.clean()
			}
			if step%50 == 0 {
				s.check()
			}
		}
		s.check()
		for len(s.ids) > 0 {
			s.free(s.any())
		}
		s.clean()
		s.check()
	}
}

// All dead words are in the chunk being written, and the others have none.
func TestEdgesCompactWhenOnlyTheHeadHasDeadWords(t *testing.T) {
	s := &edgesReference{t: t, rng: rand.New(rand.NewPCG(1, 2)), edge: map[int32][]uint64{}, at: map[int32]uint32{}}
	for range edgeChunk / (maxEdge - 1) { // a full chunk, all live
		s.put(maxEdge)
	}
	full := s.last
	for s.edges.head == 0 || s.edges.fill[s.edges.head] < edgeChunk-maxEdge {
		s.put(maxEdge)
	}
	for id := full + 1; id <= s.last; id++ {
		s.free(id)
	}
	s.clean()
	s.check()
}
