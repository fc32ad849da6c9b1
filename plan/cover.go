package plan

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// maxReachSets bounds the number of different region sets that round-trip limits may lead to.
const maxReachSets = 2048

// regionSet is a set of regions as a bit set.
type regionSet []uint64

func newRegionSet(n int) regionSet            { return make(regionSet, (n+63)/64) }
func (s regionSet) has(j int) bool            { return s[j/64]>>(j%64)&1 == 1 }
func (s regionSet) addRegion(j int)           { s[j/64] |= 1 << (j % 64) }
func (s regionSet) equal(o regionSet) bool    { return slices.Equal(s, o) }
func (s regionSet) subsetOf(o regionSet) bool { return s.union(o).equal(o) }

func (s regionSet) union(o regionSet) regionSet {
	out := slices.Clone(s)
	for i := range out {
		out[i] |= o[i]
	}
	return out
}

func (s regionSet) without(j int) regionSet {
	out := slices.Clone(s)
	out[j/64] &^= 1 << (j % 64)
	return out
}

func (s regionSet) size() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// coverage is one coverage row of a model: the regions of a set together serve a need.
type coverage struct {
	regions regionSet
	need    float64
	// lost is the region assumed lost, -1 for none.
	lost int
}

// allRegions returns the set of all regions.
func (p *Problem) allRegions() regionSet {
	all := newRegionSet(len(p.Regions))
	for j := range p.Regions {
		all.addRegion(j)
	}
	return all
}

// withinReach returns the set of regions that may serve region j's load: itself, and those within the
// limit.
func (p *Problem) withinReach(j int) regionSet {
	if p.RTTMillis == nil || p.MaxRTTMillis == 0 {
		return p.allRegions()
	}
	s := newRegionSet(len(p.Regions))
	for r := range p.Regions {
		if r == j || p.RTTMillis[j][r] <= p.MaxRTTMillis {
			s.addRegion(r)
		}
	}
	return s
}

// reachSets lists the sets that withinReach returns and the unions of overlapping ones; nil when
// there are too many. By Hall's theorem all load can be placed when, for each union, its regions
// serve the load that no other region can.
func (p *Problem) reachSets() []regionSet {
	sets := []regionSet{}
	for j := range p.Regions {
		if s := p.withinReach(j); !slices.ContainsFunc(sets, s.equal) {
			sets = append(sets, s)
		}
	}
	for at := 0; at < len(sets); at++ {
		for j := range p.Regions {
			near := p.withinReach(j)
			if near.union(sets[at]).size() == near.size()+sets[at].size() {
				continue // disjoint: the row would be the sum of two others
			}
			if u := near.union(sets[at]); !slices.ContainsFunc(sets, u.equal) {
				if sets = append(sets, u); len(sets) > maxReachSets {
					return nil
				}
			}
		}
	}
	return sets
}

// covers lists the coverage rows of model i over several regions. It omits rows that another row
// implies; the first is the one over the largest number of regions.
func (p *Problem) covers(i int, sets []regionSet) []coverage {
	var out []coverage
	for _, s := range sets {
		need := p.needWithin(i, s)
		out = append(out, coverage{s, need, -1})
		for j := range p.Regions {
			if p.mustSurviveLossOf(j) && s.has(j) {
				out = append(out, coverage{s.without(j), need, j})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b coverage) int {
		return cmp.Or(-cmp.Compare(a.regions.size(), b.regions.size()), -cmp.Compare(a.need, b.need), cmp.Compare(a.lost, b.lost))
	})
	kept := out[:0:0]
	for at, c := range out {
		implied := false
		for o, d := range out {
			if o != at && d.regions.subsetOf(c.regions) && d.need >= c.need && (o < at || !d.regions.equal(c.regions) || d.need > c.need) {
				implied = true
			}
		}
		if !implied && c.need > 0 {
			kept = append(kept, c)
		}
	}
	return kept
}

// needWithin returns the highest load of model i, in one window, that only the regions of the set
// can serve.
func (p *Problem) needWithin(i int, s regionSet) float64 {
	var peak float64
	for w := range p.LoadTPS[i][0] {
		var sum float64
		for j := range p.Regions {
			if p.withinReach(j).subsetOf(s) {
				sum += p.LoadTPS[i][j][w]
			}
		}
		peak = math.Max(peak, sum)
	}
	return peak
}

// plainCover reports whether every model has one coverage row, over all regions, as in SageServe's
// program.
func (p *Problem) plainCover() bool {
	return !p.Survive && (p.RTTMillis == nil || p.MaxRTTMillis == 0 || p.withinReach(0).equal(p.allRegions()) && len(p.reachSets()) == 1)
}
