package policy

import (
	"time"

	"skyserve/lbd/bfio"
)

// ReasonBalance is the reason of every choice of a rank (see Rank) by BFIO.
const ReasonBalance = "balance"

// BFIOOptions contains the parameters of BF-IO.
type BFIOOptions struct {
	// Window is the number of decode steps to look ahead; 0 = no lookahead. BFIO also does not look ahead
	// while responses are very short.
	Window int
	// MaxPoolWait is the time in the pool after which a request is placed before all newer ones that are
	// assigned to the same engine. Without it, long prompts would starve.
	MaxPoolWait time.Duration
}

// DefaultBFIO returns the options that services run with.
func DefaultBFIO() BFIOOptions {
	return BFIOOptions{Window: 16, MaxPoolWait: 2500 * time.Millisecond}
}

// BFIO is BF-IO, "Balance Future with Integer Optimization" (arXiv 2601.17855, section 4; see
// lbd/bfio). At every decode step, all data-parallel ranks of an engine wait for the rank with the
// most tokens. BF-IO therefore assigns the requests of a pool to the ranks of an engine so that the
// numbers of tokens stay as equal as possible over the next steps.
//
// The paper covers one engine whose waiting requests are all in one pool. This implementation
// extends it in three ways. First, it supports several engines, which do not wait for each other.
// Each receives a part of the pool proportional to its free slots. Requests are assigned, in queue
// order, to the engine with the fewest tokens per rank. Second, the imbalance at h steps ahead has
// the weight 0.9^h. Third, an engine passes over a request for newer ones only until MaxPoolWait.
//
// The end of a request is predicted only from its own limit of tokens. The mean length of other
// responses is no better than chance at predicting which request ends soon.
//
// If responses are so short that a rank completes a request in every step, there is no lookahead: the
// predicted loads lack the requests that replace the completed ones, and the next step can correct
// an imbalance.
//
// The order of the queue decides which requests are in the pool. BF-IO may place the requests of a
// pool in any order.
type BFIO struct {
	options BFIOOptions
	solver  bfio.Solver

	choices        []Choice
	engines        []engineShare
	engineOf       []int // index in engines, by request of the pool
	jobs           []bfio.Job
	requestOf      []int // index in the pool, by job
	workers        []bfio.Worker
	futures        []int64 // predicted loads, by rank and step: the memory of bfio.Worker.Future
	endingTokens   []int64 // context tokens of the requests that end at a step
	endingRequests []int64 // number of these requests

	ties, peerTies rotation
	pools          map[string]int // number of pools so far, by model
	offset         int            // earlier pools of this model; varies which of equal ranks and engines is preferred
}

// engineShare contains the ranks of one engine and its part of the pool.
type engineShare struct {
	from, to int // indices in Pool.Ranks
	free     int // number of free slots
	tokens   int // context tokens of the ranks, including the prompts assigned to the engine
	quota    int // number of requests of the pool that the engine receives
	assigned int // number of requests assigned so far
}

// NewBFIO returns the policy.
func NewBFIO(o BFIOOptions) *BFIO {
	return &BFIO{options: o, pools: map[string]int{}, endingTokens: make([]int64, o.Window+1), endingRequests: make([]int64, o.Window+1)}
}

// Name returns bf-io.
func (*BFIO) Name() string { return "bf-io" }

// Traits returns no traits: the policy uses only loads.
func (*BFIO) Traits() Traits { return Traits{} }

// Choose places a single request on the available replica with the fewest tokens, which keeps the
// highest load lowest. Ties are broken in turn. If no replica is available, it selects the peer
// with the shortest queue.
func (p *BFIO) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	if peer {
		if i := leastLoaded(f, from, to, &p.peerTies, nil); i != none {
			return Choice{Index: i, Reason: ReasonForward}
		}
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	lightest := none
	for i := from; i < to; i++ {
		if c := &f.Candidates[i]; c.Available && (lightest == none || c.ContextTokens < f.Candidates[lightest].ContextTokens) {
			lightest = i
		}
	}
	tokens := f.Candidates[lightest].ContextTokens
	i := p.ties.nextTarget(f, from, to, func(c *Candidate) bool { return c.Available && c.ContextTokens == tokens })
	return Choice{Index: i, Reason: ReasonBalance}
}

// Assign assigns the requests of the pool to ranks.
func (p *BFIO) Assign(pool *Pool) []Choice {
	p.choices = p.choices[:0]
	for range pool.Waiting {
		p.choices = append(p.choices, Choice{Index: Wait, Reason: ReasonNoneAvailable})
	}
	p.offset = p.pools[pool.Model]
	p.pools[pool.Model]++
	p.groupRanks(pool)
	p.assignToEngines(pool)
	for e := range p.engines {
		if p.engines[e].free > 0 && p.engines[e].assigned > 0 {
			p.assignToRanks(pool, e)
		}
	}
	return p.choices
}

// groupRanks groups the ranks by engine and sets the quota of each engine, in proportion to its free
// slots.
func (p *BFIO) groupRanks(pool *Pool) {
	p.engines = p.engines[:0]
	free := 0
	for i := range pool.Ranks {
		r := &pool.Ranks[i]
		if i == 0 || r.Engine != pool.Ranks[i-1].Engine {
			p.engines = append(p.engines, engineShare{from: i, to: i})
		}
		e := &p.engines[len(p.engines)-1]
		e.to++
		e.tokens += r.LoadTokens
		e.free += max(r.FreeSlots, 0)
		free += max(r.FreeSlots, 0)
	}
	remaining := len(pool.Waiting)
	for i := range p.engines {
		e := &p.engines[i]
		e.quota = len(pool.Waiting) * e.free / max(free, 1)
		remaining -= e.quota
	}
	for ; remaining > 0 && free > 0; remaining-- {
		var best *engineShare
		for i := range p.engines {
			e := &p.engines[(i+p.offset)%len(p.engines)]
			if e.free > 0 && (best == nil || e.precedes(best)) {
				best = e
			}
		}
		best.quota++
	}
}

// precedes reports whether e receives one of the remaining requests before o. Requests remain because quotas are
// rounded down.
func (e *engineShare) precedes(o *engineShare) bool {
	if a, b := e.freePerRank(), o.freePerRank(); a != b {
		return a > b
	}
	return e.tokensPerRank() < o.tokensPerRank()
}

// freePerRank returns the mean number of free slots per rank that the quota leaves.
func (e *engineShare) freePerRank() float64 { return float64(e.free-e.quota) / float64(e.to-e.from) }

// tokensPerRank returns the mean number of tokens of a rank, including the prompts assigned to the
// engine.
func (e *engineShare) tokensPerRank() float64 { return float64(e.tokens) / float64(e.to-e.from) }

// assignToEngines assigns each request of the pool to an engine.
func (p *BFIO) assignToEngines(pool *Pool) {
	p.engineOf = p.engineOf[:0]
	for i := range pool.Waiting {
		best := none
		for k := range p.engines {
			e := (k + p.offset) % len(p.engines)
			if x := &p.engines[e]; x.assigned < x.quota && (best == none || x.tokensPerRank() < p.engines[best].tokensPerRank()) {
				best = e
			}
		}
		p.engineOf = append(p.engineOf, best)
		if best != none {
			p.engines[best].assigned++
			p.engines[best].tokens += pool.Waiting[i].PromptTokens
		}
	}
}

// assignToRanks assigns the requests of one engine to its ranks by BF-IO.
func (p *BFIO) assignToRanks(pool *Pool, e int) {
	share := &p.engines[e]
	p.jobs, p.requestOf = p.jobs[:0], p.requestOf[:0]
	for i := range pool.Waiting {
		if p.engineOf[i] == e {
			p.jobs = append(p.jobs, jobOf(&pool.Waiting[i]))
			p.requestOf = append(p.requestOf, i)
		}
	}
	ranks := pool.Ranks[share.from:share.to]
	options := bfio.Defaults(p.window(pool, ranks, share.assigned))
	options.WaitBound = int(p.options.MaxPoolWait / time.Millisecond)
	placement := p.solver.Solve(bfio.Instance{Workers: p.solverWorkers(ranks, options.H), Jobs: p.jobs, Options: options})
	for job, worker := range placement {
		if worker != bfio.Unplaced {
			p.choices[p.requestOf[job]] = Choice{Index: share.from + p.rotated(worker, share.to-share.from), Reason: ReasonBalance}
		}
	}
}

// window returns the number of steps to look ahead for an engine that receives a number of requests: 0 if each of
// its ranks would complete a request in every step.
func (p *BFIO) window(pool *Pool, ranks []Rank, received int) int {
	running, responseTokens := received, 0
	for i := range ranks {
		running += ranks[i].Outstanding
	}
	for i := range pool.Waiting {
		responseTokens += pool.Waiting[i].ExpectedTokens
	}
	if responseTokens == 0 {
		return p.options.Window
	}
	// The mean response takes responseTokens/len(pool.Waiting) steps.
	if endsPerStep := running * len(pool.Waiting) / responseTokens; endsPerStep >= len(ranks) {
		return 0
	}
	return p.options.Window
}

// jobOf converts a waiting request for the solver; waiting time is in milliseconds.
func jobOf(w *WaitingRequest) bfio.Job {
	return bfio.Job{Prefill: int64(w.PromptTokens), Waited: int(w.InPool / time.Millisecond), Remaining: w.MaxTokens}
}

// rotated returns which of n ranks is the solver's worker i. The solver prefers the first of equal
// workers, and the offset varies which rank that is.
func (p *BFIO) rotated(i, n int) int { return (i + p.offset) % n }

// solverWorkers converts the ranks of an engine for the solver.
func (p *BFIO) solverWorkers(ranks []Rank, window int) []bfio.Worker {
	if n := len(ranks) * window; cap(p.futures) < n {
		p.futures = make([]int64, n)
	}
	p.workers = p.workers[:0]
	for i := range ranks {
		future := p.futures[i*window : (i+1)*window : (i+1)*window]
		r := &ranks[p.rotated(i, len(ranks))]
		p.predictLoads(r, future)
		p.workers = append(p.workers, bfio.Worker{Load: int64(r.LoadTokens), Free: r.FreeSlots, Future: future})
	}
	return p.workers
}

// predictLoads sets future to the load of a rank at each step ahead. Every request grows by one token
// per step, and a request that reaches its limit of tokens has ended.
func (p *BFIO) predictLoads(r *Rank, future []int64) {
	clear(p.endingTokens)
	clear(p.endingRequests)
	for i := range r.OutstandingRequests {
		if remaining := r.OutstandingRequests[i].Remaining; remaining > 0 && remaining <= len(future) {
			p.endingTokens[remaining] += int64(r.OutstandingRequests[i].Tokens)
			p.endingRequests[remaining]++
		}
	}
	load, running := int64(r.LoadTokens), int64(r.Outstanding)
	for h := range future {
		load -= p.endingTokens[h+1]
		running -= p.endingRequests[h+1]
		future[h] = max(0, load) + int64(h+1)*running
	}
}
