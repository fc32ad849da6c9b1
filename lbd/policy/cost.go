package policy

import (
	"math"
	"time"
)

// CostConstants contains the constants of the cost policy, which are the same for every service. The
// first group describes the nominal replica: one L4 GPU that serves a model of 8 billion parameters.
// The times of a real replica are these times multiplied by its pace, which is learned
// (Candidate.Pace).
type CostConstants struct {
	// PrefillRate is the number of uncached prompt tokens computed per second.
	PrefillRate float64
	// PrefillBase is the time, in seconds, by which each prefill step delays running requests, besides the time for its
	// tokens. A request that joins the prefill step of another one (Candidate.JoinsPrefill) adds no step.
	PrefillBase float64
	// DecodeBase, DecodePerRequest and DecodePerToken are the parts of the duration of a decode step,
	// in seconds: a fixed part, a part per request in the batch, and a part per token of context.
	DecodeBase       float64
	DecodePerRequest float64
	DecodePerToken   float64
	// DecodeSteps is the assumed number of decode steps of a response. It is used until the first response of the
	// model has ended. The request's own limit of tokens applies if it is lower. It is a median, because it stands for
	// one request; lbd/core sums many responses and assumes their mean, which a few long responses raise.
	DecodeSteps float64
	// AdmitSteps is the number of decode steps after which an engine with free memory starts the next
	// pending request.
	AdmitSteps float64
	// TransientSteps is the number of decode steps for which pending requests at an engine with free memory count as just
	// arrived: they start in the next steps. If there still are pending requests after these steps and the time to compute
	// the prompts there, the batch or the memory counts as full (holdSeconds).
	TransientSteps float64
	// Residence is the residence time that NominalResidence assumes.
	Residence time.Duration

	// SlowdownWeight is the weight of the time by which a request delays the requests already there,
	// relative to its own time. SharedSlowdownWeight replaces it for a request with a shared prefix
	// (Facts.SharedPrefix). The ratio of queued to outstanding requests is added to the weight, up to a sum of 1.
	SlowdownWeight, SharedSlowdownWeight float64
	// PrefillQueueWeight is the weight of the time to compute the uncached prompt tokens of other
	// requests at a replica (Candidate.PrefillTokens): they are computed before or together with
	// those of the request.
	PrefillQueueWeight float64
	// MemoryPenalty is the cost of a replica whose KV memory is full, as a share of its residence
	// time. It grows from zero at MemoryThreshold, a KV utilisation.
	MemoryPenalty, MemoryThreshold float64
	// OccupancyWeight is the weight of the memory that a request occupies at a replica whose KV memory is full. Like
	// MemoryPenalty, this cost grows from zero at MemoryThreshold. At full memory it is, in seconds:
	//
	//	OccupancyWeight * residence * (P + n*(P+R)) / M
	//
	//   - M is the KV memory of the replica.
	//   - P is the memory that the prompt takes (addedTokens): cached prefixes that no running request uses are evicted for it.
	//   - R is the memory of the response.
	//   - n is the number of requests that wait for the replica: each is delayed by P+R.
	OccupancyWeight float64
	// SupersededMatchWeight is the weight of Candidate.SupersededBytes until engines have shown how much
	// of such text they still have cached (Facts.SupersededShare).
	SupersededMatchWeight float64
	// MaxEvictedShare is the highest value of Facts.EvictedShare that counts in the cost of a copy. A copy is made when a
	// shared prefix that a replica here has cached is computed elsewhere too.
	MaxEvictedShare float64
	// CopyMargin is in standard deviations of a Poisson-distributed number of requests, sqrt(n) at a mean of n. A copy of
	// a shared prefix counts as useful to later requests only at a replica that has fewer requests than the one with the
	// longest match by more than this margin (copyShare).
	CopyMargin float64
	// RegionCopyWeight is the weight of the time to compute prompt tokens that only a peer has cached, in addition to that
	// time itself: the copy evicts other prefixes, which are computed again. It applies at a Facts.EvictedShare of
	// RegionCopyEvictedShare or more; below that, it is proportional to the share.
	RegionCopyWeight, RegionCopyEvictedShare float64
	// PeerMarginShare is a share of the request's duration at an idle replica without a cache. This time is added to the
	// cost of a peer, so that no request is forwarded for a small gain: the later turns of its conversation would
	// follow their cached prefix to the peer, each with another round trip.
	PeerMarginShare float64
	// PeerPrefillMarginShare is a share of the time to compute the request's uncached prompt tokens at a peer. This time
	// is added to the cost of the peer. It stands for prompts that the peer has started since its last report: they and the
	// request would delay each other.
	PeerPrefillMarginShare float64
	// PeerLoadLifetime is a time constant, as a share of a peer's residence time. A reported load below the mean is assumed
	// to approach the mean as the report ages: other regions see the same low load, and send requests there too. After
	// this time, 1/e of the difference remains.
	PeerLoadLifetime float64
	// FasterHoldWeight is the weight of the time for which a request is held for a replica that is faster than one to which
	// it can be sent now: the request delays those behind it, and meanwhile the slower replica serves nothing.
	FasterHoldWeight float64
	// MaxHoldShare is a share of a request's maximum time in the queue (Facts.MaxWait). A request is overdue when it has
	// waited for this time plus the time in which the whole queue is served. While a replica is available, an overdue
	// request is not held for one that is not.
	MaxHoldShare float64
}

// DefaultCostConstants returns the constants that services run with.
func DefaultCostConstants() CostConstants {
	return CostConstants{
		PrefillRate:      2000,
		PrefillBase:      20e-3,
		DecodeBase:       54e-3,
		DecodePerRequest: 0.25e-3,
		DecodePerToken:   0.44e-6,
		DecodeSteps:      150, // about the median response of Chatbot Arena
		AdmitSteps:       2.8,
		TransientSteps:   9,
		Residence:        10 * time.Second,

		// Chosen by simulating the scenarios, and loads that differ much from them. Halving
		// OccupancyWeight has changed the throughput of one load by 3 %, but not the mean of many loads.
		SlowdownWeight:         0.45,
		SharedSlowdownWeight:   0.7,
		PrefillQueueWeight:     1,
		MemoryPenalty:          0.2,
		MemoryThreshold:        0.6,
		OccupancyWeight:        3,
		SupersededMatchWeight:  0.3,
		MaxEvictedShare:        0.9,
		CopyMargin:             2,
		RegionCopyWeight:       4,
		RegionCopyEvictedShare: 0.1,
		PeerMarginShare:        0.03,
		PeerPrefillMarginShare: 0.1,
		PeerLoadLifetime:       1.0 / 3,
		FasterHoldWeight:       2,
		MaxHoldShare:           0.5,
	}
}

// NominalStep returns the duration of a decode step at the nominal replica (CostConstants), for n requests with
// this many tokens of context in total.
func NominalStep(n, contextTokens int) time.Duration {
	c := DefaultCostConstants()
	return durationOf(c.DecodeBase + float64(n)*c.DecodePerRequest + float64(contextTokens)*c.DecodePerToken)
}

// NominalPrefill returns the time in which the nominal replica computes this many prompt tokens.
func NominalPrefill(tokens int) time.Duration {
	return durationOf(float64(tokens) / DefaultCostConstants().PrefillRate)
}

// durationOf returns s seconds.
func durationOf(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// NominalResidence returns the expected residence time at a replica with this pace (Candidate.Pace),
// for use where none has been measured.
func NominalResidence(pace float64) time.Duration {
	return time.Duration(pace * float64(DefaultCostConstants().Residence))
}

// HoldTime returns the expected wait until a replica with n requests, whose batch or memory is full, starts another
// one. A request there ends every residence/n, and ahead is the number of waiting requests that start before. If
// residence is 0 (unknown), it is NominalResidence(pace).
func HoldTime(ahead, n int, residence time.Duration, pace float64) time.Duration {
	if residence <= 0 {
		residence = NominalResidence(pace)
	}
	return time.Duration(float64(residence) * float64(ahead+1) / float64(max(n, 1)))
}

// Cost sends a request to the candidate with the lowest cost, in seconds: the request's own duration (queueing,
// network, computing uncached tokens, the base part of its decode steps) plus the time by which it delays the requests
// already there and, where KV memory becomes scarce (MemoryThreshold), those that wait. The cost of a peer also includes margins
// (waitSeconds), the optimism of its figures (optimismOfReports), and the round trips of later requests that need the same
// prefix (laterSeconds). Load and locality are thus compared in one unit. If the lowest cost, including the wait, is that of
// a replica to which the request cannot be sent now, the request is held for it, and the requests behind it proceed. Unlike
// SkyLB, the policy compares replicas with peers directly.
type Cost struct {
	constants      CostConstants
	ties, peerTies rotation
}

// NewCost returns the policy.
func NewCost() *Cost { return &Cost{constants: DefaultCostConstants()} }

// Name returns cost.
func (*Cost) Name() string { return "cost" }

// Traits returns that the policy uses prefixes, compares replicas with peers, and may hold
// requests.
func (*Cost) Traits() Traits { return Traits{Prefix: true, Peers: true, Holds: true} }

// costTolerance is the difference, in seconds, below which two costs count as equal.
const costTolerance = 1e-6

// Choose selects the candidate with the lowest cost, or Wait if that is a peer at which the request would start too late
// (waitsHere). For an overdue request, it skips replicas that are not available and such peers.
func (p *Cost) Choose(f *Facts) Choice {
	t := p.requestTerms(f)
	overdue := p.overdue(f, &t)
	best, lowest, equals := none, math.Inf(1), 0
	split, optimism := firstPeer(f.Candidates), 0.0
	for i := range f.Candidates {
		c := &f.Candidates[i]
		if i == split {
			optimism = p.optimismOfReports(f, &t, lowest)
		}
		if !c.Live || (!c.Available && (c.Peer || overdue)) || (overdue && c.Peer && t.waitsHere(f, c)) {
			continue
		}
		cost := p.cost(&t, c)
		if c.Peer {
			cost += optimism
		}
		c.Score = Known(cost)
		switch {
		case cost < lowest-costTolerance:
			best, lowest, equals = i, cost, 1
		case cost <= lowest+costTolerance:
			equals++
		}
	}
	if best == none {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	ties, from, to := &p.ties, 0, split
	if best >= split {
		ties, from, to = &p.peerTies, split, len(f.Candidates)
	}
	if equals > 1 {
		best = ties.nextTarget(f, from, to, func(c *Candidate) bool { return c.Score.Known && math.Abs(c.Score.Value-lowest) <= costTolerance })
	}
	if best >= split {
		if t.waitsHere(f, &f.Candidates[best]) {
			return Choice{Index: Wait, Reason: ReasonNoneAvailable}
		}
		return Choice{Index: best, Reason: ReasonForward}
	}
	c := &f.Candidates[best]
	return Choice{Index: best, Hold: !canSendTo(c), Reason: ReasonLeastCost}
}

// waitsHere reports whether a request waits here rather than at peer c, even if c has the lowest cost. It does if its
// expected wait at c exceeds RTT + residence: on average, the requests that run there now have ended before it starts.
// There are two reasons. First, a request is forwarded only once, and before it starts, another target may become better.
// Second, several regions would otherwise fill the queue of the same peer before its next report.
//
// In three cases, the request does not wait here:
//   - There is no live replica here.
//   - The peer has cached more of the prompt than the replicas here.
//   - The request has waited for as long as it would wait at the peer. Otherwise, nothing would be forwarded to a peer
//     whose queue is always long.
func (t *costTerms) waitsHere(f *Facts, c *Candidate) bool {
	if !t.liveHere || f.Waited >= c.ExpectedWait || float64(c.MatchBytes) > t.localMatch {
		return false
	}
	return c.ExpectedWait > c.RTT+t.expectedResidence(c)
}

// overdue reports whether a request was passed over for too long (MaxHoldShare) and a replica is available now. A long
// queue alone makes no request overdue: the time in which the whole queue is served is allowed in addition.
func (p *Cost) overdue(f *Facts, t *costTerms) bool {
	maxHold := time.Duration(p.constants.MaxHoldShare * float64(f.MaxWait))
	if f.MaxWait <= 0 || f.Waited <= maxHold {
		return false
	}
	available, endsPerSecond := false, 0.0 // requests that end per second
	for i := range f.Candidates[:firstPeer(f.Candidates)] {
		c := &f.Candidates[i]
		available = available || c.Available
		if c.Live {
			endsPerSecond += float64(requestsAt(c)) / inSeconds(t.expectedResidence(c))
		}
	}
	return available && inSeconds(f.Waited-maxHold)*endsPerSecond >= float64(f.Queued-1)
}

// canSendTo reports whether a request can be sent to a replica now: the replica is available, and no earlier request
// is held for it.
func canSendTo(c *Candidate) bool { return c.Available && c.Held == 0 }

// requestsAt returns the number of requests at a replica. The engine's count is higher than the
// balancer's own if the replica also has requests that this balancer did not send.
func requestsAt(c *Candidate) int { return max(c.Outstanding, c.Running.Or(0)+c.Pending.Or(0)) }

// slowdownWeight returns the weight of the delay of other requests. It increases with the number of queued requests,
// because they wait for the delayed ones.
func (p *Cost) slowdownWeight(f *Facts) float64 {
	outstanding := 0
	for i := range f.Candidates {
		if c := &f.Candidates[i]; c.Live && !c.Peer {
			outstanding += requestsAt(c)
		}
	}
	weight := p.constants.SlowdownWeight
	if f.SharedPrefix {
		weight = p.constants.SharedSlowdownWeight
	}
	return min(1, weight+float64(max(0, f.Queued-1))/float64(max(outstanding, 1)))
}

// costTerms contains the parts of a request's cost that are the same for all candidates.
type costTerms struct {
	promptTokens       float64
	tokensPerByte      float64 // prompt tokens per matched byte
	responseSteps      float64 // expected number of decode steps of the request's response
	addedDecodeSeconds float64 // time by which the request lengthens these steps in total, for each request in the batch
	decodeSeconds      float64 // total base duration (DecodeBase) of these steps
	slowdownWeight     float64
	queuedPerReplica   float64 // queued requests per live replica
	sharedPrefix       bool    // Facts.SharedPrefix
	// evictedPerCopy is the number of evicted tokens that are computed again for each token of a copy
	// (CostConstants.MaxEvictedShare).
	evictedPerCopy float64
	// evictedShare is Facts.EvictedShare, at most MaxEvictedShare, for a request with a shared prefix; otherwise 0.
	evictedShare float64
	// usesPerReplica is Facts.PrefixUses, divided by the number of live replicas here.
	usesPerReplica float64
	// matchRequests is the lowest number of requests at a live replica with localMatch; 0 if localMatch is 0.
	matchRequests float64
	// meanRequests and meanPrefillTokens are the results of meanLoad; 0 if there are no peers.
	meanRequests, meanPrefillTokens float64
	// residence is the mean residence time of the live candidates, in seconds at the nominal pace; 0 = unknown.
	residence float64
	// laterUses is the expected number of later requests that find a computed token of the prompt in a cache.
	laterUses float64
	// supersededWeight is the weight of Candidate.SupersededBytes.
	supersededWeight float64
	// localMatch is the longest weighted match at a live replica, in bytes; peerMatch is that at a live peer.
	localMatch, peerMatch float64
	// regionCopyWeight is the weight of the time to compute tokens that only a peer has cached (RegionCopyWeight).
	regionCopyWeight float64
	// sendPace is the pace of the fastest replica to which the request can be sent now; 0 = none.
	sendPace float64
	// liveHere is whether a replica of this balancer is live.
	liveHere bool
}

// requestTerms returns the parts of a request's cost that are the same for all candidates.
func (p *Cost) requestTerms(f *Facts) costTerms {
	t := costTerms{promptTokens: float64(f.PromptTokens), responseSteps: p.constants.DecodeSteps, slowdownWeight: p.slowdownWeight(f), sharedPrefix: f.SharedPrefix}
	if f.ResponseTokens > 0 {
		t.responseSteps = f.ResponseTokens
	}
	if f.MaxTokens > 0 {
		t.responseSteps = min(t.responseSteps, float64(f.MaxTokens))
	}
	// A copy of a shared prefix takes additional memory. For each of its tokens, e evicted tokens are computed again, for
	// these e*e others, and so on: e + e*e + ... = e/(1-e). A conversation that moves takes no additional memory: the
	// text at its former replica is not needed again.
	if f.SharedPrefix {
		e := min(f.EvictedShare, p.constants.MaxEvictedShare)
		t.evictedShare, t.evictedPerCopy = e, e/(1-e)
	}
	t.decodeSeconds = t.responseSteps * p.constants.DecodeBase
	t.residence = meanResidence(f.Candidates)
	t.laterUses = laterUses(f.CachedShare)
	t.supersededWeight = f.SupersededShare.Or(p.constants.SupersededMatchWeight)
	live := 0
	for i := range f.Candidates[:firstPeer(f.Candidates)] {
		if c := &f.Candidates[i]; c.Live {
			live++
			if canSendTo(c) && (t.sendPace == 0 || c.pace() < t.sendPace) {
				t.sendPace = c.pace()
			}
			switch match, n := t.weightedMatch(c), float64(requestsAt(c)); {
			case match > t.localMatch:
				t.localMatch, t.matchRequests = match, n
			case match == t.localMatch && match > 0:
				t.matchRequests = min(t.matchRequests, n)
			}
		}
	}
	t.liveHere = live > 0
	for i := firstPeer(f.Candidates); i < len(f.Candidates); i++ {
		if c := &f.Candidates[i]; c.Live {
			t.peerMatch = max(t.peerMatch, float64(c.MatchBytes))
		}
	}
	t.regionCopyWeight = p.constants.RegionCopyWeight * min(1, f.EvictedShare/p.constants.RegionCopyEvictedShare)
	t.usesPerReplica = float64(f.PrefixUses) / float64(max(1, live))
	if firstPeer(f.Candidates) < len(f.Candidates) {
		t.meanRequests, t.meanPrefillTokens = meanLoad(f.Candidates)
	}
	t.queuedPerReplica = float64(max(0, f.Queued-1)) / float64(max(1, live))
	t.addedDecodeSeconds = t.responseSteps * (p.constants.DecodePerRequest + p.constants.DecodePerToken*t.promptTokens)
	if f.PromptBytes > 0 {
		t.tokensPerByte = t.promptTokens / float64(f.PromptBytes)
	}
	return t
}

// laterUses returns the number of cached tokens per computed token, if engines find this share of all prompt tokens in
// their caches.
func laterUses(cachedShare float64) float64 {
	if cachedShare >= 1 {
		return math.Inf(1)
	}
	return cachedShare / (1 - cachedShare)
}

// meanResidence returns the mean residence time, in seconds at the nominal pace, of the live candidates that have
// served a request; 0 = none.
func meanResidence(cs []Candidate) float64 {
	sum, n := 0.0, 0
	for i := range cs {
		if c := &cs[i]; c.Live && c.Residence > 0 {
			sum += inSeconds(c.Residence) / c.pace()
			n++
		}
	}
	return sum / float64(max(n, 1))
}

// residenceAt returns the residence time at c. Until a request was served there, it is the mean of the other live
// candidates, at the pace of c; 0 if none has one.
func (t *costTerms) residenceAt(c *Candidate) time.Duration {
	if c.Residence > 0 {
		return c.Residence
	}
	return durationOf(t.residence * c.pace())
}

// expectedResidence is residenceAt, but NominalResidence until a request of the model was served.
func (t *costTerms) expectedResidence(c *Candidate) time.Duration {
	if residence := t.residenceAt(c); residence > 0 {
		return residence
	}
	return NominalResidence(c.pace())
}

// cost returns the cost of a request at c, in seconds. Its own decode steps count with their base duration only: what the
// requests of the batch add to them, this one included, is left out. Each other request there is delayed by the prefill
// and by what this request adds to the steps.
func (p *Cost) cost(t *costTerms, c *Candidate) float64 {
	pace := c.pace()
	match := t.weightedMatch(c)
	uncached := t.promptTokens - t.tokensPerByte*match
	added := t.addedTokens(c, uncached)
	copied := t.tokensPerByte * max(0, t.localMatch-match)
	prefill := (uncached + t.evictedPerCopy*copied) / p.constants.PrefillRate
	n, prefillTokens := float64(requestsAt(c)), float64(c.PrefillTokens)
	if c.Peer {
		n, prefillTokens = p.peerLoad(t, c)
	}
	ahead := p.constants.PrefillQueueWeight * prefillTokens / p.constants.PrefillRate
	own, delay := ahead+prefill+t.decodeSeconds, prefill+t.addedDecodeSeconds
	own += t.regionCopyWeight * t.tokensPerByte * max(0, t.peerMatch-max(match, t.localMatch)) / p.constants.PrefillRate
	if t.sharedPrefix && !c.Peer && copied > 0 {
		delay -= (1 - p.copyShare(t, n)) * copied / p.constants.PrefillRate
	}
	if !c.JoinsPrefill {
		delay += p.constants.PrefillBase
	}
	return p.waitSeconds(t, c, added) + p.laterSeconds(t, c) + p.memorySeconds(t, c, added, n) + pace*(own+t.slowdownWeight*n*delay)
}

// copyShare spreads the delay by computing a copy of a shared prefix, at a replica with n requests, over the request and
// the later requests that will use the copy. With k later ones, the request's share is 1/(1+k). The expected k is the
// number of earlier requests with the prefix per replica, times two factors:
//
//   - How many fewer requests this replica has than the one with the prefix, beyond chance (CopyMargin), as a share.
//   - The probability that the copy is still cached when it is needed, and that the text evicted for it is not needed again.
func (p *Cost) copyShare(t *costTerms, n float64) float64 {
	fewer := max(0, t.matchRequests-n-p.constants.CopyMargin*math.Sqrt(t.matchRequests)) / max(1, t.matchRequests)
	useful := (1 - t.evictedShare) * (1 - t.evictedShare)
	return 1 / (1 + t.usesPerReplica*fewer*useful)
}

// addedTokens returns how many tokens of the prompt count as taking free memory at c:
//   - With a shared prefix, at a replica: all but those that an outstanding request uses (InUseBytes). Cached tokens
//     count, because engines count a cached prefix as free memory while no request uses it.
//   - At a peer: the uncached tokens, because InUseBytes is unknown.
//   - Without a shared prefix: the uncached tokens too. No other request uses the match, so the first rule would give
//     the same number at every replica.
func (t *costTerms) addedTokens(c *Candidate, uncached float64) float64 {
	if !t.sharedPrefix || c.Peer {
		return uncached
	}
	return t.promptTokens - t.tokensPerByte*float64(c.InUseBytes)
}

// requestsPerReplica returns the mean number of requests per replica of a peer: those that it last reported, plus those
// that were sent there since.
func requestsPerReplica(c *Candidate) float64 {
	return float64(c.PeerOutstanding+c.Unconfirmed) / float64(max(c.Replicas, 1))
}

// meanLoad returns the means over the live replicas here and at peers: requests, and prompt tokens that are still to be
// computed. Each replica of a peer counts with the peer's PrefillTokens, the lowest value among them.
func meanLoad(cs []Candidate) (requests, prefillTokens float64) {
	replicas := 0.0
	for i := range cs {
		c := &cs[i]
		if !c.Live {
			continue
		}
		count, n := 1.0, float64(requestsAt(c))
		if c.Peer {
			count, n = float64(max(c.Replicas, 1)), requestsPerReplica(c)
		}
		replicas, requests, prefillTokens = replicas+count, requests+count*n, prefillTokens+count*float64(c.PrefillTokens)
	}
	return requests / max(1, replicas), prefillTokens / max(1, replicas)
}

// peerLoad returns the expected requests per replica of a peer, and the prompt tokens that are still to be computed at the
// replica of it that has the fewest. If its last report has less than the mean, they rise with the age that the report will
// have when the request arrives there (PeerLoadLifetime).
func (p *Cost) peerLoad(t *costTerms, c *Candidate) (requests, prefillTokens float64) {
	requests, prefillTokens = requestsPerReplica(c), float64(c.PrefillTokens)
	lifetime := p.constants.PeerLoadLifetime * inSeconds(t.expectedResidence(c))
	risen := 1 - math.Exp(-inSeconds(c.Age+c.RTT/2)/lifetime)
	return requests + risen*max(0, t.meanRequests-requests), prefillTokens + risen*max(0, t.meanPrefillTokens-prefillTokens)
}

// pace returns the candidate's pace, 1 if unknown.
func (c *Candidate) pace() float64 {
	if c.Pace <= 0 {
		return 1
	}
	return c.Pace
}

// laterSeconds returns the total round-trip time, in seconds, of the later requests that would be forwarded to a peer
// because only the peer has cached their prefix. A replica here could compute the prefix instead, so this cost is at most
// the time that the peer's cached prefix saves for the present request.
func (p *Cost) laterSeconds(t *costTerms, c *Candidate) float64 {
	if !c.Peer || c.RTT <= 0 {
		return 0
	}
	saved := c.pace() * t.tokensPerByte * max(0, float64(c.MatchBytes)-t.localMatch) / p.constants.PrefillRate
	return min(saved, t.laterUses*inSeconds(c.RTT))
}

// weightedMatch returns the length of the match at c, in bytes. Text that c has probably evicted has a
// lower weight.
func (t *costTerms) weightedMatch(c *Candidate) float64 {
	return float64(c.MatchBytes) - (1-t.supersededWeight)*float64(c.SupersededBytes)
}

// memorySeconds returns the cost, in seconds, of a replica whose memory is used above MemoryThreshold: the request
// may have to wait for memory, and the memory that it occupies is not available to the requests
// that wait for the replica.
//
// With a shared prefix, only the memory of the prompt counts, without MemoryPenalty and the delay of waiting requests, at
// a replica of one of two kinds:
//   - The request would be held for it: holdSeconds already counts the wait.
//   - No request waits for it, and the prompt fits into its free memory.
//
// If requests with a shared prefix avoided these replicas, all replicas would get copies of the prefix, and would have
// less free memory together. A conversation leaves no copy that is still needed: it always has the whole cost.
func (p *Cost) memorySeconds(t *costTerms, c *Candidate, added, n float64) float64 {
	over := (c.KV.Or(0) - p.constants.MemoryThreshold) / (1 - p.constants.MemoryThreshold)
	if over <= 0 {
		return 0
	}
	// memoryTokens is about the number of tokens that fill the memory. It is too high if requests share a prefix, which is
	// counted for each of them, and too low if the replica has requests that this balancer did not send.
	memoryTokens := float64(max(c.ContextTokens, 1)) / c.KV.Value
	if c.Peer {
		memoryTokens /= float64(max(c.Replicas, 1))
	}
	fullSeconds := over * inSeconds(t.residenceAt(c))
	// While the request runs, about n others end there, so it delays at most n waiting requests, however long the
	// queue is.
	waiting := min(float64(c.Held+c.Pending.Or(0))+t.queuedPerReplica, n)
	if t.sharedPrefix && !c.Peer && (!canSendTo(c) || waiting == 0 && fits(c, added)) {
		return fullSeconds * p.constants.OccupancyWeight * min(added, memoryTokens) / memoryTokens
	}
	taken := min(added, memoryTokens) + waiting*min(added+t.responseSteps, memoryTokens)
	return fullSeconds * (p.constants.MemoryPenalty + p.constants.OccupancyWeight*taken/memoryTokens)
}

// inSeconds returns d.Seconds(), less exactly rounded but faster.
func inSeconds(d time.Duration) float64 { return float64(d) * 1e-9 }
