package policy

// Weights of scorers in llm-d's default profile (Red Hat OpenShift AI 3.4, "Configuring scheduler settings
// for LLM inference services").
const (
	prefixScorerWeight = 3
	queueScorerWeight  = 2
)

// ScorerSum is llm-d's router with its default profile: it selects the candidate with the highest weighted
// sum of two scores between 0 and 1. One is the matched share of the prompt. The other is 1 for the shortest queue,
// 0 for the longest and linear between them (queue-scorer of the Gateway API Inference Extension). The queue of a
// replica is that of its engine, and the queue of a peer that of its balancer (Candidate.Queued).
// Ties go to the least loaded candidate, then in turn; llm-d breaks them at random.
type ScorerSum struct{ ties, peerTies rotation }

// NewScorerSum returns the policy.
func NewScorerSum() *ScorerSum { return &ScorerSum{} }

// Name returns scorer-sum.
func (*ScorerSum) Name() string { return "scorer-sum" }

// Traits returns that the policy uses prefixes.
func (*ScorerSum) Traits() Traits { return Traits{Prefix: true} }

// Choose selects the candidate of the layer with the highest sum. It minimises the difference between the highest
// possible sum and the candidate's sum.
func (p *ScorerSum) Choose(f *Facts) Choice {
	from, to, _ := layer(f.Candidates)
	shortest, longest := queueRange(f.Candidates[from:to])
	return chooseLowest(f, ReasonScorerSum, &p.ties, &p.peerTies, func(c *Candidate) float64 {
		missing := 0.0
		if f.PromptBytes > 0 {
			missing = prefixScorerWeight * (1 - float64(c.MatchBytes)/float64(f.PromptBytes))
		}
		if longest > shortest {
			missing += queueScorerWeight * float64(queueAt(c)-shortest) / float64(longest-shortest)
		}
		return missing
	})
}

// queueAt returns the number of requests that wait at a candidate: in the engine of a replica, or in the queue of a peer's
// balancer.
func queueAt(c *Candidate) int {
	if c.Peer {
		return c.Queued
	}
	return c.Pending.Or(0)
}

// queueRange returns the lengths of the shortest and the longest queue of the available candidates.
func queueRange(cs []Candidate) (shortest, longest int) {
	first := true
	for i := range cs {
		if !cs[i].Available {
			continue
		}
		n := queueAt(&cs[i])
		if first {
			shortest, longest, first = n, n, false
		}
		shortest, longest = min(shortest, n), max(longest, n)
	}
	return shortest, longest
}
