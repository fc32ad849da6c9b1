package policy

import (
	"time"

	"skyserve/lbd/bfio"
)

// ReasonBalance is the reason of a choice that keeps the ranks of an engine even.
const ReasonBalance = "balance"

// BFIOOptions says how BF-IO decides.
type BFIOOptions struct {
	// Window is how many steps it looks ahead, a step being a token; 0 is none.
	Window int
	// Patience is after how long in the pool a request goes before all that were
	// offered for less. Without it long prompts starve.
	Patience time.Duration
}

// DefaultBFIO are the options that services run with.
func DefaultBFIO() BFIOOptions {
	return BFIOOptions{Window: 16, Patience: 2500 * time.Millisecond}
}

// BFIO assigns the whole pool so that the ranks of each engine stay as even in
// tokens as they can over a short window: BF-IO, section 4 of the paper. All
// ranks of an engine wait for the one with the most tokens at every step.
//
// The paper covers one engine whose waiting requests are all in one pool. Several
// engines, which do not wait for each other, are ours: each gets a part of the
// pool by its share of the free slots, dealt out in queue order to the engine
// with the fewest tokens per rank, and BF-IO decides inside each. So do we weigh
// the steps ahead by 0.9^h, bound how long a request is passed over, and take a
// completion as foreseen only where the request's own bound on its answer says
// so: the mean length of the others' answers tells a request that ends soon from
// one that does not no better than chance.
//
// The queue's order says who is in the pool; inside it BF-IO takes whom it wants.
// Peers are for requests that find no free slot here.
type BFIO struct {
	o      BFIOOptions
	solver bfio.Solver

	choices []Choice
	engines []engineShare
	dealt   []int // by request: its engine
	jobs    []bfio.Job
	who     []int // by job: its request
	workers []bfio.Worker
	futures []int64
	gone    []int64 // tokens and requests that end, by step
	ended   []int64

	ties, peers rotation
	turn        int // at whom the next pool begins, where loads are equal
}

// engineShare is the ranks of one engine and its part of the pool.
type engineShare struct {
	from, to int // into Pool.Ranks
	free     int
	tokens   int // loads, and the prompts dealt to it
	quota    int // requests of the pool that are for it
	dealt    int
}

// NewBFIO makes the policy.
func NewBFIO(o BFIOOptions) *BFIO {
	return &BFIO{o: o, gone: make([]int64, o.Window+1), ended: make([]int64, o.Window+1)}
}

// Name is bf-io.
func (*BFIO) Name() string { return "bf-io" }

// Traits says that it needs nothing beside the loads.
func (*BFIO) Traits() Traits { return Traits{} }

// Choose places a single request, a pool of one: on the available replica with
// the fewest tokens, which raises the highest load least; ties rotate. Where none
// has room it takes the peer with the shortest queue.
func (p *BFIO) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	if peer {
		if i := leastLoaded(f.Candidates, from, to, &p.peers, nil); i != Wait {
			return Choice{Index: i, Reason: ReasonOffload}
		}
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	least := Wait
	for i := from; i < to; i++ {
		if c := &f.Candidates[i]; c.Available && (least == Wait || c.Context < f.Candidates[least].Context) {
			least = i
		}
	}
	tokens := f.Candidates[least].Context
	i := p.ties.next(f.Candidates, from, to, func(c *Candidate) bool { return c.Available && c.Context == tokens })
	return Choice{Index: i, Reason: ReasonBalance}
}

// Assign decides for the pool.
func (p *BFIO) Assign(pool *Pool) []Choice {
	p.choices = p.choices[:0]
	for range pool.Waiting {
		p.choices = append(p.choices, Choice{Index: Wait, Reason: ReasonNoneAvailable})
	}
	p.splitEngines(pool)
	p.deal(pool)
	for e := range p.engines {
		if p.engines[e].free > 0 && p.engines[e].dealt > 0 {
			p.assignEngine(pool, e)
		}
	}
	p.turn++
	return p.choices
}

// splitEngines finds the ranks of each engine and how many of the pool's
// requests are for it: its share of the free slots.
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
	left := len(pool.Waiting)
	for i := range p.engines {
		e := &p.engines[i]
		e.quota = len(pool.Waiting) * e.free / max(free, 1)
		left -= e.quota
	}
	for ; left > 0 && free > 0; left-- {
		var best *engineShare
		for i := range p.engines {
			e := &p.engines[(i+p.turn)%len(p.engines)]
			if e.free > 0 && (best == nil || e.goesBefore(best)) {
				best = e
			}
		}
		best.quota++
	}
}

// goesBefore says which of two engines gets a request that rounding left over.
func (e *engineShare) goesBefore(o *engineShare) bool {
	if a, b := e.freePerRank(), o.freePerRank(); a != b {
		return a > b
	}
	return e.perRank() < o.perRank()
}

// freePerRank is how many slots a rank has left on average.
func (e *engineShare) freePerRank() float64 { return float64(e.free-e.quota) / float64(e.to-e.from) }

// perRank is the mean load of a rank, with the prompts dealt to the engine.
func (e *engineShare) perRank() float64 { return float64(e.tokens) / float64(e.to-e.from) }

// deal gives each request of the pool to an engine.
func (p *BFIO) deal(pool *Pool) {
	p.dealt = p.dealt[:0]
	for i := range pool.Waiting {
		best := Wait
		for k := range p.engines {
			e := (k + p.turn) % len(p.engines)
			if x := &p.engines[e]; x.dealt < x.quota && (best == Wait || x.perRank() < p.engines[best].perRank()) {
				best = e
			}
		}
		p.dealt = append(p.dealt, best)
		if best != Wait {
			p.engines[best].dealt++
			p.engines[best].tokens += pool.Waiting[i].PromptTokens
		}
	}
}

// assignEngine lets BF-IO decide between the ranks of one engine.
func (p *BFIO) assignEngine(pool *Pool, e int) {
	share := &p.engines[e]
	p.jobs, p.who = p.jobs[:0], p.who[:0]
	for i := range pool.Waiting {
		if p.dealt[i] == e {
			p.jobs = append(p.jobs, jobOf(&pool.Waiting[i]))
			p.who = append(p.who, i)
		}
	}
	options := bfio.Defaults(p.o.Window)
	options.WaitBound = int(p.o.Patience / time.Millisecond)
	answer := p.solver.Solve(bfio.Instance{Workers: p.see(pool.Ranks[share.from:share.to]), Jobs: p.jobs, Options: options})
	for job, worker := range answer {
		if worker != bfio.Unplaced {
			p.choices[p.who[job]] = Choice{Index: share.from + p.rotated(worker, share.to-share.from), Reason: ReasonBalance}
		}
	}
}

// jobOf is a waiting request as the solver sees it; it counts waiting in
// milliseconds.
func jobOf(w *Waiting) bfio.Job {
	return bfio.Job{Prefill: int64(w.PromptTokens), Waited: int(w.Offered / time.Millisecond), Remaining: w.MaxTokens}
}

// rotated is which of n ranks the solver's i-th worker is: of equals it takes the
// first, and no rank shall always be that.
func (p *BFIO) rotated(i, n int) int { return (i + p.turn) % n }

// see is the ranks of an engine as the solver sees them.
func (p *BFIO) see(ranks []Rank) []bfio.Worker {
	if n := len(ranks) * p.o.Window; cap(p.futures) < n {
		p.futures = make([]int64, n)
	}
	p.workers = p.workers[:0]
	for i := range ranks {
		future := p.futures[i*p.o.Window : (i+1)*p.o.Window : (i+1)*p.o.Window]
		r := &ranks[p.rotated(i, len(ranks))]
		p.foresee(r, future)
		p.workers = append(p.workers, bfio.Worker{Load: int64(r.Load), Free: r.Free, Future: future})
	}
	return p.workers
}

// foresee fills in a rank's load at each step ahead: every request grows by a
// token a step, and those whose bound is reached are gone.
func (p *BFIO) foresee(r *Rank, future []int64) {
	clear(p.gone)
	clear(p.ended)
	for i := range r.Running {
		if left := r.Running[i].Left; left > 0 && left <= len(future) {
			p.gone[left] += int64(r.Running[i].Tokens)
			p.ended[left]++
		}
	}
	load, running := int64(r.Load), int64(r.Outstanding)
	for h := range future {
		load -= p.gone[h+1]
		running -= p.ended[h+1]
		future[h] = max(0, load) + int64(h+1)*running
	}
}
