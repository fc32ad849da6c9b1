package policy

import "time"

// CacheAwarePreset is one set of constants of SGLang's router.
type CacheAwarePreset struct {
	// Word is the policy's name with these constants.
	Word string
	// Threshold is the share of the prompt, 0..1, above which a match counts.
	Threshold float64
	// The fleet is imbalanced when its heaviest replica has more than BalanceAbs
	// outstanding requests more than its lightest, and more than BalanceRel times
	// as many.
	BalanceAbs int
	BalanceRel float64
	// FirstHolder gives a match to the first of the replicas that have it,
	// whatever each carries: that router takes the first key of a map. Otherwise
	// the least loaded of them gets it.
	FirstHolder bool
	// EvictionInterval is how often that router trims its tree to TreeChars for
	// each replica. Here the tree keeps its bound at every insertion, so that the
	// interval has no counterpart: see TreeBytes.
	EvictionInterval time.Duration
	TreeChars        int
}

// CacheAwareSkyLB is SGLang's router as SkyLB's evaluation ran it (section 5).
func CacheAwareSkyLB() CacheAwarePreset {
	return CacheAwarePreset{
		Word: "cache-aware:skylb", Threshold: 0.5, BalanceAbs: 32, BalanceRel: 1.0001, FirstHolder: true,
		EvictionInterval: 60 * time.Second, TreeChars: 1 << 24,
	}
}

// CacheAwareLater is what later releases of SGLang's router ship, and what the
// word cache-aware means.
func CacheAwareLater() CacheAwarePreset {
	return CacheAwarePreset{
		Word: "cache-aware", Threshold: 0.3, BalanceAbs: 64, BalanceRel: 1.5,
		EvictionInterval: 120 * time.Second, TreeChars: 1 << 26,
	}
}

// TreeBytes is the bound of a prefix tree that remembers TreeChars characters
// of prompts for each of so many replicas that share nothing: 12 bytes a block of
// 64, and a node of 104 for every 4 KB prompt.
func (p CacheAwarePreset) TreeBytes(replicas int) int {
	return replicas * (p.TreeChars/64*12 + p.TreeChars/4096*104)
}

// CacheAware is SGLang's cache-aware router: an imbalanced fleet is evened out
// first; else the longest match is taken when it covers enough of the prompt;
// else the replica of which the tree knows least, as it has the most room. Ties
// go to the least loaded, then in turn, but for matches under FirstHolder.
// SGLang leaves a candidate out only when it is dead; here whatever the push
// rule holds back is left out.
type CacheAware struct {
	preset      CacheAwarePreset
	ties, peers rotation
}

// NewCacheAware makes the policy with a preset's constants.
func NewCacheAware(preset CacheAwarePreset) *CacheAware { return &CacheAware{preset: preset} }

// Name is cache-aware, with the preset's name where it is not the usual one.
func (p *CacheAware) Name() string { return p.preset.Word }

// Traits says: it looks at prefixes.
func (*CacheAware) Traits() Traits { return Traits{Prefix: true} }

// Choose evens out, follows a match, or fills the emptiest, in that order.
func (p *CacheAware) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	ties := &p.ties
	if peer {
		ties = &p.peers
	}
	s := survey(f.Candidates[from:to])
	why := ReasonPrefixMiss
	among := func(c *Candidate) bool { return c.Cached == s.leastCached }
	switch {
	case s.available == 0:
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	case p.imbalanced(s):
		why, among = ReasonImbalance, nil
	case float64(s.longest) > p.preset.Threshold*float64(f.PromptBytes):
		why, among = ReasonPrefixMatch, func(c *Candidate) bool { return c.Match == s.longest }
		if p.preset.FirstHolder {
			return Choice{Index: firstHolder(f.Candidates, from, to, s.longest), Reason: reason(why, peer)}
		}
	}
	return Choice{Index: leastLoaded(f.Candidates, from, to, ties, among), Reason: reason(why, peer)}
}

// firstHolder is the available candidate of the least id that holds match bytes.
func firstHolder(cs []Candidate, from, to, match int) int {
	first := Wait
	for i := from; i < to; i++ {
		if c := &cs[i]; c.Available && c.Match == match && (first == Wait || c.ID < cs[first].ID) {
			first = i
		}
	}
	return first
}

func (p *CacheAware) imbalanced(s summary) bool {
	return s.heaviest-s.lightest > p.preset.BalanceAbs &&
		float64(s.heaviest) > p.preset.BalanceRel*float64(s.lightest)
}

// summary is what cache-aware decides on, over the available candidates.
type summary struct {
	available          int
	lightest, heaviest int // outstanding
	longest            int // match, in bytes
	leastCached        int // bytes
}

func survey(cs []Candidate) summary {
	var s summary
	for i := range cs {
		c := &cs[i]
		if !c.Available {
			continue
		}
		if s.available == 0 {
			s.lightest, s.leastCached = c.Outstanding, c.Cached
		}
		s.available++
		s.lightest, s.heaviest = min(s.lightest, c.Outstanding), max(s.heaviest, c.Outstanding)
		s.longest, s.leastCached = max(s.longest, c.Match), min(s.leastCached, c.Cached)
	}
	return s
}
