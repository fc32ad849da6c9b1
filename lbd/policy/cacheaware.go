package policy

// CacheAwarePreset is one set of constants of SGLang's router.
type CacheAwarePreset struct {
	// PolicyName is the policy's name with these constants.
	PolicyName string
	// Threshold is a share of the prompt, 0..1. A match counts if it is longer.
	Threshold float64
	// The load is imbalanced when the most loaded replica has over BalanceAbs more outstanding
	// requests than the least loaded one, and over BalanceRel times as many.
	BalanceAbs int
	BalanceRel float64
	// FirstMatch: if several replicas have the longest match, the first of them is chosen, not the least
	// loaded: SGLang's router uses the first key of a map.
	FirstMatch bool
}

// CacheAwareSkyLB returns the default constants of SGLang's router at the time of SkyLB's evaluation, which names the
// router (section 5) but no constants.
func CacheAwareSkyLB() CacheAwarePreset {
	return CacheAwarePreset{
		PolicyName: "cache-aware:skylb", Threshold: 0.5, BalanceAbs: 32, BalanceRel: 1.0001, FirstMatch: true,
	}
}

// CacheAwareSGLang returns the constants of later releases of SGLang's router: the policy
// cache-aware.
func CacheAwareSGLang() CacheAwarePreset {
	return CacheAwarePreset{
		PolicyName: "cache-aware", Threshold: 0.3, BalanceAbs: 64, BalanceRel: 1.5,
	}
}

// CacheAware is SGLang's cache-aware router. If the load is imbalanced, it selects the least
// loaded replica. Otherwise it selects the longest match if that covers enough of the prompt, else
// the replica with the fewest cached bytes, which has the most free memory. Ties go to the least loaded
// candidate, then in turn; FirstMatch changes this for matches. SGLang's router considers all
// candidates that are alive, this one only those that the push mode permits.
type CacheAware struct {
	preset         CacheAwarePreset
	ties, peerTies rotation
}

// NewCacheAware returns the policy with a preset's constants.
func NewCacheAware(preset CacheAwarePreset) *CacheAware { return &CacheAware{preset: preset} }

// Name returns the preset's policy name.
func (p *CacheAware) Name() string { return p.preset.PolicyName }

// Traits returns that the policy uses prefixes.
func (*CacheAware) Traits() Traits { return Traits{Prefix: true} }

// Choose selects by load if that is imbalanced, else by the longest match, else by the smallest cache.
func (p *CacheAware) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	ties := &p.ties
	if peer {
		ties = &p.peerTies
	}
	s := summarize(f.Candidates[from:to])
	replicaReason := ReasonPrefixMiss
	eligible := func(c *Candidate) bool { return c.CachedBytes == s.leastCached }
	switch {
	case s.available == 0:
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	case p.imbalanced(s):
		replicaReason, eligible = ReasonImbalance, nil
	case float64(s.longest) > p.preset.Threshold*float64(f.PromptBytes):
		replicaReason, eligible = ReasonPrefixMatch, func(c *Candidate) bool { return c.MatchBytes == s.longest }
		if p.preset.FirstMatch {
			return Choice{Index: firstMatching(f.Candidates, from, to, s.longest), Reason: reason(replicaReason, peer)}
		}
	}
	return Choice{Index: leastLoaded(f, from, to, ties, eligible), Reason: reason(replicaReason, peer)}
}

// firstMatching returns the index of the available candidate with the lowest id among those whose match
// has the given length.
func firstMatching(cs []Candidate, from, to, match int) int {
	first := none
	for i := from; i < to; i++ {
		if c := &cs[i]; c.Available && c.MatchBytes == match && (first == none || c.ID < cs[first].ID) {
			first = i
		}
	}
	return first
}

func (p *CacheAware) imbalanced(s summary) bool {
	return s.heaviest-s.lightest > p.preset.BalanceAbs &&
		float64(s.heaviest) > p.preset.BalanceRel*float64(s.lightest)
}

// summary contains the figures of the available candidates that cache-aware decides on.
type summary struct {
	available          int
	lightest, heaviest int // outstanding
	longest            int // match, in bytes
	leastCached        int // bytes
}

func summarize(cs []Candidate) summary {
	var s summary
	for i := range cs {
		c := &cs[i]
		if !c.Available {
			continue
		}
		if s.available == 0 {
			s.lightest, s.leastCached = c.Outstanding, c.CachedBytes
		}
		s.available++
		s.lightest, s.heaviest = min(s.lightest, c.Outstanding), max(s.heaviest, c.Outstanding)
		s.longest, s.leastCached = max(s.longest, c.MatchBytes), min(s.leastCached, c.CachedBytes)
	}
	return s
}
