package policy

// SkyLBCH is the consistent-hashing policy of the paper SkyLB (arXiv 2505.24095, section 3.2,
// Algorithm 1, lines 23-26). It hashes sessions onto a ring of replicas or, if none is available, of
// peers. Unavailable targets are skipped. The policy does not compare prefixes, because the requests
// of a session share theirs. Requests without a session go to the candidates in turn.
type SkyLBCH struct{ affinity affinity }

// NewSkyLBCH returns the policy.
func NewSkyLBCH() *SkyLBCH { return &SkyLBCH{} }

// Name returns skylb-ch.
func (*SkyLBCH) Name() string { return "skylb-ch" }

// Traits returns no traits: the policy uses only sessions and availability.
func (*SkyLBCH) Traits() Traits { return Traits{} }

// Choose selects the session's target on the layer's ring.
func (p *SkyLBCH) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	return p.affinity.choose(f, from, to, peer, func(c *Candidate) bool { return c.Available })
}
