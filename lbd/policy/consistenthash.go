package policy

// loadFactor is the multiple of the mean load above which consistent-hash skips a candidate: the parameter c of
// Mirrokni et al., Consistent Hashing with Bounded Loads, 2018. A lower factor evens out loads, a higher one moves fewer
// sessions. The value is our choice.
const loadFactor = 1.25

// ConsistentHash sends every session to its target on a hash ring, like Envoy's ring hash. If that
// target is unavailable or overloaded, it uses the next on the ring. Requests without a session go to
// the candidates that are not overloaded, in turn.
type ConsistentHash struct{ affinity affinity }

// NewConsistentHash returns the policy.
func NewConsistentHash() *ConsistentHash { return &ConsistentHash{} }

// Name returns consistent-hash.
func (*ConsistentHash) Name() string { return "consistent-hash" }

// Traits returns no traits: the policy uses only sessions and loads.
func (*ConsistentHash) Traits() Traits { return Traits{} }

// Choose selects the session's target on the layer's ring, with bounded loads.
func (p *ConsistentHash) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	bound := loadBound(f.Candidates[from:to])
	return p.affinity.choose(f, from, to, peer, func(c *Candidate) bool {
		return c.Available && float64(c.Outstanding) < bound
	})
}

// loadBound returns the load below which an available candidate may receive another request:
// loadFactor times the mean load including that request. The least loaded one is always below it.
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

// affinity is the common part of consistent-hash and skylb-ch: rings, and rotations for requests
// without a session.
type affinity struct {
	rings                  rings
	rotation, peerRotation rotation
}

// choose selects the first eligible candidate, starting at the session's position on the ring.
func (a *affinity) choose(f *Facts, from, to int, peer bool, eligible func(*Candidate) bool) Choice {
	cs := f.Candidates[from:to]
	if countAvailable(cs) == 0 {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	if f.Session == "" {
		r := &a.rotation
		if peer {
			r = &a.peerRotation
		}
		return Choice{Index: r.nextTarget(f, from, to, eligible), Reason: reason(ReasonRotation, peer)}
	}
	i := a.rings.ringFor(f.Model, peer, cs).nextTarget(mix(hashKey(f.Session)), cs, eligible)
	return Choice{Index: from + i, Reason: reason(ReasonSession, peer)}
}
