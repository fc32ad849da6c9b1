package policy

// SkyLBCH is SkyLB's consistent-hashing policy (section 3.2, Algorithm 1 lines 23-26): a ring hash
// over the sessions at both layers, replicas and peers. It does not use prefixes, but the requests
// of a session share theirs. Ring points of unavailable targets are skipped. Only the push rule
// bounds the load of a target. Requests without a session are rotated.
type SkyLBCH struct{ affinity affinity }

// NewSkyLBCH returns the policy.
func NewSkyLBCH() *SkyLBCH { return &SkyLBCH{} }

// Name returns skylb-ch.
func (*SkyLBCH) Name() string { return "skylb-ch" }

// Traits returns no requirements: sessions and availability are enough.
func (*SkyLBCH) Traits() Traits { return Traits{} }

// Choose selects the session's target on the layer's ring.
func (p *SkyLBCH) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	return p.affinity.choose(f, from, to, peer, func(c *Candidate) bool { return c.Available })
}
