package sim

import (
	"math"
	"sort"
	"time"
)

// Weights of the oracle. All other values are the engines' own.
const (
	// scarceAbove is the share of memory, or of batch slots, beyond which they are scarce.
	scarceAbove = 0.6
	// oracleMemory and oracleSlots weigh the memory and the slots that a request takes from waiting
	// requests. A slot taken while the queue is never empty also delays requests that have not arrived
	// yet.
	oracleMemory, oracleSlots = 2, 3
	// maxOracleHold is the maximum time that a request is held.
	maxOracleHold = 30 * time.Second
	// unequalRatio is the ratio of decode times from which engines count as different.
	unequalRatio = 1.25
)

// oracleWeights holds the weights that differ between equal and unequal engines. The engines' profiles select
// one of the two.
type oracleWeights struct {
	// ahead is how many decode steps before its admission a request is sent: an engine with a pending
	// request loses no step when memory becomes free.
	ahead float64
	// sharing weighs a batch's loss from a prefill step against the wait of the requests that share it.
	sharing float64
	// remotePenalty is the penalty in seconds for leaving the region.
	remotePenalty float64
	// evicted is the share of evicted cache entries that will be computed again.
	evicted float64
	// queue weighs waiting requests against running ones that a prefill delays.
	queue float64
}

var (
	// equalEngines: any engine is suitable, and memory is the scarce resource.
	equalEngines = oracleWeights{ahead: 7, evicted: 1}
	// unequalEngines: fast engines lack batch slots and fill one many times per second. Slow ones are
	// useful only for whole sessions: a single request there delays all that follow it, so regions keep
	// their sessions.
	unequalEngines = oracleWeights{ahead: 2, sharing: 1, remotePenalty: 10, evicted: 0.3, queue: 2}
)

// weightsFor selects the weights by the engines' profiles.
func weightsFor(replicas []*replica) *oracleWeights {
	lowest, highest := math.Inf(1), 0.0
	for _, r := range replicas {
		p := r.engine.Profile()
		base, _ := linearTimes(p.Decode, p.DecodeBase, p.DecodePerRequest)
		lowest, highest = min(lowest, base), max(highest, base)
	}
	if highest > unequalRatio*lowest {
		return &unequalEngines
	}
	return &equalEngines
}

// estimate is the cost of a request at a replica.
type estimate struct {
	cost   float64 // seconds, of the request and of others
	wait   float64 // part of it until admission
	cached int     // prompt tokens that are cached
}

// estimate returns the cost of a request at a replica that heldRequests others wait for: network delays,
// the wait, its prefill and its decode steps; the delay of all requests there; and the value of its
// memory and slot to waiting requests.
func (o *oracle) estimate(q *waitingRequest, s *replicaState, heldRequests int) estimate {
	cached := q.cached(s)
	maxTokens, length := s.tokenBounds(q.leg.request)
	uncached, steps, n := float64(q.tokens-cached), float64(length), float64(s.presentRequests())
	context := float64(q.tokens) + steps/2

	step := s.stepSeconds() + s.perRequest + context*s.perKV
	prefill := uncached * s.perToken
	if !s.willPrefill() {
		prefill += s.prefillBase
	}
	wait := s.wait(uncached+s.reserve*float64(maxTokens), heldRequests) * step
	own := o.roundTripCost(q, s) + max(wait, step/2) + float64(s.backlog)*s.perToken + prefill + steps*step
	others := (n+o.weights.queue*q.queued)*prefill + s.overlap(length)*(s.perRequest+s.perKV*context)

	capacity := float64(s.profile.KVTokens)
	memory := oracleMemory * s.memoryScarcity() * min(1, (uncached+steps)/capacity) * (1 + q.queued)
	places := oracleSlots * s.slotScarcity() / float64(s.profile.MaxRunning) * (1 + q.queued + float64(heldRequests+s.pending))
	free := capacity - float64(s.load.KVUsed+s.backlog)
	evicted := o.weights.evicted * max(0, min(uncached+steps, uncached+steps-free)) * s.perToken * (1 + n)
	return estimate{cost: own + others + (memory+places)*steps*step + evicted, wait: wait, cached: cached}
}

// networkSeconds returns the delay in seconds from the request to a replica.
func (o *oracle) networkSeconds(q *waitingRequest, s *replicaState) float64 {
	return o.w.networkDelay(s.r, q.leg).Seconds()
}

// roundTripCost returns the cost of the round trip.
func (o *oracle) roundTripCost(q *waitingRequest, s *replicaState) float64 {
	ways := 2 * o.networkSeconds(q, s)
	if s.r.region != q.leg.request.client.region {
		ways += o.weights.remotePenalty
	}
	return ways
}

// presentRequests returns the number of requests there, or on their way.
func (s *replicaState) presentRequests() int { return len(s.remaining) }

// stepSeconds returns the seconds of a decode step with all present requests.
func (s *replicaState) stepSeconds() float64 {
	return s.decodeBase + float64(s.presentRequests())*s.perRequest + float64(s.context)*s.perKV
}

// willPrefill reports whether the engine will run a prefill step anyway, which further requests can
// share.
func (s *replicaState) willPrefill() bool { return s.pending > 0 }

// memoryScarcity returns the scarcity of memory, from 0 to 1.
func (s *replicaState) memoryScarcity() float64 {
	return scarcity((float64(s.load.KVActive) + s.reserve*float64(s.promised)) / float64(s.profile.KVTokens))
}

// slotScarcity returns the scarcity of batch slots, from 0 to 1.
func (s *replicaState) slotScarcity() float64 {
	return scarcity(float64(s.presentRequests()) / float64(s.profile.MaxRunning))
}

func scarcity(share float64) float64 {
	return min(1, max(0, (share-scarceAbove)/(1-scarceAbove)))
}

// overlap returns the number of steps that present requests share with a request of that many steps, in
// total.
func (s *replicaState) overlap(steps int) float64 {
	i := sort.Search(len(s.remaining), func(i int) bool { return s.remaining[i].steps > steps })
	sum := (len(s.remaining) - i) * steps
	if i > 0 {
		sum += s.sums[i-1]
	}
	return float64(sum)
}

// wait returns the number of decode steps until a request with that memory need is admitted, by the
// engine's own rule: after all pending requests and those held for the replica, which are assumed to
// need as much.
func (s *replicaState) wait(need float64, heldRequests int) float64 {
	free := float64(s.profile.KVTokens-s.load.KVActive) - s.reserve*float64(s.promised) - s.need - need*float64(1+heldRequests)
	places := s.profile.MaxRunning - s.presentRequests() - 1 - heldRequests
	if free >= 0 && places >= 0 {
		return 0
	}
	if len(s.remaining) == 0 {
		return float64(heldRequests) // empty: held requests start at once
	}
	i := sort.SearchFloat64s(s.freed, -free)
	if i = max(i, -places-1); i < len(s.remaining) {
		return float64(s.remaining[i].steps)
	}
	// After all present requests and some of the held ones.
	return float64(s.remaining[len(s.remaining)-1].steps + stepsAfterPresent*(1+heldRequests))
}

// stepsAfterPresent is the assumed number of steps of each request that follows all present ones.
const stepsAfterPresent = 100
