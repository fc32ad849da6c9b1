package policy

import "math/bits"

const (
	// dualMapMaxTTFT is the expected time to the first token, in seconds, up to which the policy prefers the
	// candidate with the longer match. The paper uses the service's TTFT objective, which Facts does not contain.
	dualMapMaxTTFT = 5.0
	// dualMapWindow is the number of counted requests for a model at which all of the model's counts are halved.
	dualMapWindow = 1024
	// dualMapSecondSeed makes the second hash of a prefix independent of the first.
	dualMapSecondSeed = 0x9e3779b97f4a7c15
)

// DualMap is the router of the paper DualMap (arXiv 2602.06502). Two independent hashes of the prompt's prefix select
// two candidates on a hash ring. Of these two, the policy selects the one that has cached more of the prompt while its
// expected time to the first token (TTFT) is at most dualMapMaxTTFT, else the one with the lower expected TTFT. An
// unavailable candidate is replaced by the next one on the ring.
//
// The length of the hashed prefix adapts to the traffic. If more than 2/n of the model's requests have a prefix, where n
// is the number of candidates, a prefix of twice the length is hashed. Requests with a common system prompt are therefore
// spread, while those of a conversation stay together. Prompts shorter than one block go to the least loaded candidate.
//
// The paper also moves waiting requests between their two candidates. Here requests wait in the balancer's queue and
// are mapped when they are sent.
type DualMap struct {
	rings          rings
	ties, peerTies rotation
	models         map[string]*prefixCounts
	last           string // ID of the request that was last counted
}

// prefixCounts counts the requests for a model.
type prefixCounts struct {
	total    int
	byPrefix map[uint64]int // by the hash of a prefix
}

// NewDualMap returns the policy.
func NewDualMap() *DualMap { return &DualMap{models: map[string]*prefixCounts{}} }

// Name returns dualmap.
func (*DualMap) Name() string { return "dualmap" }

// Traits returns that the policy uses prefixes.
func (*DualMap) Traits() Traits { return Traits{Prefix: true} }

// Choose maps the request's prefix to two candidates of the layer and selects one of them.
func (p *DualMap) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	cs := f.Candidates[from:to]
	available := countAvailable(cs)
	if available == 0 {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	if len(f.PrefixHashes) == 0 {
		ties := &p.ties
		if peer {
			ties = &p.peerTies
		}
		return Choice{Index: leastLoaded(f, from, to, ties, nil), Reason: reason(ReasonLeastLoad, peer)}
	}
	key := p.keyOf(f, len(cs))
	r := p.rings.ringFor(f.Model, peer, cs)
	first := r.nextTarget(key, cs, func(c *Candidate) bool { return c.Available })
	if available == 1 {
		why := ReasonPowerOfTwo
		if cs[first].MatchBytes > 0 && expectedTTFT(f, &cs[first]) <= dualMapMaxTTFT {
			why = ReasonPrefixMatch
		}
		return Choice{Index: from + first, Reason: reason(why, peer)}
	}
	second := r.nextTarget(mix(key^dualMapSecondSeed), cs, func(c *Candidate) bool { return c.Available && c != &cs[first] })
	a, b := &cs[first], &cs[second]
	if a.MatchBytes < b.MatchBytes {
		first, second, a, b = second, first, b, a
	}
	ttft, other := expectedTTFT(f, a), expectedTTFT(f, b)
	switch {
	case a.MatchBytes > b.MatchBytes && ttft <= dualMapMaxTTFT:
		return Choice{Index: from + first, Reason: reason(ReasonPrefixMatch, peer)}
	case other < ttft:
		return Choice{Index: from + second, Reason: reason(ReasonPowerOfTwo, peer)}
	}
	return Choice{Index: from + first, Reason: reason(ReasonPowerOfTwo, peer)}
}

// keyOf returns the hash of a prefix of 1, 2, 4, ... blocks: the shortest with at most 2/n of the model's requests, plus a
// tolerance. If there is none, it returns the hash of all blocks. It counts the request for this prefix and all shorter
// ones.
func (p *DualMap) keyOf(f *Facts, n int) uint64 {
	isNew := f.ID == "" || f.ID != p.last // false if the last request is sent again after a failure
	p.last = f.ID
	counts := p.models[f.Model]
	if counts == nil {
		counts = &prefixCounts{byPrefix: map[uint64]int{}}
		p.models[f.Model] = counts
	}
	if isNew {
		counts.countRequest()
	}
	for length := 1; ; length *= 2 {
		key := f.PrefixHashes[min(length, len(f.PrefixHashes))-1]
		if isNew {
			counts.byPrefix[key]++
		}
		// With few requests, shares vary by chance. Therefore the tolerance is the number of bits of n.
		if fair := 2 * float64(counts.total) / float64(max(n, 1)); float64(counts.byPrefix[key]) <= fair+float64(bits.Len(uint(n))) || length >= len(f.PrefixHashes) {
			return key
		}
	}
}

// countRequest adds a request to the total, and halves all counts at the end of a window.
func (c *prefixCounts) countRequest() {
	if c.total++; c.total < dualMapWindow {
		return
	}
	c.total /= 2
	for key, n := range c.byPrefix {
		if n /= 2; n == 0 {
			delete(c.byPrefix, key)
		} else {
			c.byPrefix[key] = n
		}
	}
}
