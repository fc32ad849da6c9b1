package policy

// RoundRobin rotates over the available candidates and ignores load and caches. It is the baseline
// of every comparison.
type RoundRobin struct{ turn, peers rotation }

// Name returns round-robin.
func (*RoundRobin) Name() string { return "round-robin" }

// Traits returns no requirements: availability is enough.
func (*RoundRobin) Traits() Traits { return Traits{} }

// Choose selects the next available candidate of the layer.
func (p *RoundRobin) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	turn := &p.turn
	if peer {
		turn = &p.peers
	}
	i := turn.nextTarget(f.Candidates, from, to, func(c *Candidate) bool { return c.Available })
	if i == Wait {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	return Choice{Index: i, Reason: reason(ReasonRotation, peer)}
}
