package policy

import (
	"slices"
	"sort"
)

const (
	// ringPoints is how many points each target has on a ring. A fixed number for
	// each, rather than a share of a fixed total as in Envoy, is what makes a
	// removal move the removed target's keys only; 1,024 keeps even a ring of one
	// target at Envoy's minimum and every target's share within about 10 %.
	ringPoints = 1024
	// ringSlack is how many targets that are gone a ring may keep beside as many as are there.
	ringSlack = 16
	// maxRings bounds the rings that are kept: two for each model.
	maxRings = 256
)

// point is a place on the ring in its high bits and the target that owns it, an
// index into ring.ids, in its low targetBits: plain numbers sort several times
// faster than pairs, and requests wait while a ring is built.
type point uint64

const targetBits = 16 // 65,536 targets

func newPoint(hash uint64, target int) point {
	return point(place(hash) | uint64(target))
}

func (p point) target() int { return int(p & (1<<targetBits - 1)) }

// place is a hash without the bits that name a target.
func place(hash uint64) uint64 { return hash >> targetBits << targetBits }

// ring is a hash ring (Karger et al. 1997; Envoy's ring hash). It may hold
// targets that are gone: they are skipped like those that are not available,
// and choices are the same as without them.
type ring struct {
	ids    []string // sorted
	points []point  // sorted
	at     []int32  // scratch: index of each id among the candidates, or Wait
}

// newRing places the targets of those ids, sorted, on a ring.
func newRing(ids []string) *ring {
	r := &ring{ids: ids, at: make([]int32, len(ids)), points: make([]point, 0, len(ids)*ringPoints)}
	for i, id := range ids {
		h := hashKey(id)
		for n := range uint64(ringPoints) {
			r.points = append(r.points, newPoint(mix(h+n*0x9e3779b97f4a7c15), i))
		}
	}
	slices.Sort(r.points)
	return r
}

// locate finds every id of the ring among the candidates, both sorted by id. It
// reports whether the ring has all candidates.
func (r *ring) locate(cs []Candidate) bool {
	next := 0
	for i, id := range r.ids {
		r.at[i] = Wait
		if next < len(cs) && cs[next].ID == id {
			r.at[i] = int32(next)
			next++
		}
	}
	return next == len(cs)
}

// next walks the ring from the key's place and returns the index of the first
// candidate for which ok holds, or Wait. locate must have been called.
func (r *ring) next(key string, cs []Candidate, ok func(*Candidate) bool) int {
	h := point(place(mix(hashKey(key))))
	start := sort.Search(len(r.points), func(i int) bool { return r.points[i] >= h })
	for n := range r.points {
		i := start + n
		if i >= len(r.points) {
			i -= len(r.points)
		}
		if at := r.at[r.points[i].target()]; at != Wait && ok(&cs[at]) {
			return int(at)
		}
	}
	return Wait
}

// rings keeps a ring for each model and layer.
type rings struct{ byLayer map[ringName]*ring }

type ringName struct {
	model string
	peer  bool
}

// of is the ring that has all the candidates, located; it is built when one of
// them is new.
func (s *rings) of(model string, peer bool, cs []Candidate) *ring {
	name := ringName{model, peer}
	r := s.byLayer[name]
	if r != nil && r.locate(cs) {
		return r
	}
	var old []string
	if r != nil {
		old = r.ids
	}
	r = newRing(union(old, cs))
	r.locate(cs)
	if s.byLayer == nil || len(s.byLayer) >= maxRings {
		s.byLayer = map[ringName]*ring{} // rebuilt as they are asked for
	}
	s.byLayer[name] = r
	return r
}

// union is the ids of the candidates and the old ones. A request that may not
// go everywhere sees a part of the candidates, so that the old ones stay until
// they are many.
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
