package policy

// SkyLB is SkyLB's prefix-tree policy (section 3.2, Algorithm 1): the available
// candidate that holds the longest prefix of the prompt, replicas of the region
// before peers. When the best match is below MinMatch of the prompt, locality
// has nothing to say and the least loaded candidate is taken (section 3.3).
type SkyLB struct {
	// MinMatch is the share of the prompt, 0..1, from which a match counts.
	MinMatch    float64
	ties, peers rotation
}

// NewSkyLB makes the policy with the paper's constants: MinMatch one half.
func NewSkyLB() *SkyLB { return &SkyLB{MinMatch: 0.5} }

// Name is skylb.
func (*SkyLB) Name() string { return "skylb" }

// Traits says: it looks at prefixes.
func (*SkyLB) Traits() Traits { return Traits{Prefix: true} }

// Choose takes the available candidate with the longest match.
func (p *SkyLB) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	ties := &p.ties
	if peer {
		ties = &p.peers
	}
	longest := 0
	for i := from; i < to; i++ {
		if c := &f.Candidates[i]; c.Available {
			longest = max(longest, c.Match)
		}
	}
	if longest > 0 && float64(longest) >= p.MinMatch*float64(f.PromptBytes) {
		i := leastLoaded(f.Candidates, from, to, ties, func(c *Candidate) bool { return c.Match == longest })
		return Choice{Index: i, Reason: reason(ReasonPrefixMatch, peer)}
	}
	i := leastLoaded(f.Candidates, from, to, ties, nil)
	if i == Wait {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	return Choice{Index: i, Reason: reason(ReasonPrefixMiss, peer)}
}
