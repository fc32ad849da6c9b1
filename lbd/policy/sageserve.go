package policy

// regionThreshold is the KV utilisation below which a region is selected without comparing it to
// the others (SageServe section 6.1: 70 %, from production).
const regionThreshold = 0.7

// SageServe is the router of the paper SageServe (arXiv 2502.14617, section 6.1). It selects the
// region first: this one while its mean KV utilisation is below a threshold, then the nearest other
// one below the threshold, else the one with the lowest utilisation. If it selects this region, it
// selects its replica with the fewest remaining tokens. KV utilisation excludes the model's weights, like the
// paper's effective memory. Each peer counts as another region.
//
// If no replica of this region is available, the best peer is selected whatever the utilisation. If the utilisation of
// this region is unknown, it keeps its requests. If that of a peer is unknown, the peer counts as full.
type SageServe struct{ ties rotation }

// NewSageServe returns the policy.
func NewSageServe() *SageServe { return &SageServe{} }

// Name returns sageserve.
func (*SageServe) Name() string { return "sageserve" }

// Traits returns that the policy compares replicas with peers.
func (*SageServe) Traits() Traits { return Traits{Peers: true} }

// Choose selects a region, then a replica if that region is this one.
func (p *SageServe) Choose(f *Facts) Choice {
	cs := f.Candidates
	split := firstPeer(cs)
	peer := bestPeer(cs, split)
	if countAvailable(cs[:split]) == 0 {
		if peer == none {
			return Choice{Index: Wait, Reason: ReasonNoneAvailable}
		}
		return Choice{Index: peer, Reason: ReasonForward}
	}
	local := meanKV(cs[:split])
	// A peer below the threshold has a lower utilisation than this region, which is not below the threshold. One
	// comparison therefore covers both of the paper's rules.
	if peer != none && local.Known && local.Value >= regionThreshold && peerKV(&cs[peer]) < local.Value {
		return Choice{Index: peer, Reason: ReasonForward}
	}
	return Choice{Index: p.fewestRemaining(f), Reason: ReasonRemaining}
}

// peerKV returns a peer's KV utilisation, 1 if it is unknown.
func peerKV(c *Candidate) float64 { return c.KV.Or(1) }

// meanKV returns the KV utilisation of this region: the mean over its live replicas. They serve one
// model, so their sizes are taken as equal.
func meanKV(cs []Candidate) Maybe[float64] {
	sum, n := 0.0, 0
	for i := range cs {
		if c := &cs[i]; c.Live && c.KV.Known {
			sum += c.KV.Value
			n++
		}
	}
	if n == 0 {
		return Maybe[float64]{}
	}
	return Known(sum / float64(n))
}

// bestPeer returns the index of the nearest available peer below the threshold, else of the least
// utilised one. It returns none if no peer is available.
func bestPeer(cs []Candidate, from int) int {
	best := none
	for i := from; i < len(cs); i++ {
		if cs[i].Available && (best == none || preferred(&cs[i], &cs[best])) {
			best = i
		}
	}
	return best
}

// preferred reports whether peer a is preferred to b: by distance if both are below the threshold,
// else by utilisation, and then by load.
func preferred(a, b *Candidate) bool {
	utilA, utilB := peerKV(a), peerKV(b)
	if utilA < regionThreshold && utilB < regionThreshold {
		if a.RTT != b.RTT {
			return a.RTT < b.RTT
		}
	} else if utilA != utilB {
		return utilA < utilB
	}
	return lessLoaded(a, b)
}

// fewestRemaining returns the index of the available replica with the fewest remaining tokens. Ties are broken in
// turn.
func (p *SageServe) fewestRemaining(f *Facts) int {
	fewest, cs := none, f.Candidates[:firstPeer(f.Candidates)]
	for i := range cs {
		if cs[i].Available && (fewest == none || cs[i].RemainingTokens < cs[fewest].RemainingTokens) {
			fewest = i
		}
	}
	lowest := cs[fewest].RemainingTokens
	return p.ties.nextTarget(f, 0, len(cs), func(c *Candidate) bool { return c.Available && c.RemainingTokens == lowest })
}
