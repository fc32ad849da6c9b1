package policy

// gorgoRunning is the weight of the tokens of running requests, which are partly processed: the default of
// GORGO's published router.
const gorgoRunning = 0.5

// GORGO is GORGO's router (arXiv 2602.11688), with the cost of its second version, which counts the load: it
// selects the candidate with the lowest time to the first token. That is the round trip and the prefill of the
// uncached tokens of the request, of all waiting requests, and of half the tokens of the running ones. GORGO's
// time per token is a constant measured on its hardware. Here it is that of the nominal replica, multiplied by the
// replica's pace. GORGO assumes that a peer has no load, because peers do not report theirs; here every candidate
// counts with its load. Equal costs go to the least loaded, then rotate.
type GORGO struct{ ties rotation }

// NewGORGO returns the policy.
func NewGORGO() *GORGO { return &GORGO{} }

// Name returns gorgo.
func (*GORGO) Name() string { return "gorgo" }

// Traits returns that the policy uses prefixes and compares replicas with peers.
func (*GORGO) Traits() Traits { return Traits{Prefix: true, Peers: true} }

// Choose selects the available candidate with the lowest cost, here or in another region.
func (p *GORGO) Choose(f *Facts) Choice {
	split := firstPeer(f.Candidates)
	i := lowestOf(f, 0, len(f.Candidates), &p.ties, func(c *Candidate) float64 { return gorgoSeconds(f, c) })
	if i == Wait {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	return Choice{Index: i, Reason: reason(ReasonLowestTTFT, i >= split)}
}

// gorgoSeconds returns the expected time to the first token of a request at c, in seconds.
func gorgoSeconds(f *Facts, c *Candidate) float64 {
	uncached := float64(f.PromptTokens)
	if f.PromptBytes > 0 {
		uncached *= 1 - float64(c.Match)/float64(f.PromptBytes)
	}
	running := float64(c.Context)
	if c.Peer {
		running /= float64(max(c.Replicas, 1))
	}
	tokens := uncached + float64(c.Prefilling) + gorgoRunning*max(0, running-float64(c.Prefilling))
	return inSeconds(c.RTT) + c.pace()*tokens/DefaultCostConstants().Prefill
}
