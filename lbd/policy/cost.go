package policy

import (
	"math"
	"time"
)

// CostConstants is the one table of what cost rests on, for every service and
// scenario. The first group describes the nominal replica, one L4 that serves
// an 8B model; what a replica really does is learned (Candidate.Pace, Residence)
// and scales them.
type CostConstants struct {
	// Prefill is how many uncached prompt tokens it computes a second.
	Prefill float64
	// DecodeBase, DecodePerRequest and DecodePerToken make up a decode step, in
	// seconds: fixed, for every request in the batch, for every token of context.
	DecodeBase       float64
	DecodePerRequest float64
	DecodePerToken   float64
	// DecodeSteps is how many steps an answer is thought to take, if it may.
	DecodeSteps float64

	// Harm weighs the time that a request costs those already there against its
	// own; what waits here, as a share of what is outstanding, is added, up to 1.
	Harm float64
	// Ahead weighs prompts that are about to be computed at a replica: they come
	// first, and those that are computed together wait for each other.
	Ahead float64
	// Memory is what a replica costs whose KV memory is full, as a share of its
	// residence; it grows from nothing at Roomy, a KV utilisation.
	Memory, Roomy float64
	// Occupancy weighs, at such a replica, the memory that a request takes from
	// those that wait for it: what is cached there already takes none.
	Occupancy float64
	// Trust is what a match is worth where another replica was sent it later.
	Trust float64
	// Margin is how many seconds cheaper than every replica a peer must be.
	Margin float64
	// Step is how many seconds a replica with memory left takes to let the next
	// pending request in: some steps.
	Step float64
	// Passing is for how long something pending may only be between two steps.
	Passing time.Duration
	// Patience bounds how long a request is kept for a full replica.
	Patience time.Duration
	// Residence is how long a request stays at a replica, until one has ended.
	Residence time.Duration
}

// DefaultCostConstants are the constants that services run with.
func DefaultCostConstants() CostConstants {
	return CostConstants{
		Prefill:          2000,
		DecodeBase:       54e-3,
		DecodePerRequest: 0.25e-3,
		DecodePerToken:   0.44e-6,
		DecodeSteps:      150, // the mean of chat traffic

		// By simulation, over the scenarios and far from them. None is on an edge:
		// half or double of each changes throughput by less than 2 %.
		Harm:      0.45,
		Ahead:     1,
		Memory:    0.15,
		Roomy:     0.6,
		Occupancy: 6,
		Trust:     0.3,
		Margin:    0.75, // a round trip is paid by every turn of the conversation that follows

		Step:      0.15,
		Passing:   500 * time.Millisecond,
		Patience:  30 * time.Second,
		Residence: 10 * time.Second,
	}
}

// NominalStep is how long a decode step of n requests whose contexts hold so
// many tokens takes at the nominal replica.
func NominalStep(n, context int) time.Duration {
	c := DefaultCostConstants()
	return seconds(c.DecodeBase + float64(n)*c.DecodePerRequest + float64(context)*c.DecodePerToken)
}

// NominalPrefill is how long the nominal replica takes to compute so many tokens of
// a prompt.
func NominalPrefill(tokens int) time.Duration {
	return seconds(float64(tokens) / DefaultCostConstants().Prefill)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// HoldTime is how long a request is thought to wait for a full replica: ahead
// others go first, and one of the n there leaves every residence/n.
func HoldTime(ahead, n int, residence time.Duration) time.Duration {
	if residence <= 0 {
		residence = DefaultCostConstants().Residence
	}
	return time.Duration(float64(residence) * float64(ahead+1) / float64(max(n, 1)))
}

// Cost sends a request where it costs the least time in all: its own (waiting,
// the network, computing what is not cached, the answer) and that of the
// requests already there, which it slows down. Load and locality are thereby
// weighed in one unit, seconds. Waiting for a full replica may cost less than
// going to one with room; then the request is held for it, and those behind it
// go on. It joins SkyLB's selective pushing and two layers with the load that
// each replica really has and the speed it really shows.
type Cost struct {
	c           CostConstants
	ties, peers rotation
}

// NewCost makes the policy.
func NewCost() *Cost { return &Cost{c: DefaultCostConstants()} }

// Name is cost.
func (*Cost) Name() string { return "cost" }

// Traits says: prefixes, all regions, and holding.
func (*Cost) Traits() Traits { return Traits{Prefix: true, Regions: true, Holds: true} }

// tie is the difference of costs, in seconds, that says nothing.
const tie = 1e-6

// Choose takes the candidate of the least cost. A request that waited longer
// than Patience takes the cheapest that has room.
func (p *Cost) Choose(f *Facts) Choice {
	t := p.terms(f)
	best, least, equals := Wait, math.Inf(1), 0
	for i := range f.Candidates {
		c := &f.Candidates[i]
		if !c.Live || (!c.Available && (c.Peer || f.Waited > p.c.Patience)) {
			continue
		}
		cost := p.cost(&t, c)
		c.Score = Known(cost)
		switch {
		case cost < least-tie:
			best, least, equals = i, cost, 1
		case cost <= least+tie:
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
		best = ties.next(f.Candidates, from, to, func(c *Candidate) bool { return c.Score.Known && math.Abs(c.Score.Value-least) <= tie })
	}
	if best >= split {
		return Choice{Index: best, Reason: ReasonOffload}
	}
	c := &f.Candidates[best]
	return Choice{Index: best, Hold: !hasRoom(c), Reason: ReasonCheapest}
}

// hasRoom says whether a replica takes a request at once: the push rule allows
// it, and nobody who came first waits for it.
func hasRoom(c *Candidate) bool { return c.Available && c.Held == 0 }

// present is how many requests are at a replica: by the balancer's own count, or
// by the engine's where others send there too.
func present(c *Candidate) int { return max(c.Outstanding, c.Running.Or(0)+c.Pending.Or(0)) }

// harm is the weight of the time that others lose. The more requests wait, the
// more of them pay for a replica that is slowed down.
func (p *Cost) harm(f *Facts) float64 {
	outstanding := 0
	for i := range f.Candidates {
		if c := &f.Candidates[i]; !c.Peer {
			outstanding += present(c)
		}
	}
	return min(1, p.c.Harm+float64(max(0, f.Queued-1))/float64(max(outstanding, 1)))
}

// terms are what the costs of one request have in common.
type terms struct {
	tokens  float64 // of its prompt
	perByte float64 // of them, for each byte that is matched
	step    float64 // what it adds to all decode steps of its answer, in seconds
	steps   float64 // how many those are
	decode  float64 // how long they take beside that
	harm    float64
	queued  float64 // requests that wait, for each replica
}

func (p *Cost) terms(f *Facts) terms {
	t := terms{tokens: float64(f.PromptTokens), steps: p.c.DecodeSteps, harm: p.harm(f)}
	if f.MaxTokens > 0 {
		t.steps = min(t.steps, float64(f.MaxTokens))
	}
	t.decode = t.steps * p.c.DecodeBase
	t.queued = float64(max(0, f.Queued-1)) / float64(max(1, firstPeer(f.Candidates)))
	t.step = t.steps * (p.c.DecodePerRequest + p.c.DecodePerToken*t.tokens)
	if f.PromptBytes > 0 {
		t.perByte = t.tokens / float64(f.PromptBytes)
	}
	return t
}

// cost is what a request costs at c, in seconds.
func (p *Cost) cost(t *terms, c *Candidate) float64 {
	pace := c.Pace
	if pace <= 0 {
		pace = 1
	}
	uncached := t.tokens - t.perByte*p.match(c)
	prefill := uncached / p.c.Prefill
	ahead := p.c.Ahead * float64(c.Prefilling) / p.c.Prefill
	n := float64(present(c))
	if c.Peer {
		n = float64(c.PeerOutstanding) / float64(max(c.Replicas, 1))
	}
	return p.wait(c) + p.memory(t, c, uncached) + pace*(ahead+prefill+t.decode+t.harm*n*(prefill+t.step))
}

// match is how many bytes c holds, as far as that can be relied on.
func (p *Cost) match(c *Candidate) float64 {
	if c.Overtaken {
		return p.c.Trust * float64(c.Match)
	}
	return float64(c.Match)
}

// memory is the time that a request costs at a replica whose memory is nearly
// full, in seconds: it may have to wait for some, and what it takes for its
// residence, those that wait for the replica do not get.
func (p *Cost) memory(t *terms, c *Candidate, uncached float64) float64 {
	over := (c.KV.Or(0) - p.c.Roomy) / (1 - p.c.Roomy)
	if over <= 0 {
		return 0
	}
	// The tokens that fill the memory once; prefixes that requests share count for
	// each of them, so it is no less.
	capacity := float64(max(c.Context, 1)) / c.KV.Value
	if c.Peer {
		capacity /= float64(max(c.Replicas, 1))
	}
	waiting := 1 + float64(c.Held+c.Pending.Or(0)) + t.queued
	taken := (uncached + t.steps) / capacity
	return over * inSeconds(c.Residence) * (p.c.Memory + p.c.Occupancy*min(taken, 1)*waiting)
}

// wait is how long a request waits at c before anything is computed for it.
func (p *Cost) wait(c *Candidate) float64 {
	wait := inSeconds(c.RTT)
	switch {
	case c.Peer:
		wait += inSeconds(c.Wait+HoldTime(c.Unconfirmed-1, c.PeerOutstanding, c.Residence)) + p.c.Margin
	case !hasRoom(c):
		wait += p.hold(c)
	}
	return wait
}

// hold is how long a request is kept for a replica without room, in seconds.
// What has just become pending where memory is left has only come in the middle
// of a step, and goes in with the next ones; else, or when it stays, the batch or
// the memory is full and somebody has to leave first.
func (p *Cost) hold(c *Candidate) float64 {
	ahead := c.Held + c.Pending.Or(0)
	wait := inSeconds(HoldTime(ahead, present(c), c.Residence))
	if c.KV.Known && c.KV.Value < p.c.Roomy && c.PendingFor < p.c.Passing {
		wait = min(wait, float64(ahead+1)*p.c.Step)
	}
	return wait
}

// inSeconds is time.Duration.Seconds without its care for the last digit.
func inSeconds(d time.Duration) float64 { return float64(d) * 1e-9 }
