package policy

// SkyLB is the prefix-tree policy of the paper SkyLB (arXiv 2505.24095, section 3.2, Algorithm 1). It
// selects the available candidate with the longest cached prefix of the prompt, replicas of this
// balancer before peers. If the longest match covers less of the prompt than MinMatch, it selects the
// least loaded candidate (section 3.3).
type SkyLB struct {
	// MinMatch is the share of the prompt, 0..1, that a match must cover at least.
	MinMatch       float64
	ties, peerTies rotation
}

// NewSkyLB returns the policy with a MinMatch of one half, as in the paper's evaluation (section 5.1: "< 50%").
func NewSkyLB() *SkyLB { return &SkyLB{MinMatch: 0.5} }

// Name returns skylb.
func (*SkyLB) Name() string { return "skylb" }

// Traits returns that the policy uses prefixes.
func (*SkyLB) Traits() Traits { return Traits{Prefix: true} }

// Choose selects the available candidate with the longest match.
func (p *SkyLB) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	ties := &p.ties
	if peer {
		ties = &p.peerTies
	}
	longest := 0
	for i := from; i < to; i++ {
		if c := &f.Candidates[i]; c.Available {
			longest = max(longest, c.MatchBytes)
		}
	}
	if longest > 0 && float64(longest) >= p.MinMatch*float64(f.PromptBytes) {
		i := leastLoaded(f, from, to, ties, func(c *Candidate) bool { return c.MatchBytes == longest })
		return Choice{Index: i, Reason: reason(ReasonPrefixMatch, peer)}
	}
	i := leastLoaded(f, from, to, ties, nil)
	if i == none {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	return Choice{Index: i, Reason: reason(ReasonPrefixMiss, peer)}
}
