package policy

import (
	"slices"
	"sort"
)

const (
	// ringPoints is the number of points of each target on a ring. With a fixed number per target,
	// rather than a share of a fixed total as in Envoy, a removal moves only the removed target's
	// keys. With 1,024, even a ring of one target has Envoy's minimum size, and every target's share
	// is within about 10 % of the mean.
	ringPoints = 1024
	// A ring may keep as many removed targets as it has current ones, plus ringSlack.
	ringSlack = 16
	// maxRings is the maximum number of rings of all models. A model has at most two, one for each layer.
	maxRings = 256
)

// point is a point on the ring. Its high bits are its position, its low targetBits its target, an
// index in ring.ids. Sorting integers is several times faster than sorting structs, and requests
// wait while a ring is built.
type point uint64

const targetBits = 16 // 65,536 targets

func newPoint(hash uint64, target int) point {
	return point(ringPosition(hash) | uint64(target))
}

func (p point) target() int { return int(p & (1<<targetBits - 1)) }

// ringPosition returns a hash without the bits of the target.
func ringPosition(hash uint64) uint64 { return hash >> targetBits << targetBits }

// ring is a hash ring (Karger et al. 1997; Envoy's ring hash). It may contain targets that are not
// candidates any more. They are skipped like unavailable ones and do not affect the choices.
type ring struct {
	ids         []string // sorted
	points      []point  // sorted
	candidateOf []int32  // index of each id in the candidates of the current request, or none
}

// newRing returns a ring with the targets of ids, which must be sorted.
func newRing(ids []string) *ring {
	r := &ring{ids: ids, candidateOf: make([]int32, len(ids)), points: make([]point, 0, len(ids)*ringPoints)}
	for i, id := range ids {
		h := hashKey(id)
		for n := range uint64(ringPoints) {
			r.points = append(r.points, newPoint(mix(h+n*0x9e3779b97f4a7c15), i))
		}
	}
	slices.Sort(r.points)
	return r
}

// mapCandidates finds the candidate of every id of the ring; both lists are sorted by id. It reports
// whether the ring contains all candidates.
func (r *ring) mapCandidates(cs []Candidate) bool {
	next := 0
	for i, id := range r.ids {
		r.candidateOf[i] = none
		if next < len(cs) && cs[next].ID == id {
			r.candidateOf[i] = int32(next)
			next++
		}
	}
	return next == len(cs)
}

// nextTarget walks the ring from the position of a key's hash and returns the index of the first eligible
// candidate, or none. mapCandidates must have been called.
func (r *ring) nextTarget(hash uint64, cs []Candidate, eligible func(*Candidate) bool) int {
	h := point(ringPosition(hash))
	start := sort.Search(len(r.points), func(i int) bool { return r.points[i] >= h })
	for n := range r.points {
		i := start + n
		if i >= len(r.points) {
			i -= len(r.points)
		}
		if at := r.candidateOf[r.points[i].target()]; at != none && eligible(&cs[at]) {
			return int(at)
		}
	}
	return none
}

// rings contains a ring for each model and layer.
type rings struct{ byLayer map[ringKey]*ring }

type ringKey struct {
	model string
	peer  bool
}

// ringFor returns the ring of a model and layer, after mapCandidates. It builds a new ring if a
// candidate is missing in the old one.
func (s *rings) ringFor(model string, peer bool, cs []Candidate) *ring {
	key := ringKey{model, peer}
	r := s.byLayer[key]
	if r != nil && r.mapCandidates(cs) {
		return r
	}
	var old []string
	if r != nil {
		old = r.ids
	}
	r = newRing(union(old, cs))
	r.mapCandidates(cs)
	if s.byLayer == nil || len(s.byLayer) >= maxRings {
		s.byLayer = map[ringKey]*ring{} // rebuilt when needed
	}
	s.byLayer[key] = r
	return r
}

// union returns the ids of the candidates and the old ids of the ring, sorted. A request that may use
// only some of the targets has fewer candidates, so old ids are kept until there are too many.
func union(old []string, cs []Candidate) []string {
	ids := make([]string, 0, len(old)+len(cs))
	for i := range cs {
		ids = append(ids, cs[i].ID)
	}
	all := append(slices.Clone(ids), old...)
	slices.Sort(all)
	if all = slices.Compact(all); len(all) <= 2*len(cs)+ringSlack {
		return all
	}
	slices.Sort(ids)
	return ids
}

// hashKey is FNV-1a over the bytes of s.
func hashKey(s string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return h
}

// mix spreads the bits of h evenly (the finaliser of SplitMix64).
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
