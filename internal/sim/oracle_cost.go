package sim

import (
	"math"
	"sort"
	"time"
)

// What the oracle weighs. Everything else is the engines' own.
const (
	// oracleRoomy is the share of the memory, or of the places in the batch, beyond
	// which they are short.
	oracleRoomy = 0.6
	// oracleMemory and oraclePlaces weigh what a request takes of either from those
	// that wait. Who takes a place while the queue is never empty delays not only
	// those who are in it now.
	oracleMemory, oraclePlaces = 2, 3
	// oraclePatience is how long a request may be held.
	oraclePatience = 30 * time.Second
	// unequal is from which ratio of their decode steps on engines are not alike.
	unequal = 1.25
)

// manner is what the oracle does differently where engines are alike and where
// they are not: two oracles, of which the engines' profiles choose one.
type manner struct {
	// ahead is how many decode steps before its admission a request is sent: an
	// engine that has somebody pending loses no step when memory comes free.
	ahead float64
	// company weighs what a batch loses to a prefill step against the waiting of
	// those who share it.
	company float64
	// abroad is the price in seconds of leaving the region.
	abroad float64
	// evicted is the share of what is pushed out of a cache that will be computed
	// again.
	evicted float64
	// queue weighs those that wait against those in the batch where a prompt is
	// computed that need not be.
	queue float64
}

var (
	// amongEquals: any engine will do, and memory is what they are short of.
	amongEquals = manner{ahead: 7, evicted: 1}
	// amongUnequals: fast engines are short of places in the batch and fill one many
	// times a second. The slow ones are of use only to whole sessions: a stray
	// request there keeps all that follow it waiting, so that regions keep theirs.
	amongUnequals = manner{ahead: 2, company: 1, abroad: 10, evicted: 0.3, queue: 2}
)

// mannerOf chooses by the engines' profiles.
func mannerOf(replicas []*replica) *manner {
	least, most := math.Inf(1), 0.0
	for _, r := range replicas {
		p := r.engine.Profile()
		base, _ := straight(p.Decode, p.DecodeBase, p.DecodePerRequest)
		least, most = min(least, base), max(most, base)
	}
	if most > unequal*least {
		return &amongUnequals
	}
	return &amongEquals
}

// estimate is what a request costs at a replica.
type estimate struct {
	cost   float64 // seconds, of its own and of others
	wait   float64 // of them, until it is admitted
	cached int     // tokens of its prompt that need not be computed
}

// estimate is what the request costs at a replica that held others are kept for:
// the ways, the wait, its prefill and its decode steps; what those make everybody
// else there wait; and what its memory and its place are worth to those that wait
// for them.
func (o *oracle) estimate(q *outlook, s *sight, held int) estimate {
	cached := q.cached(s)
	most, length := s.bounds(q.leg.flight)
	uncached, steps, n := float64(q.tokens-cached), float64(length), float64(s.present())
	context := float64(q.tokens) + steps/2

	step := s.step() + s.perRequest + context*s.perKV
	prefill := uncached * s.perToken
	if !s.prefillComes() {
		prefill += s.prefillBase
	}
	wait := s.wait(uncached+s.reserve*float64(most), held) * step
	own := o.ways(q, s) + max(wait, step/2) + float64(s.backlog)*s.perToken + prefill + steps*step
	others := (n+o.manner.queue*q.queued)*prefill + s.overlap(length)*(s.perRequest+s.perKV*context)

	capacity := float64(s.profile.KVTokens)
	memory := oracleMemory * s.pressure() * min(1, (uncached+steps)/capacity) * (1 + q.queued)
	places := oraclePlaces * s.crowd() / float64(s.profile.MaxRunning) * (1 + q.queued + float64(held+s.pending))
	free := capacity - float64(s.load.KVUsed+s.backlog)
	evicted := o.manner.evicted * max(0, min(uncached+steps, uncached+steps-free)) * s.perToken * (1 + n)
	return estimate{cost: own + others + (memory+places)*steps*step + evicted, wait: wait, cached: cached}
}

// way is how many seconds it is from the request to a replica.
func (o *oracle) way(q *outlook, s *sight) float64 { return o.w.way(s.r, q.leg).Seconds() }

// ways is what the way there and back costs.
func (o *oracle) ways(q *outlook, s *sight) float64 {
	ways := 2 * o.way(q, s)
	if s.r.region != q.leg.flight.client.region {
		ways += o.manner.abroad
	}
	return ways
}

// present is how many are there, or on the way.
func (s *sight) present() int { return len(s.stays) }

// step is how many seconds a decode step takes with all those present.
func (s *sight) step() float64 {
	return s.decodeBase + float64(s.present())*s.perRequest + float64(s.context)*s.perKV
}

// prefillComes says whether the engine will compute a prompt anyway: what comes
// with it pays for no step of its own.
func (s *sight) prefillComes() bool { return s.pending > 0 }

// pressure is how short memory is, from 0 to 1.
func (s *sight) pressure() float64 {
	return beyondRoomy((float64(s.load.KVActive) + s.reserve*float64(s.promised)) / float64(s.profile.KVTokens))
}

// crowd is how short places in the batch are, from 0 on.
func (s *sight) crowd() float64 {
	return beyondRoomy(float64(s.present()) / float64(s.profile.MaxRunning))
}

func beyondRoomy(share float64) float64 {
	return min(1, max(0, (share-oracleRoomy)/(1-oracleRoomy)))
}

// overlap is how many steps those present have in common with a request of that
// many, in all.
func (s *sight) overlap(steps int) float64 {
	i := sort.Search(len(s.stays), func(i int) bool { return s.stays[i].steps > steps })
	sum := (len(s.stays) - i) * steps
	if i > 0 {
		sum += s.sums[i-1]
	}
	return float64(sum)
}

// wait is in how many decode steps a request that needs so much memory is
// admitted, by the engine's own rule: after everybody who is pending and after
// those held for the replica, who are taken to need as much.
func (s *sight) wait(need float64, held int) float64 {
	room := float64(s.profile.KVTokens-s.load.KVActive) - s.reserve*float64(s.promised) - s.need - need*float64(1+held)
	places := s.profile.MaxRunning - s.present() - 1 - held
	if room >= 0 && places >= 0 {
		return 0
	}
	if len(s.stays) == 0 {
		return float64(held) // it is empty: who is held for it comes at once
	}
	i := sort.SearchFloat64s(s.freed, -room)
	if i = max(i, -places-1); i < len(s.stays) {
		return float64(s.stays[i].steps)
	}
	// Not before all those have gone, and some of the others as well.
	return float64(s.stays[len(s.stays)-1].steps + beyondAll*(1+held))
}

// beyondAll is how many steps each of those takes that come after all who are
// there.
const beyondAll = 100
