package policy

import "math"

// LMetric is LMetric's router (arXiv 2603.15202): it selects the candidate with the lowest product of the
// prompt tokens to compute there before the request's first token and of the number of requests there. Both
// include the request itself: otherwise the product of an idle replica would be zero, and it would be selected
// whatever the others have cached. Equal products go to the least loaded, then rotate.
type LMetric struct{ ties, peers rotation }

// NewLMetric returns the policy.
func NewLMetric() *LMetric { return &LMetric{} }

// Name returns lmetric.
func (*LMetric) Name() string { return "lmetric" }

// Traits returns that the policy uses prefixes.
func (*LMetric) Traits() Traits { return Traits{Prefix: true} }

// Choose selects the candidate of the layer with the lowest product.
func (p *LMetric) Choose(f *Facts) Choice {
	return lowestScore(f, ReasonLowestProduct, &p.ties, &p.peers, func(c *Candidate) float64 {
		uncached := 1.0
		if f.PromptBytes > 0 {
			uncached = 1 - float64(c.Match)/float64(f.PromptBytes)
		}
		// A prompt that is cached as a whole still computes its last token.
		tokens := max(1, uncached*float64(f.PromptTokens)+float64(c.Prefilling))
		return tokens * float64(requestsAt(c)+1)
	})
}

// lowestScore selects the available candidate of the layer with the lowest score. Equal scores go to the least
// loaded, then rotate. It does not set Candidate.Score, which is in seconds.
func lowestScore(f *Facts, why string, ties, peers *rotation, score func(*Candidate) float64) Choice {
	from, to, peer := layer(f.Candidates)
	if peer {
		ties = peers
	}
	i := lowestOf(f, from, to, ties, score)
	if i == Wait {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	return Choice{Index: i, Reason: reason(why, peer)}
}

// lowestOf returns the index of the available candidate between from and to with the lowest score, or Wait.
func lowestOf(f *Facts, from, to int, ties *rotation, score func(*Candidate) float64) int {
	lowest := math.Inf(1)
	for i := from; i < to; i++ {
		if c := &f.Candidates[i]; c.Available {
			lowest = min(lowest, score(c))
		}
	}
	return leastLoaded(f.Candidates, from, to, ties, func(c *Candidate) bool { return score(c) <= lowest })
}
