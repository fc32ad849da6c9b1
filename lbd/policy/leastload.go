package policy

// LeastLoad selects the available replica with the fewest outstanding requests, or the peer with
// the shortest queue. Ties rotate, so that idle replicas are filled evenly.
type LeastLoad struct{ ties, peers rotation }

// Name returns least-load.
func (*LeastLoad) Name() string { return "least-load" }

// Traits returns no requirements: the loads are enough.
func (*LeastLoad) Traits() Traits { return Traits{} }

// Choose selects the least loaded candidate of the layer.
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

// leastLoaded returns the least loaded available candidate for which among is true (nil: all); ties
// rotate. It returns Wait if there is none.
func leastLoaded(cs []Candidate, from, to int, ties *rotation, among func(*Candidate) bool) int {
	best := Wait
	ok := func(c *Candidate) bool { return c.Available && (among == nil || among(c)) }
	for i := from; i < to; i++ {
		if ok(&cs[i]) && (best == Wait || lessLoaded(&cs[i], &cs[best])) {
			best = i
		}
	}
	if best == Wait {
		return Wait
	}
	lightest := &cs[best]
	return ties.nextTarget(cs, from, to, func(c *Candidate) bool { return ok(c) && !lessLoaded(lightest, c) })
}

// lessLoaded reports whether a has strictly less load than b. Peers compare by queue, then by
// distance, then by outstanding requests.
func lessLoaded(a, b *Candidate) bool {
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
