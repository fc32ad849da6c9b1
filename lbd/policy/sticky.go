package policy

// A replica is saturated with at least this many pending requests, or this KV utilisation: the defaults of the
// saturation detector of the Gateway API Inference Extension, which llm-d uses. At a peer, the requests in the queue of
// its balancer (Candidate.Queued) count instead of the pending ones, and the utilisation is the mean over its replicas.
const (
	saturatedPending = 5
	saturatedKV      = 0.8
)

// Sticky keeps requests with a common prefix at one candidate until it is saturated. (It ignores sessions, unlike the
// sticky sessions of other load balancers.) Of the candidates that are not saturated, it selects the one with the longest
// match, or the least loaded one if none has a match. If every candidate is saturated, it selects the least loaded one. A
// replica without metrics is never saturated.
type Sticky struct{ ties, peerTies rotation }

// NewSticky returns the policy.
func NewSticky() *Sticky { return &Sticky{} }

// Name returns sticky.
func (*Sticky) Name() string { return "sticky" }

// Traits returns that the policy uses prefixes.
func (*Sticky) Traits() Traits { return Traits{Prefix: true} }

// Choose selects the longest match, or the least loaded candidate.
func (p *Sticky) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	ties, longest := &p.ties, 0
	if peer {
		ties = &p.peerTies
	}
	for i := from; i < to; i++ {
		if c := &f.Candidates[i]; c.Available && !saturated(c) {
			longest = max(longest, c.MatchBytes)
		}
	}
	hasLongest := func(c *Candidate) bool { return longest > 0 && c.MatchBytes == longest && !saturated(c) }
	if i := leastLoaded(f, from, to, ties, hasLongest); i != none {
		return Choice{Index: i, Reason: reason(ReasonPrefixMatch, peer)}
	}
	if i := leastLoaded(f, from, to, ties, func(c *Candidate) bool { return !saturated(c) }); i != none {
		return Choice{Index: i, Reason: reason(ReasonPrefixMiss, peer)}
	}
	if i := leastLoaded(f, from, to, ties, nil); i != none {
		return Choice{Index: i, Reason: reason(ReasonSaturated, peer)}
	}
	return Choice{Index: Wait, Reason: ReasonNoneAvailable}
}

// saturated reports whether another request would probably wait at a candidate.
func saturated(c *Candidate) bool {
	return queueAt(c) >= saturatedPending || c.KV.Or(0) >= saturatedKV
}
