package policy

// regionThreshold is the KV utilisation below which a region is taken without a
// look at the others (SageServe section 6.1: 70 %, from production).
const regionThreshold = 0.7

// SageServe is SageServe's router (section 6.1). It chooses the region first:
// the nearest whose replicas' KV memory is used below a threshold, this region
// before its peers, else the least used; then, in this region, the replica with
// the fewest tokens left to process. The KV share is memory beyond the weights,
// which is the paper's effective memory.
//
// A region that exports no figure is not thought empty: this one keeps its
// requests, another gets them only when no known one has room.
type SageServe struct{ ties rotation }

// NewSageServe makes the policy.
func NewSageServe() *SageServe { return &SageServe{} }

// Name is sageserve.
func (*SageServe) Name() string { return "sageserve" }

// Traits says: it weighs regions against each other.
func (*SageServe) Traits() Traits { return Traits{Regions: true} }

// Choose takes a region, then a replica if that region is this one.
func (p *SageServe) Choose(f *Facts) Choice {
	cs := f.Candidates
	split := firstPeer(cs)
	peer := bestPeer(cs, split)
	if countAvailable(cs[:split]) == 0 {
		if peer == Wait {
			return Choice{Index: Wait, Reason: ReasonNoneAvailable}
		}
		return Choice{Index: peer, Reason: ReasonOffload}
	}
	own := meanKV(cs[:split])
	// A peer below the threshold is emptier than a region that is not: one
	// comparison serves both of the paper's rules.
	if peer != Wait && own.Known && own.Value >= regionThreshold && peerKV(&cs[peer]) < own.Value {
		return Choice{Index: peer, Reason: ReasonOffload}
	}
	return Choice{Index: p.fewestRemaining(cs[:split]), Reason: ReasonRemaining}
}

// peerKV is a peer's utilisation; one that tells none counts as full.
func peerKV(c *Candidate) float64 { return c.KV.Or(1) }

// meanKV is the utilisation of this region: the mean over the replicas that
// answer, of one size as they serve one model.
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

// bestPeer is the nearest available peer below the threshold, else the least
// used; Wait when none is available.
func bestPeer(cs []Candidate, from int) int {
	best := Wait
	for i := from; i < len(cs); i++ {
		if cs[i].Available && (best == Wait || preferred(&cs[i], &cs[best])) {
			best = i
		}
	}
	return best
}

// preferred says whether peer a comes before b: below the threshold by distance,
// else by utilisation; the lighter when that is the same.
func preferred(a, b *Candidate) bool {
	ka, kb := peerKV(a), peerKV(b)
	if ka < regionThreshold && kb < regionThreshold {
		if a.RTT != b.RTT {
			return a.RTT < b.RTT
		}
	} else if ka != kb {
		return ka < kb
	}
	return lighter(a, b)
}

// fewestRemaining is the available replica with the fewest tokens left to
// process; ties rotate.
func (p *SageServe) fewestRemaining(cs []Candidate) int {
	fewest := Wait
	for i := range cs {
		if cs[i].Available && (fewest == Wait || cs[i].Remaining < cs[fewest].Remaining) {
			fewest = i
		}
	}
	least := cs[fewest].Remaining
	return p.ties.next(cs, 0, len(cs), func(c *Candidate) bool { return c.Available && c.Remaining == least })
}
