package policy

import "math"

// LMetric is the router of the paper LMetric (arXiv 2603.15202). It multiplies two figures of each candidate and
// selects the lowest product. One is the number of prompt tokens to compute there before the request's first token,
// the other the number of requests there (at a peer, only those that this balancer sent). Both include the request
// itself: otherwise the product of an idle replica would be zero, whatever the others have cached. Ties go to the least
// loaded candidate, then in turn.
type LMetric struct{ ties, peerTies rotation }

// NewLMetric returns the policy.
func NewLMetric() *LMetric { return &LMetric{} }

// Name returns lmetric.
func (*LMetric) Name() string { return "lmetric" }

// Traits returns that the policy uses prefixes.
func (*LMetric) Traits() Traits { return Traits{Prefix: true} }

// Choose selects the candidate of the layer with the lowest product.
func (p *LMetric) Choose(f *Facts) Choice {
	return chooseLowest(f, ReasonLowestProduct, &p.ties, &p.peerTies, func(c *Candidate) float64 {
		uncached := 1.0
		if f.PromptBytes > 0 {
			uncached = 1 - float64(c.MatchBytes)/float64(f.PromptBytes)
		}
		// A prompt that is cached as a whole still computes its last token.
		tokens := max(1, uncached*float64(f.PromptTokens)+float64(c.PrefillTokens))
		return tokens * float64(requestsAt(c)+1)
	})
}

// chooseLowest selects the available candidate of the layer with the lowest score. Ties go to the least loaded
// candidate, then in turn. replicaReason is the reason of the choice if it is a replica: see reason. chooseLowest does
// not set Candidate.Score, which is in seconds.
func chooseLowest(f *Facts, replicaReason string, ties, peerTies *rotation, score func(*Candidate) float64) Choice {
	from, to, peer := layer(f.Candidates)
	if peer {
		ties = peerTies
	}
	i := indexOfLowest(f, from, to, ties, score)
	if i == none {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	return Choice{Index: i, Reason: reason(replicaReason, peer)}
}

// indexOfLowest returns the index of the available candidate between from and to with the lowest score, or none.
func indexOfLowest(f *Facts, from, to int, ties *rotation, score func(*Candidate) float64) int {
	lowest := math.Inf(1)
	for i := from; i < to; i++ {
		if c := &f.Candidates[i]; c.Available {
			lowest = min(lowest, score(c))
		}
	}
	return leastLoaded(f, from, to, ties, func(c *Candidate) bool { return score(c) <= lowest })
}
