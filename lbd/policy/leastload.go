package policy

// LeastLoad selects the available replica with the fewest outstanding requests, or the peer with
// the shortest queue. Ties are broken in turn, so that idle replicas are filled evenly.
type LeastLoad struct{ ties, peerTies rotation }

// Name returns least-load.
func (*LeastLoad) Name() string { return "least-load" }

// Traits returns no traits: the policy uses only loads.
func (*LeastLoad) Traits() Traits { return Traits{} }

// Choose selects the least loaded candidate of the layer.
func (p *LeastLoad) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	ties := &p.ties
	if peer {
		ties = &p.peerTies
	}
	i := leastLoaded(f, from, to, ties, nil)
	if i == none {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	return Choice{Index: i, Reason: reason(ReasonLeastLoad, peer)}
}

// leastLoaded returns the index of the least loaded candidate that is available and eligible (nil =
// all are eligible), or none. Ties are broken in turn.
func leastLoaded(f *Facts, from, to int, ties *rotation, eligible func(*Candidate) bool) int {
	best, cs := none, f.Candidates
	selectable := func(c *Candidate) bool { return c.Available && (eligible == nil || eligible(c)) }
	for i := from; i < to; i++ {
		if selectable(&cs[i]) && (best == none || lessLoaded(&cs[i], &cs[best])) {
			best = i
		}
	}
	if best == none {
		return none
	}
	lightest := &cs[best]
	return ties.nextTarget(f, from, to, func(c *Candidate) bool { return selectable(c) && !lessLoaded(lightest, c) })
}

// lessLoaded reports whether a has strictly less load than b. If one is a peer, they are compared by queue,
// then by round-trip time, then by outstanding requests.
func lessLoaded(a, b *Candidate) bool {
	if a.Peer || b.Peer {
		if a.Queued != b.Queued {
			return a.Queued < b.Queued
		}
		if a.RTT != b.RTT {
			return a.RTT < b.RTT
		}
	}
	return a.Outstanding < b.Outstanding
}
