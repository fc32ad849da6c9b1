package policy

// A replica is saturated with at least this many pending requests, or this KV utilisation: the defaults of the
// saturation detector of the Gateway API Inference Extension, which llm-d uses.
const (
	saturatedPending = 5
	saturatedKV      = 0.8
)

// Sticky excludes saturated candidates. Of the others it selects the one with the longest match, or the least loaded
// one if none has a match. If every candidate is saturated, it selects the least loaded one. A replica is saturated with
// at least 5 pending requests or a KV utilisation of at least 0.8; one without metrics is never saturated.
type Sticky struct{ ties, peers rotation }

// NewSticky returns the policy.
func NewSticky() *Sticky { return &Sticky{} }

// Name returns sticky.
func (*Sticky) Name() string { return "sticky" }

// Traits returns that the policy uses prefixes.
func (*Sticky) Traits() Traits { return Traits{Prefix: true} }

// Choose follows the longest match, or selects by load.
func (p *Sticky) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	ties, longest := &p.ties, 0
	if peer {
		ties = &p.peers
	}
	for i := from; i < to; i++ {
		if c := &f.Candidates[i]; c.Available && !saturated(c) {
			longest = max(longest, c.Match)
		}
	}
	hasLongest := func(c *Candidate) bool { return longest > 0 && c.Match == longest && !saturated(c) }
	if i := leastLoaded(f.Candidates, from, to, ties, hasLongest); i != Wait {
		return Choice{Index: i, Reason: reason(ReasonPrefixMatch, peer)}
	}
	if i := leastLoaded(f.Candidates, from, to, ties, func(c *Candidate) bool { return !saturated(c) }); i != Wait {
		return Choice{Index: i, Reason: reason(ReasonPrefixMiss, peer)}
	}
	if i := leastLoaded(f.Candidates, from, to, ties, nil); i != Wait {
		return Choice{Index: i, Reason: reason(ReasonSaturated, peer)}
	}
	return Choice{Index: Wait, Reason: ReasonNoneAvailable}
}

// saturated reports whether more requests would only wait at a candidate.
func saturated(c *Candidate) bool {
	return queueAt(c) >= saturatedPending || c.KV.Or(0) >= saturatedKV
}
