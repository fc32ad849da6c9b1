package policy

// LeastLoad takes the available replica with the fewest outstanding requests,
// or the peer with the shortest queue; ties rotate, so that an idle fleet is
// not filled from one end.
type LeastLoad struct{ ties, peers rotation }

// Name is least-load.
func (*LeastLoad) Name() string { return "least-load" }

// Traits says: it needs nothing beside the loads.
func (*LeastLoad) Traits() Traits { return Traits{} }

// Choose takes the least loaded candidate of the layer.
func (p *LeastLoad) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	ties := &p.ties
	if peer {
		ties = &p.peers
	}
	i := leastLoaded(f.Candidates, from, to, ties, nil)
	if i == Wait {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	return Choice{Index: i, Reason: reason(ReasonLeastLoad, peer)}
}

// leastLoaded is the least loaded available candidate for which among holds
// (nil: all); ties rotate. Wait when there is none.
func leastLoaded(cs []Candidate, from, to int, ties *rotation, among func(*Candidate) bool) int {
	best := Wait
	ok := func(c *Candidate) bool { return c.Available && (among == nil || among(c)) }
	for i := from; i < to; i++ {
		if ok(&cs[i]) && (best == Wait || lighter(&cs[i], &cs[best])) {
			best = i
		}
	}
	if best == Wait {
		return Wait
	}
	least := &cs[best]
	return ties.next(cs, from, to, func(c *Candidate) bool { return ok(c) && !lighter(least, c) })
}

// lighter says whether a carries strictly less than b. Peers compare by queue,
// then by distance, then by what was sent there.
func lighter(a, b *Candidate) bool {
	if a.Peer {
		if a.Queued != b.Queued {
			return a.Queued < b.Queued
		}
		if a.RTT != b.RTT {
			return a.RTT < b.RTT
		}
	}
	return a.Outstanding < b.Outstanding
}
