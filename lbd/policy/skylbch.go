package policy

// SkyLBCH is SkyLB's consistent-hashing policy (section 3.2, Algorithm 1 lines
// 23-26): a ring hash over the sessions at both layers, replicas and peers. It
// knows nothing of prefixes, but a session's requests share theirs. Points of
// the ring whose target is not available are skipped; nothing else bounds a
// target's load, as selective pushing does. Requests without a session go in
// turn.
type SkyLBCH struct{ affinity affinity }

// NewSkyLBCH makes the policy.
func NewSkyLBCH() *SkyLBCH { return &SkyLBCH{} }

// Name is skylb-ch.
func (*SkyLBCH) Name() string { return "skylb-ch" }

// Traits says: it needs nothing beside the loads.
func (*SkyLBCH) Traits() Traits { return Traits{} }

// Choose takes the session's place on the layer's ring.
func (p *SkyLBCH) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	return p.affinity.choose(f, from, to, peer, func(c *Candidate) bool { return c.Available })
}
