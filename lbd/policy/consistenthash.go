package policy

// loadFactor is how much more than the mean a candidate may carry before
// consistent-hash goes on to the next (Mirrokni et al., Consistent Hashing with
// Bounded Loads, 2018; the 1.25 of its authors' deployment).
const loadFactor = 1.25

// ConsistentHash sends every session to the place that a hash ring gives it,
// as Envoy's ring hash does, unless that place is not available or carries more
// than its share: then to the next on the ring. Requests without a session go
// in turn.
type ConsistentHash struct{ affinity affinity }

// NewConsistentHash makes the policy.
func NewConsistentHash() *ConsistentHash { return &ConsistentHash{} }

// Name is consistent-hash.
func (*ConsistentHash) Name() string { return "consistent-hash" }

// Traits says: it needs nothing beside the loads.
func (*ConsistentHash) Traits() Traits { return Traits{} }

// Choose takes the session's place on the layer's ring, loads bounded.
func (p *ConsistentHash) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	bound := loadBound(f.Candidates[from:to])
	return p.affinity.choose(f, from, to, peer, func(c *Candidate) bool {
		return c.Available && float64(c.Outstanding) < bound
	})
}

// loadBound is what an available candidate must stay below to get one request
// more: loadFactor times the mean once that request is placed. The lightest one
// always does.
func loadBound(cs []Candidate) float64 {
	total, n := 0, 0
	for i := range cs {
		if cs[i].Available {
			total += cs[i].Outstanding
			n++
		}
	}
	return loadFactor * float64(total+1) / float64(max(n, 1))
}

// affinity is what the two hashing policies share: rings, and turns for
// requests that name no session.
type affinity struct {
	rings       rings
	turn, peers rotation
}

// choose takes the first candidate for which ok holds, from the session's place on.
func (a *affinity) choose(f *Facts, from, to int, peer bool, ok func(*Candidate) bool) Choice {
	cs := f.Candidates[from:to]
	if countAvailable(cs) == 0 {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	if f.Session == "" {
		turn := &a.turn
		if peer {
			turn = &a.peers
		}
		return Choice{Index: turn.next(f.Candidates, from, to, ok), Reason: reason(ReasonRotation, peer)}
	}
	i := a.rings.of(f.Model, peer, cs).next(f.Session, cs, ok)
	return Choice{Index: from + i, Reason: reason(ReasonSession, peer)}
}
