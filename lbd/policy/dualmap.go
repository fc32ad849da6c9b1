package policy

import "math/bits"

const (
	// dualMapTTFT is the expected time to the first token, in seconds, above which load decides instead of the
	// cache. DualMap uses the TTFT objective of the service, which Facts does not contain.
	dualMapTTFT = 5.0
	// dualMapWindow is the number of requests after which all counts of prefixes are halved.
	dualMapWindow = 1024
	// dualMapSecond separates the second hash of a prefix from the first.
	dualMapSecond = 0x9e3779b97f4a7c15
)

// DualMap is DualMap's mapping (arXiv 2602.06502): a prefix has two candidates, on a hash ring, by two independent
// hashes. The one that has cached more of the prompt is selected while its expected time to the first token is
// within the objective; otherwise the one with the lower expectation. How much of a prompt is hashed adapts to
// the traffic: a prefix of more requests than its two candidates' fair share is replaced by one of twice the
// length, so that a common system prompt is spread and conversations stay together. Unavailable candidates are
// replaced by the next on the ring. DualMap also moves waiting requests between their two candidates; here
// requests wait in the balancer's queue and are mapped when they are sent. Prompts shorter than one block go to the
// least loaded candidate.
type DualMap struct {
	rings       rings
	ties, peers rotation
	counts      map[uint64]int // requests by the hash of a prefix
	counted     int            // requests since the counts were last halved
	last        string         // ID of the request that was last counted
}

// NewDualMap returns the policy.
func NewDualMap() *DualMap { return &DualMap{counts: map[uint64]int{}} }

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
	if len(f.Prefixes) == 0 {
		ties := &p.ties
		if peer {
			ties = &p.peers
		}
		return Choice{Index: leastLoaded(f.Candidates, from, to, ties, nil), Reason: reason(ReasonLeastLoad, peer)}
	}
	key := p.keyOf(f, len(cs))
	r := p.rings.ringFor(f.Model, peer, cs)
	first := r.nextTarget(key, cs, func(c *Candidate) bool { return c.Available })
	if available == 1 {
		return Choice{Index: from + first, Reason: reason(ReasonPrefixMiss, peer)}
	}
	second := r.nextTarget(mix(key^dualMapSecond), cs, func(c *Candidate) bool { return c.Available && c != &cs[first] })
	a, b := &cs[first], &cs[second]
	if a.Match < b.Match {
		first, second, a, b = second, first, b, a
	}
	ttft, other := gorgoSeconds(f, a), gorgoSeconds(f, b)
	switch {
	case a.Match > b.Match && ttft <= dualMapTTFT:
		return Choice{Index: from + first, Reason: reason(ReasonPrefixMatch, peer)}
	case other < ttft:
		return Choice{Index: from + second, Reason: reason(ReasonPowerOfTwo, peer)}
	}
	return Choice{Index: from + first, Reason: reason(ReasonPowerOfTwo, peer)}
}

// keyOf returns the hash of the shortest prefix, of 1, 2, 4, ... blocks, whose count is at most the fair share
// of two of n candidates. It counts the request at each length up to that of the prefix.
func (p *DualMap) keyOf(f *Facts, n int) uint64 {
	counts := f.ID == "" || f.ID != p.last // a request that waits is mapped again
	p.last = f.ID
	if counts {
		p.count()
	}
	for length := 1; ; length *= 2 {
		key := f.Prefixes[min(length, len(f.Prefixes))-1]
		if counts {
			p.counts[key]++
		}
		// With few requests, shares vary by chance. Therefore a prefix is replaced only if its count is above the share by more than the binary length of n.
		if fair := 2 * float64(p.counted) / float64(max(n, 1)); float64(p.counts[key]) <= fair+float64(bits.Len(uint(n))) || length >= len(f.Prefixes) {
			return key
		}
	}
}

// count counts a request, and halves all counts at the end of a window.
func (p *DualMap) count() {
	if p.counted++; p.counted < dualMapWindow {
		return
	}
	p.counted /= 2
	for key, n := range p.counts {
		if n /= 2; n == 0 {
			delete(p.counts, key)
		} else {
			p.counts[key] = n
		}
	}
}
