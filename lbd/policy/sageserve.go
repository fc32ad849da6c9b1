package policy

// regionThreshold is the KV utilisation below which a region is selected without comparing it to
// the others (SageServe section 6.1: 70 %, from production).
const regionThreshold = 0.7

// SageServe is SageServe's router (section 6.1). It selects the region first: the nearest one
// whose replicas' KV utilisation is below a threshold (this region before its peers), else the
// one with the lowest utilisation. Then, in this region, it selects the replica with the fewest
// remaining tokens. KV utilisation excludes the weights, like the paper's effective memory.
// The replicas of this balancer count as this region, and each peer counts as another region.
//
// A region whose utilisation is unknown is not assumed empty: this region keeps its requests, and another one
// receives them only when no region with a known utilisation has capacity.
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
		if peer == Wait {
			return Choice{Index: Wait, Reason: ReasonNoneAvailable}
		}
		return Choice{Index: peer, Reason: ReasonForward}
	}
	own := meanKV(cs[:split])
	// A peer below the threshold has a lower utilisation than a region above it, so one
	// comparison implements both of the paper's rules.
	if peer != Wait && own.Known && own.Value >= regionThreshold && peerKV(&cs[peer]) < own.Value {
		return Choice{Index: peer, Reason: ReasonForward}
	}
	return Choice{Index: p.fewestRemaining(cs[:split]), Reason: ReasonRemaining}
}

// peerKV returns a peer's utilisation; if it is unknown, the peer counts as full.
func peerKV(c *Candidate) float64 { return c.KV.Or(1) }

// meanKV returns the utilisation of this region: the mean over its live replicas, which have equal
// size since they serve one model.
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

// bestPeer returns the nearest available peer below the threshold, else the least utilised; Wait if
// none is available.
func bestPeer(cs []Candidate, from int) int {
	best := Wait
	for i := from; i < len(cs); i++ {
		if cs[i].Available && (best == Wait || preferred(&cs[i], &cs[best])) {
			best = i
		}
	}
	return best
}

// preferred reports whether peer a precedes b: below the threshold by distance, else by
// utilisation, then by load.
func preferred(a, b *Candidate) bool {
	ka, kb := peerKV(a), peerKV(b)
	if ka < regionThreshold && kb < regionThreshold {
		if a.RTT != b.RTT {
			return a.RTT < b.RTT
		}
	} else if ka != kb {
		return ka < kb
	}
	return lessLoaded(a, b)
}

// fewestRemaining returns the available replica with the fewest remaining tokens; ties rotate.
func (p *SageServe) fewestRemaining(cs []Candidate) int {
	fewest := Wait
	for i := range cs {
		if cs[i].Available && (fewest == Wait || cs[i].Remaining < cs[fewest].Remaining) {
			fewest = i
		}
	}
	lowest := cs[fewest].Remaining
	return p.ties.nextTarget(cs, 0, len(cs), func(c *Candidate) bool { return c.Available && c.Remaining == lowest })
}
