package policy

import (
	"math"
	"time"
)

// optimismOfReports returns by how much the cost of a peer is too low for a request with a shared prefix, in seconds. A
// peer reports the wait at its first free replica, the fewest uncached tokens at any replica, and a mean load. The cost
// takes all of them, and the longest match, as if they were of one replica. How far that is from the truth is known here:
// it is the difference between the lowest cost of the replicas here and the cost of this region by the same figures.
// Without it, two regions with the same load and the same prefixes forward nearly all requests to each other, and each
// computes the prefixes of both. Requests without a shared prefix need no certain replica, and 0 is added.
func (p *Cost) optimismOfReports(f *Facts, t *costTerms, lowestHere float64) float64 {
	if !f.SharedPrefix || !t.liveHere || math.IsInf(lowestHere, 1) {
		return 0 // without a replica to choose here, nothing shows how far off the figures are
	}
	region := regionAsPeer(f.Candidates, int(t.localMatch))
	return max(0, lowestHere-p.cost(t, &region))
}

// regionAsPeer returns the replicas of this balancer as a peer without a round trip would be described, with the
// longest match. At least one replica must be live.
func regionAsPeer(cs []Candidate, match int) Candidate {
	region := Candidate{Peer: true, Live: true, Available: true, MatchBytes: match}
	kv, known, pace, served := 0.0, 0, 0.0, 0
	for i := range cs[:firstPeer(cs)] {
		c := &cs[i]
		if !c.Live {
			continue
		}
		wait := time.Duration(0)
		if !canSendTo(c) {
			wait = HoldTime(c.Held+c.Pending.Or(0), c.Outstanding, c.Residence, c.pace())
		}
		if region.Replicas == 0 || wait < region.ExpectedWait {
			region.ExpectedWait = wait
		}
		if region.Replicas == 0 || c.PrefillTokens < region.PrefillTokens {
			region.PrefillTokens = c.PrefillTokens
		}
		region.Replicas++
		region.PeerOutstanding += c.Outstanding
		region.ContextTokens += c.ContextTokens
		pace += c.pace()
		if c.Residence > 0 {
			region.Residence, served = region.Residence+c.Residence, served+1
		}
		if c.KV.Known {
			kv, known = kv+c.KV.Value, known+1
		}
	}
	region.Pace = pace / float64(region.Replicas)
	region.Residence /= time.Duration(max(served, 1))
	if known > 0 {
		region.KV = Known(kv / float64(known))
	}
	return region
}
