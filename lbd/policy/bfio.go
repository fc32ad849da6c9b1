package policy

import (
	"time"

	"skyserve/lbd/bfio"
)

// ReasonBalance is the reason of a choice that balances the ranks of an engine.
const ReasonBalance = "balance"

// BFIOOptions contains the parameters of BF-IO.
type BFIOOptions struct {
	// Window is the number of lookahead steps, one step per token; 0 = no lookahead. With short answers there
	// is none either: see BFIO.
	Window int
	// MaxPoolWait is the time in the pool after which a request precedes all newer ones. Without it,
	// long prompts starve.
	MaxPoolWait time.Duration
}

// DefaultBFIO returns the options that services run with.
func DefaultBFIO() BFIOOptions {
	return BFIOOptions{Window: 16, MaxPoolWait: 2500 * time.Millisecond}
}

// BFIO assigns the whole pool so that the ranks of each engine stay as balanced in tokens as
// possible over a short window: BF-IO, section 4 of the paper. At every step, all ranks of an
// engine wait for the one with the most tokens.
//
// The paper covers one engine whose waiting requests are all in one pool. This implementation has
// three extensions. First, several engines, which do not wait for each other: each receives a part
// of the pool proportional to its free slots. Requests are distributed in queue order to the
// engine with the fewest tokens per rank, and BF-IO decides inside each engine. Second, weights of
// 0.9^h for the steps ahead. Third, a limit on the time for which a request can be passed over. A
// completion is predicted only from the request's own bound on its answer. The mean length of
// other answers is no better than chance at predicting which request ends soon.
//
// If answers are so short that a rank completes a request in every step, there is no lookahead: the predicted
// loads lack the requests that replace the completed ones, and the next step can correct an imbalance.
//
// The order of the queue decides which requests are in the pool. BF-IO may place those in any order.
// Peers are used for requests without a free slot here.
type BFIO struct {
	options BFIOOptions
	solver  bfio.Solver

	choices        []Choice
	engines        []engineShare
	engineOf       []int // by request
	jobs           []bfio.Job
	requestOf      []int // by job
	workers        []bfio.Worker
	futures        []int64
	endingTokens   []int64 // tokens, and number, of requests that end, by step
	endingRequests []int64

	ties, peers rotation
	turn        int // index of the first rank and engine for the next pool, where loads are equal
}

// engineShare contains the ranks of one engine and its part of the pool.
type engineShare struct {
	from, to int // indices in Pool.Ranks
	free     int
	tokens   int // loads, including the prompts assigned to it
	quota    int // number of requests of the pool for it
	assigned int
}

// NewBFIO returns the policy.
func NewBFIO(o BFIOOptions) *BFIO {
	return &BFIO{options: o, endingTokens: make([]int64, o.Window+1), endingRequests: make([]int64, o.Window+1)}
}

// Name returns bf-io.
func (*BFIO) Name() string { return "bf-io" }

// Traits returns no requirements: the loads are enough.
func (*BFIO) Traits() Traits { return Traits{} }

// Choose places a single request, a pool of one, on the available replica with the fewest tokens:
// this increases the highest load by the smallest amount. Ties rotate. If none has capacity, it
// selects the peer with the shortest queue.
func (p *BFIO) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	if peer {
		if i := leastLoaded(f.Candidates, from, to, &p.peers, nil); i != Wait {
			return Choice{Index: i, Reason: ReasonForward}
		}
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	lightest := Wait
	for i := from; i < to; i++ {
		if c := &f.Candidates[i]; c.Available && (lightest == Wait || c.Context < f.Candidates[lightest].Context) {
			lightest = i
		}
	}
	tokens := f.Candidates[lightest].Context
	i := p.ties.nextTarget(f.Candidates, from, to, func(c *Candidate) bool { return c.Available && c.Context == tokens })
	return Choice{Index: i, Reason: ReasonBalance}
}

// Assign decides for the pool.
func (p *BFIO) Assign(pool *Pool) []Choice {
	p.choices = p.choices[:0]
	for range pool.Waiting {
		p.choices = append(p.choices, Choice{Index: Wait, Reason: ReasonNoneAvailable})
	}
	p.splitEngines(pool)
	p.distribute(pool)
	for e := range p.engines {
		if p.engines[e].free > 0 && p.engines[e].assigned > 0 {
			p.assignEngine(pool, e)
		}
	}
	p.turn++
	return p.choices
}

// splitEngines determines the ranks of each engine and its quota of the pool: proportional to its
// free slots.
func (p *BFIO) splitEngines(pool *Pool) {
	p.engines = p.engines[:0]
	free := 0
	for i := range pool.Ranks {
		r := &pool.Ranks[i]
		if i == 0 || r.Engine != pool.Ranks[i-1].Engine {
			p.engines = append(p.engines, engineShare{from: i, to: i})
		}
		e := &p.engines[len(p.engines)-1]
		e.to++
		e.tokens += r.Load
		e.free += max(r.Free, 0)
		free += max(r.Free, 0)
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
			e := &p.engines[(i+p.turn)%len(p.engines)]
			if e.free > 0 && (best == nil || e.precedes(best)) {
				best = e
			}
		}
		best.quota++
	}
}

// precedes reports whether e precedes o for the requests that remain after rounding down.
func (e *engineShare) precedes(o *engineShare) bool {
	if a, b := e.freePerRank(), o.freePerRank(); a != b {
		return a > b
	}
	return e.tokensPerRank() < o.tokensPerRank()
}

// freePerRank returns the mean number of remaining slots per rank.
func (e *engineShare) freePerRank() float64 { return float64(e.free-e.quota) / float64(e.to-e.from) }

// tokensPerRank returns the mean load of a rank, including the prompts assigned to the engine.
func (e *engineShare) tokensPerRank() float64 { return float64(e.tokens) / float64(e.to-e.from) }

// distribute assigns each request of the pool to an engine.
func (p *BFIO) distribute(pool *Pool) {
	p.engineOf = p.engineOf[:0]
	for i := range pool.Waiting {
		best := Wait
		for k := range p.engines {
			e := (k + p.turn) % len(p.engines)
			if x := &p.engines[e]; x.assigned < x.quota && (best == Wait || x.tokensPerRank() < p.engines[best].tokensPerRank()) {
				best = e
			}
		}
		p.engineOf = append(p.engineOf, best)
		if best != Wait {
			p.engines[best].assigned++
			p.engines[best].tokens += pool.Waiting[i].PromptTokens
		}
	}
}

// assignEngine assigns the requests of one engine to its ranks by BF-IO.
func (p *BFIO) assignEngine(pool *Pool, e int) {
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
	answer := p.solver.Solve(bfio.Instance{Workers: p.solverWorkers(ranks, options.H), Jobs: p.jobs, Options: options})
	for job, worker := range answer {
		if worker != bfio.Unplaced {
			p.choices[p.requestOf[job]] = Choice{Index: share.from + p.rotated(worker, share.to-share.from), Reason: ReasonBalance}
		}
	}
}

// window returns the number of steps to look ahead for an engine that receives some requests: none if its ranks
// then complete a request in every step.
func (p *BFIO) window(pool *Pool, ranks []Rank, received int) int {
	running, answers := received, 0
	for i := range ranks {
		running += ranks[i].Outstanding
	}
	for i := range pool.Waiting {
		answers += pool.Waiting[i].ExpectedTokens
	}
	if answers > 0 && running*len(pool.Waiting) >= answers*len(ranks) {
		return 0
	}
	return p.options.Window
}

// jobOf converts a waiting request for the solver; waiting time is in milliseconds.
func jobOf(w *Waiting) bfio.Job {
	return bfio.Job{Prefill: int64(w.PromptTokens), Waited: int(w.InPool / time.Millisecond), Remaining: w.MaxTokens}
}

// rotated returns which of n ranks is the solver's i-th worker. The solver prefers the first of
// equal workers, and the rotation varies which rank that is.
func (p *BFIO) rotated(i, n int) int { return (i + p.turn) % n }

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
		p.workers = append(p.workers, bfio.Worker{Load: int64(r.Load), Free: r.Free, Future: future})
	}
	return p.workers
}

// predictLoads sets the load of a rank at each step ahead: every request grows by a token per step,
// and those that reach their bound have ended.
func (p *BFIO) predictLoads(r *Rank, future []int64) {
	clear(p.endingTokens)
	clear(p.endingRequests)
	for i := range r.Running {
		if remaining := r.Running[i].Remaining; remaining > 0 && remaining <= len(future) {
			p.endingTokens[remaining] += int64(r.Running[i].Tokens)
			p.endingRequests[remaining]++
		}
	}
	load, running := int64(r.Load), int64(r.Outstanding)
	for h := range future {
		load -= p.endingTokens[h+1]
		running -= p.endingRequests[h+1]
		future[h] = max(0, load) + int64(h+1)*running
	}
}
