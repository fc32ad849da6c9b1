package policy

// RoundRobin takes the available candidates in turn, without a look at load or
// caches: the baseline of every comparison.
type RoundRobin struct{ turn, peers rotation }

// Name is round-robin.
func (*RoundRobin) Name() string { return "round-robin" }

// UsesPrefix is false.
func (*RoundRobin) UsesPrefix() bool { return false }

// Choose takes the next available candidate of the layer.
func (p *RoundRobin) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	turn := &p.turn
	if peer {
		turn = &p.peers
	}
	i := turn.next(f.Candidates, from, to, func(c *Candidate) bool { return c.Available })
	if i == Wait {
		return Choice{Wait, ReasonNoneAvailable}
	}
	return Choice{i, reason(ReasonRotation, peer)}
}
