package policy

// gorgoRunningWeight is the weight of the tokens at a candidate that are already computed. It is the default of
// GORGO's published router.
const gorgoRunningWeight = 0.5

// GORGO is the router of the paper GORGO (arXiv 2602.11688) in its second version, whose cost includes load. It
// selects the candidate with the lowest expected time to the first token (TTFT): the round-trip time plus the prefill
// time. The prefill time counts the uncached tokens of this request and of all requests without a first token, and half
// of the other tokens at the candidate.
//
// There are two differences from the paper. GORGO's time per token is a constant measured on its hardware; here it is
// that of the nominal replica, multiplied by the replica's pace. GORGO assumes that a peer has no load; here peers
// report their load. Ties go to the least loaded candidate, then in turn.
type GORGO struct{ ties rotation }

// NewGORGO returns the policy.
func NewGORGO() *GORGO { return &GORGO{} }

// Name returns gorgo.
func (*GORGO) Name() string { return "gorgo" }

// Traits returns that the policy uses prefixes and compares replicas with peers.
func (*GORGO) Traits() Traits { return Traits{Prefix: true, Peers: true} }

// Choose selects the available candidate with the lowest cost, among replicas and peers.
func (p *GORGO) Choose(f *Facts) Choice {
	split := firstPeer(f.Candidates)
	i := indexOfLowest(f, 0, len(f.Candidates), &p.ties, func(c *Candidate) float64 { return expectedTTFT(f, c) })
	if i == none {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	return Choice{Index: i, Reason: reason(ReasonLowestTTFT, i >= split)}
}

// expectedTTFT returns the expected time to the first token of a request at c, in seconds.
func expectedTTFT(f *Facts, c *Candidate) float64 {
	uncached := float64(f.PromptTokens)
	if f.PromptBytes > 0 {
		uncached *= 1 - float64(c.MatchBytes)/float64(f.PromptBytes)
	}
	running := float64(c.ContextTokens)
	if c.Peer {
		running /= float64(max(c.Replicas, 1))
	}
	tokens := uncached + float64(c.PrefillTokens) + gorgoRunningWeight*max(0, running-float64(c.PrefillTokens))
	return inSeconds(c.RTT) + c.pace()*tokens/DefaultCostConstants().PrefillRate
}
