package policy

import (
	"math"
	"time"
)

// CostConstants contains the constants of the cost policy, for every service and scenario. The
// first group describes the nominal replica, one L4 that serves an 8B model. The speed of a real
// replica is learned (Candidate.Pace) and scales them.
type CostConstants struct {
	// Prefill is the number of uncached prompt tokens computed per second.
	Prefill float64
	// DecodeBase, DecodePerRequest and DecodePerToken are the parts of a decode step, in seconds:
	// fixed, per request in the batch, and per token of context.
	DecodeBase       float64
	DecodePerRequest float64
	DecodePerToken   float64
	// DecodeSteps is the expected number of steps of an answer before the first one of the model has
	// ended, unless its bound is lower.
	DecodeSteps float64
	// AdmitSteps is the number of decode steps until a replica with free memory admits the next pending
	// request.
	AdmitSteps float64
	// TransientSteps is the maximum number of decode steps for which requests are pending merely because
	// they arrived during a step.
	TransientSteps float64
	// Residence is the residence time that NominalResidence assumes.
	Residence time.Duration

	// Slowdown is the weight of the time by which a request delays the requests already there,
	// relative to its own time. The ratio of waiting to outstanding requests is added; the sum is at
	// most 1.
	Slowdown float64
	// PrefillQueue is the weight of prompts that are about to be computed at a replica: they are
	// computed first, and prompts computed together wait for each other.
	PrefillQueue float64
	// MemoryPenalty is the cost of a replica whose KV memory is full, as a share of its residence
	// time. It grows from zero at MemoryThreshold, a KV utilisation.
	MemoryPenalty, MemoryThreshold float64
	// Occupancy is the weight of the memory that a request occupies at a replica above MemoryThreshold, as a share
	// of the replica's KV memory. It has two parts. First, the uncached tokens of its prompt, which evict cached
	// prefixes. Second, for each request that waits there, the uncached tokens and the answer: memory that the
	// waiting request cannot use. Without waiting requests the answer does not count, because it takes the same
	// memory at every replica. Cached tokens take no further memory.
	Occupancy float64
	// OvertakenMatch is the weight of a match whose text was sent to another replica
	// later.
	OvertakenMatch float64
	// MaxEvictedShare bounds the share of uncached tokens that are assumed to evict a prefix which another request
	// needs and computes again. A higher bound keeps more prefixes, but more requests wait for their replicas.
	MaxEvictedShare float64
	// PeerMargin is the part of a request's own time at an idle replica by which a peer must be cheaper
	// than every replica.
	PeerMargin float64
	// MaxHold is a share of a request's maximum time in the queue (Facts.MaxWait). A request that has waited for this
	// time, and in addition for the time in which the whole queue is served, is overdue: it is no longer held for a
	// full replica while another replica is available. With a fixed time instead of a share, more of
	// the long prompts would be served under a longer maximum wait, and so fewer requests in total.
	MaxHold float64
}

// DefaultCostConstants returns the constants that services run with.
func DefaultCostConstants() CostConstants {
	return CostConstants{
		Prefill:          2000,
		DecodeBase:       54e-3,
		DecodePerRequest: 0.25e-3,
		DecodePerToken:   0.44e-6,
		DecodeSteps:      150, // the mean of chat traffic
		AdmitSteps:       2.8,
		TransientSteps:   9,
		Residence:        10 * time.Second,

		// Chosen by simulation of the scenarios and of loads that differ much from them. None is
		// critical: halving or doubling any of them changes throughput by less than 2 %.
		Slowdown:        0.45,
		PrefillQueue:    1,
		MemoryPenalty:   0.2,
		MemoryThreshold: 0.6,
		Occupancy:       6,
		OvertakenMatch:  0.3,
		MaxEvictedShare: 0.3,
		PeerMargin:      0.03, // every following turn of the conversation has the round trip too
		MaxHold:         0.5,
	}
}

// NominalStep returns the duration of a decode step at the nominal replica (CostConstants), for n requests with a
// total context in tokens.
func NominalStep(n, context int) time.Duration {
	c := DefaultCostConstants()
	return seconds(c.DecodeBase + float64(n)*c.DecodePerRequest + float64(context)*c.DecodePerToken)
}

// NominalPrefill returns the time in which the nominal replica computes a number of prompt
// tokens.
func NominalPrefill(tokens int) time.Duration {
	return seconds(float64(tokens) / DefaultCostConstants().Prefill)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// NominalResidence returns the expected residence time at a replica with a pace (Candidate.Pace) at which
// no request has ended.
func NominalResidence(pace float64) time.Duration {
	return time.Duration(pace * float64(DefaultCostConstants().Residence))
}

// HoldTime returns the expected wait for a full replica: ahead is the number of requests that are
// served first, and one of the n requests there ends every residence/n. A residence time of 0 is
// unknown: it is NominalResidence at a pace.
func HoldTime(ahead, n int, residence time.Duration, pace float64) time.Duration {
	if residence <= 0 {
		residence = NominalResidence(pace)
	}
	return time.Duration(float64(residence) * float64(ahead+1) / float64(max(n, 1)))
}

// Cost sends a request to the candidate with the lowest total cost in time: its own time
// (queueing, network, computing uncached tokens, the answer) and the slowdown of the requests
// already there. Load and locality are thus compared in one unit, seconds. Waiting for a full
// replica may cost less than a replica with capacity. Then the request is held for the full one,
// and the requests behind it proceed. The policy combines SkyLB's selective pushing with the measured
// load and speed of each replica. Unlike SkyLB, it compares replicas with peers directly.
type Cost struct {
	constants   CostConstants
	ties, peers rotation
}

// NewCost returns the policy.
func NewCost() *Cost { return &Cost{constants: DefaultCostConstants()} }

// Name returns cost.
func (*Cost) Name() string { return "cost" }

// Traits returns that the policy uses prefixes, compares replicas with peers, and may hold
// requests.
func (*Cost) Traits() Traits { return Traits{Prefix: true, Peers: true, Holds: true} }

// costTolerance is the difference of costs, in seconds, below which they are equal.
const costTolerance = 1e-6

// Choose selects the candidate with the lowest cost. For an overdue request, it considers only available
// candidates.
func (p *Cost) Choose(f *Facts) Choice {
	t := p.terms(f)
	overdue := p.overdue(f)
	best, lowest, equals := Wait, math.Inf(1), 0
	for i := range f.Candidates {
		c := &f.Candidates[i]
		if !c.Live || (!c.Available && (c.Peer || overdue)) {
			continue
		}
		cost := p.cost(&t, c)
		c.Score = Known(cost)
		switch {
		case cost < lowest-costTolerance:
			best, lowest, equals = i, cost, 1
		case cost <= lowest+costTolerance:
			equals++
		}
	}
	if best == Wait {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	split := firstPeer(f.Candidates)
	ties, from, to := &p.ties, 0, split
	if best >= split {
		ties, from, to = &p.peers, split, len(f.Candidates)
	}
	if equals > 1 {
		best = ties.nextTarget(f.Candidates, from, to, func(c *Candidate) bool { return c.Score.Known && math.Abs(c.Score.Value-lowest) <= costTolerance })
	}
	if best >= split {
		return Choice{Index: best, Reason: ReasonForward}
	}
	c := &f.Candidates[best]
	return Choice{Index: best, Hold: !hasCapacity(c), Reason: ReasonLeastCost}
}

// overdue reports whether a request was passed over for too long (MaxHold) while a replica is available now. In a
// queue that takes longer than MaxHold, every request waits so long, and none is overdue for that reason alone.
func (p *Cost) overdue(f *Facts) bool {
	maxHold := time.Duration(p.constants.MaxHold * float64(f.MaxWait))
	if f.MaxWait <= 0 || f.Waited <= maxHold {
		return false
	}
	available, perSecond := false, 0.0
	for i := range f.Candidates[:firstPeer(f.Candidates)] {
		c := &f.Candidates[i]
		available = available || c.Available
		if c.Residence > 0 {
			perSecond += float64(requestsAt(c)) / inSeconds(c.Residence)
		}
	}
	return available && inSeconds(f.Waited-maxHold)*perSecond >= float64(f.Queued-1)
}

// hasCapacity reports whether a replica accepts a request at once: the push rule allows it, and no
// earlier request is held for it.
func hasCapacity(c *Candidate) bool { return c.Available && c.Held == 0 }

// requestsAt returns the number of requests at a replica: by the balancer's count or, if others
// send there too, by the engine's.
func requestsAt(c *Candidate) int { return max(c.Outstanding, c.Running.Or(0)+c.Pending.Or(0)) }

// slowdownWeight returns the weight of the slowdown of other requests. The more requests wait, the
// more of them are affected by a slower replica.
func (p *Cost) slowdownWeight(f *Facts) float64 {
	outstanding := 0
	for i := range f.Candidates {
		if c := &f.Candidates[i]; !c.Peer {
			outstanding += requestsAt(c)
		}
	}
	return min(1, p.constants.Slowdown+float64(max(0, f.Queued-1))/float64(max(outstanding, 1)))
}

// costTerms contains the parts of a request's cost that are the same for all candidates.
type costTerms struct {
	tokens           float64 // of its prompt
	perByte          float64 // prompt tokens per byte that is matched
	addedDecode      float64 // the time that it adds to all decode steps of its answer together, in seconds
	steps            float64 // number of decode steps of its answer
	decode           float64 // base duration of all those steps together, in seconds
	slowdown         float64
	queuedPerReplica float64 // waiting requests per replica
	// computedPerMiss is the number of tokens computed for each uncached token: the token itself, and evicted
	// tokens that are computed again because of it.
	computedPerMiss float64
}

func (p *Cost) terms(f *Facts) costTerms {
	t := costTerms{tokens: float64(f.PromptTokens), steps: p.constants.DecodeSteps, slowdown: p.slowdownWeight(f)}
	if f.AnswerTokens > 0 {
		t.steps = f.AnswerTokens
	}
	if f.MaxTokens > 0 {
		t.steps = min(t.steps, float64(f.MaxTokens))
	}
	// While less than half of the computed tokens had been evicted, caches still contain text that no request needs
	// again: evicting it costs nothing.
	t.computedPerMiss = 1 / (1 - min(max(0, 2*f.EvictedShare-1), p.constants.MaxEvictedShare))
	t.decode = t.steps * p.constants.DecodeBase
	t.queuedPerReplica = float64(max(0, f.Queued-1)) / float64(max(1, firstPeer(f.Candidates)))
	t.addedDecode = t.steps * (p.constants.DecodePerRequest + p.constants.DecodePerToken*t.tokens)
	if f.PromptBytes > 0 {
		t.perByte = t.tokens / float64(f.PromptBytes)
	}
	return t
}

// cost returns the cost of a request at c, in seconds.
func (p *Cost) cost(t *costTerms, c *Candidate) float64 {
	pace := c.pace()
	uncached := t.tokens - t.perByte*p.match(c)
	prefill := uncached / p.constants.Prefill * t.computedPerMiss
	ahead := p.constants.PrefillQueue * float64(c.Prefilling) / p.constants.Prefill
	n := float64(requestsAt(c))
	if c.Peer {
		n = float64(c.PeerOutstanding+c.Unconfirmed) / float64(max(c.Replicas, 1))
	}
	return p.waitSeconds(t, c, uncached) + p.memorySeconds(t, c, uncached, n) + pace*(ahead+prefill+t.decode+t.slowdown*n*(prefill+t.addedDecode))
}

// pace returns the candidate's pace, 1 if unknown.
func (c *Candidate) pace() float64 {
	if c.Pace <= 0 {
		return 1
	}
	return c.Pace
}

// match returns how many bytes c has cached, weighted by their reliability.
func (p *Cost) match(c *Candidate) float64 {
	if c.Overtaken {
		return p.constants.OvertakenMatch * float64(c.Match)
	}
	return float64(c.Match)
}

// memorySeconds returns the cost, in seconds, of a replica whose memory is nearly full: the request
// may have to wait for memory, and the memory that it occupies is not available to the requests
// that wait for the replica.
func (p *Cost) memorySeconds(t *costTerms, c *Candidate, uncached, n float64) float64 {
	over := (c.KV.Or(0) - p.constants.MemoryThreshold) / (1 - p.constants.MemoryThreshold)
	if over <= 0 {
		return 0
	}
	// The number of tokens that fill the memory. Prefixes that requests share are counted for each
	// of them, so this is an upper bound.
	capacity := float64(max(c.Context, 1)) / c.KV.Value
	if c.Peer {
		capacity /= float64(max(c.Replicas, 1))
	}
	// It delays at most those that its memory could serve in the meantime, however long the queue is.
	waiting := min(float64(c.Held+c.Pending.Or(0))+t.queuedPerReplica, n)
	taken := min(uncached, capacity) + waiting*min(uncached+t.steps, capacity)
	return over * inSeconds(c.Residence) * (p.constants.MemoryPenalty + p.constants.Occupancy*taken/capacity)
}

// waitSeconds returns how long a request with that many uncached tokens waits at c before its computation starts. For
// a peer, it is the sum of the round-trip time, the wait there, and PeerMargin. A replica without memory for it starts
// it when a request there has ended, after the requests that no report has confirmed.
func (p *Cost) waitSeconds(t *costTerms, c *Candidate, uncached float64) float64 {
	wait := inSeconds(c.RTT)
	switch {
	case c.Peer:
		wait += inSeconds(c.Wait) + p.constants.PeerMargin*c.pace()*(t.tokens/p.constants.Prefill+t.decode)
	case !hasCapacity(c):
		wait += p.holdSeconds(c)
	case !fits(c, uncached):
		wait += inSeconds(HoldTime(c.Unconfirmed, requestsAt(c), c.Residence, c.pace()))
	}
	return wait
}

// fits reports whether the free memory of a replica suffices for a request with that many uncached tokens, beside
// the requests that were sent there and do not run yet. If it is unknown, it does. Requests of other balancers count
// as much as the mean of those sent from here. Prefixes that requests share count for each of them, so the free
// memory is an upper bound.
func fits(c *Candidate, uncached float64) bool {
	running := float64(c.Running.Or(0))
	if c.KV.Or(0) <= 0 || running <= 0 || c.Outstanding == 0 {
		return true
	}
	perRequest := float64(c.Context) / float64(c.Outstanding)
	return uncached <= perRequest*(running/c.KV.Value-float64(requestsAt(c)))
}

// holdSeconds returns how long a request is held for a replica without capacity. If the replica has had
// pending requests only for a short time and its memory is free, they arrived during a step and are
// admitted at the next steps. Otherwise its batch or memory is full, and a request there has to end
// first.
func (p *Cost) holdSeconds(c *Candidate) float64 {
	ahead := c.Held + c.Pending.Or(0)
	pace, step := c.pace(), c.pace()*p.constants.DecodeBase
	wait := inSeconds(HoldTime(ahead, requestsAt(c), c.Residence, pace))
	if c.KV.Known && c.KV.Value < p.constants.MemoryThreshold && inSeconds(c.PendingFor) < p.constants.TransientSteps*step {
		wait = min(wait, float64(ahead+1)*p.constants.AdmitSteps*step)
	}
	return wait
}

// inSeconds is time.Duration.Seconds without the exact rounding.
func inSeconds(d time.Duration) float64 { return float64(d) * 1e-9 }
