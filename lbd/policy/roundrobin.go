package policy

// RoundRobin selects the available candidates in turn and ignores load and caches. It is the baseline
// of comparisons.
type RoundRobin struct{ rotation, peerRotation rotation }

// Name returns round-robin.
func (*RoundRobin) Name() string { return "round-robin" }

// Traits returns no traits: the policy uses only availability.
func (*RoundRobin) Traits() Traits { return Traits{} }

// Choose selects the next available candidate of the layer.
func (p *RoundRobin) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	r := &p.rotation
	if peer {
		r = &p.peerRotation
	}
	i := r.nextTarget(f, from, to, func(c *Candidate) bool { return c.Available })
	if i == none {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	return Choice{Index: i, Reason: reason(ReasonRotation, peer)}
}
