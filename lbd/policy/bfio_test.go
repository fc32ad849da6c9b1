package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/sim/barrier"
	"skyserve/lbd/bfio"
)

// drawPool returns a small pool: engines of one rank or more, with and without free slots.
func drawPool(t *rapid.T, engines, waiting int) *Pool {
	p := &Pool{Model: "m"}
	for e := range rapid.IntRange(1, engines).Draw(t, "engines") {
		for r := range rapid.IntRange(1, 3).Draw(t, "ranks") {
			rank := Rank{Engine: fmt.Sprint("e", e), FreeSlots: rapid.IntRange(0, 3).Draw(t, "free")}
			rank.ID = fmt.Sprintf("e%d/%d", e, r)
			for range rapid.IntRange(0, 3).Draw(t, "running") {
				run := OutstandingRequest{Tokens: rapid.IntRange(1, 60).Draw(t, "context"), Remaining: rapid.IntRange(0, 6).Draw(t, "left")}
				rank.OutstandingRequests = append(rank.OutstandingRequests, run)
				rank.LoadTokens += run.Tokens
			}
			rank.Outstanding = len(rank.OutstandingRequests)
			p.Ranks = append(p.Ranks, rank)
		}
	}
	for range rapid.IntRange(0, waiting).Draw(t, "waiting") {
		p.Waiting = append(p.Waiting, WaitingRequest{
			PromptTokens: rapid.IntRange(1, 60).Draw(t, "prompt"),
			MaxTokens:    rapid.SampledFrom([]int{0, 1, 3, 100}).Draw(t, "bound"),
			InPool:       time.Duration(rapid.IntRange(0, 4000).Draw(t, "offered")) * time.Millisecond,
		})
	}
	slices.SortStableFunc(p.Waiting, func(a, b WaitingRequest) int { return int(b.InPool - a.InPool) })
	return p
}

func (p *Pool) free() (n int) {
	for i := range p.Ranks {
		n += p.Ranks[i].FreeSlots
	}
	return n
}

// For every pool: no rank receives more requests than its free slots, all requests that fit are
// placed, and the same pool has the same choices.
func TestBFIOFillsExactlyTheFreeSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := drawPool(t, 4, 12)
		choices := slices.Clone(NewBFIO(DefaultBFIO()).Assign(pool))
		if len(choices) != len(pool.Waiting) {
			t.Fatalf("%d choices for %d requests", len(choices), len(pool.Waiting))
		}
		taken, placed := make([]int, len(pool.Ranks)), 0
		for _, c := range choices {
			if c.Index == Wait {
				continue
			}
			placed++
			if taken[c.Index]++; taken[c.Index] > pool.Ranks[c.Index].FreeSlots {
				t.Fatalf("rank %d got %d for %d slots", c.Index, taken[c.Index], pool.Ranks[c.Index].FreeSlots)
			}
		}
		if want := min(len(pool.Waiting), pool.free()); placed != want {
			t.Fatalf("placed %d of %d requests in %d slots", placed, len(pool.Waiting), pool.free())
		}
		if again := NewBFIO(DefaultBFIO()).Assign(pool); !slices.Equal(again, choices) {
			t.Fatalf("first %v, then %v", choices, again)
		}
	})
}

// instance returns BF-IO's problem for a pool of one engine, derived from the paper's definition:
// it predicts an end only at a request's limit of tokens.
func instance(pool *Pool, o BFIOOptions) bfio.Instance {
	in := bfio.Instance{Options: bfio.Defaults(o.Window)}
	in.Options.WaitBound = int(o.MaxPoolWait / time.Millisecond)
	for _, r := range pool.Ranks {
		w := bfio.Worker{Load: int64(r.LoadTokens), Free: r.FreeSlots}
		for h := 1; h <= o.Window; h++ {
			load := 0
			for _, run := range r.OutstandingRequests {
				if run.Remaining == 0 || run.Remaining > h {
					load += run.Tokens + h
				}
			}
			w.Future = append(w.Future, int64(load))
		}
		in.Workers = append(in.Workers, w)
	}
	for _, w := range pool.Waiting {
		in.Jobs = append(in.Jobs, bfio.Job{Prefill: int64(w.PromptTokens), Waited: int(w.InPool / time.Millisecond), Remaining: w.MaxTokens})
	}
	return in
}

// best returns the minimum imbalance of all valid assignments, by enumeration.
func best(in bfio.Instance, assignment []int, job int) float64 {
	if job == len(in.Jobs) {
		if bfio.Check(in, assignment) != nil {
			return -1
		}
		return bfio.Evaluate(in, assignment).Imbalance
	}
	least := -1.0
	for g := bfio.Unplaced; g < len(in.Workers); g++ {
		assignment[job] = g
		if x := best(in, assignment, job+1); x >= 0 && (least < 0 || x < least) {
			least = x
		}
	}
	return least
}

func oneEngine(t *rapid.T) (*Pool, BFIOOptions) {
	pool := drawPool(t, 1, 5)
	return pool, BFIOOptions{Window: rapid.SampledFrom([]int{0, 1, 4}).Draw(t, "window"), MaxPoolWait: 2 * time.Second}
}

func workersOf(choices []Choice) []int {
	var workers []int
	for _, c := range choices {
		workers = append(workers, c.Index)
	}
	return workers
}

// tinyPool is a pool that is small enough to enumerate all assignments.
type tinyPool struct {
	pool    *Pool
	options BFIOOptions
}

var tinyPools = rapid.Custom(func(t *rapid.T) tinyPool {
	pool, o := oneEngine(t)
	return tinyPool{pool, o}
})

// assignTiny assigns a tiny pool. It returns the resulting imbalance, and the minimum of all
// assignments.
func assignTiny(t interface{ Fatalf(string, ...any) }, p tinyPool) (got, least float64) {
	in := instance(p.pool, p.options)
	workers := workersOf(NewBFIO(p.options).Assign(p.pool))
	if err := bfio.Check(in, workers); err != nil {
		t.Fatalf("%v", err)
	}
	got, least = bfio.Evaluate(in, workers).Imbalance, best(in, make([]int, len(in.Jobs)), 0)
	if got < least-1e-9 {
		t.Fatalf("an imbalance of %g, below the least of all, %g", got, least)
	}
	return got, least
}

func TestBFIOAssignsTinyPoolsValidly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { assignTiny(t, tinyPools.Draw(t, "pool")) })
}

// The sum is over fixed pools: that of random ones is above the bound once in a while.
func TestBFIOIsNearOptimum(t *testing.T) {
	sum, optimum := 0.0, 0.0
	for seed := range 400 {
		got, least := assignTiny(t, tinyPools.Example(seed))
		sum, optimum = sum+got, optimum+least
	}
	if sum > 1.02*optimum {
		t.Errorf("imbalance %g in all, the best assignments have %g", sum, optimum)
	}
}

// The order of the ranks and the number of earlier decisions affect which rank receives a request,
// not the balance.
func TestPermutingRanksKeepsTheImbalance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool, o := oneEngine(t)
		in := instance(pool, o)
		p := NewBFIO(o)
		want := bfio.Evaluate(in, workersOf(p.Assign(pool))).Imbalance
		for range rapid.IntRange(0, 3).Draw(t, "turns") {
			p.Assign(pool)
		}
		order := rapid.Permutation(slices.Collect(func(yield func(int) bool) {
			for i := range pool.Ranks {
				if !yield(i) {
					return
				}
			}
		})).Draw(t, "order")
		other := *pool
		other.Ranks = nil
		for _, i := range order {
			other.Ranks = append(other.Ranks, pool.Ranks[i])
		}
		if got := bfio.Evaluate(instance(&other, o), workersOf(p.Assign(&other))).Imbalance; got < want-1e-6 || got > want+1e-6 {
			t.Fatalf("imbalance %g with the ranks in order %v, %g before", got, order, want)
		}
	})
}

// A request that is passed over repeatedly is sent eventually, including a long prompt that fits
// badly.
func TestBFIOStarvesNoRequest(t *testing.T) {
	o := DefaultBFIO()
	p := NewBFIO(o)
	pool := &Pool{Ranks: []Rank{{Engine: "e", LoadTokens: 1000, FreeSlots: 1}, {Engine: "e", LoadTokens: 1000}}}
	at := time.Duration(0)
	for ; ; at += 100 * time.Millisecond {
		pool.Waiting = []WaitingRequest{{PromptTokens: 900, InPool: at}, {PromptTokens: 10}, {PromptTokens: 20}}
		choices := p.Assign(pool)
		if choices[0].Index == 0 {
			break
		}
		if at > o.MaxPoolWait {
			t.Fatalf("the long prompt still waits after %v", at)
		}
	}
	if at < o.MaxPoolWait {
		t.Errorf("the long prompt went after %v, before the short ones that fit", at)
	}
}

// Engines do not wait for each other: each receives a share by its free slots. If these are equal,
// the one with fewer tokens per rank receives the first request.
func TestBFIOSplitsPoolBetweenEngines(t *testing.T) {
	pool := &Pool{Ranks: []Rank{
		{Engine: "a", LoadTokens: 100, FreeSlots: 4},
		{Engine: "a", LoadTokens: 100, FreeSlots: 4},
		{Engine: "b", LoadTokens: 100, FreeSlots: 2},
		{Engine: "b", LoadTokens: 100, FreeSlots: 2},
	}}
	for range 6 {
		pool.Waiting = append(pool.Waiting, WaitingRequest{PromptTokens: 10})
	}
	got := map[string]int{}
	for _, c := range NewBFIO(DefaultBFIO()).Assign(pool) {
		got[pool.Ranks[c.Index].Engine]++
	}
	if got["a"] != 4 || got["b"] != 2 {
		t.Errorf("got %v of 6 requests for 8 and 4 free slots", got)
	}
	pool = &Pool{
		Ranks:   []Rank{{Engine: "a", LoadTokens: 500, FreeSlots: 1}, {Engine: "b", LoadTokens: 100, FreeSlots: 1}},
		Waiting: []WaitingRequest{{PromptTokens: 10}, {PromptTokens: 300}},
	}
	pool.Waiting[0], pool.Waiting[1] = pool.Waiting[1], pool.Waiting[0]
	if c := NewBFIO(DefaultBFIO()).Assign(pool); c[0].Index != 1 || c[1].Index != 0 {
		t.Errorf("got %v", c)
	}
}

// A single request causes the same imbalance as in a pool.
func TestBFIOPlacesOneRequestAsAPoolOfOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := drawPool(t, 1, 0)
		if pool.free() == 0 {
			return
		}
		pool.Waiting = []WaitingRequest{{PromptTokens: rapid.IntRange(1, 60).Draw(t, "prompt")}}
		o := BFIOOptions{}
		facts := &Facts{PromptTokens: pool.Waiting[0].PromptTokens}
		for _, r := range pool.Ranks {
			facts.Candidates = append(facts.Candidates, Candidate{ID: r.ID, Live: true, Available: r.FreeSlots > 0, ContextTokens: r.LoadTokens})
		}
		in := instance(pool, o)
		one := bfio.Evaluate(in, []int{NewBFIO(o).Choose(facts).Index}).Imbalance
		if all := bfio.Evaluate(in, workersOf(NewBFIO(o).Assign(pool))).Imbalance; one != all {
			t.Fatalf("an imbalance of %g by itself, %g as a pool", one, all)
		}
	})
}

func TestBFIOForwardsOnlyWithoutCapacity(t *testing.T) {
	peer := Candidate{ID: "eu", Peer: true, Live: true, Available: true}
	full := Candidate{ID: "r", Live: true}
	p := NewBFIO(DefaultBFIO())
	if c := p.Choose(&Facts{Candidates: []Candidate{full, peer}}); c.Index != 1 || c.Reason != ReasonForward {
		t.Errorf("beside a full replica: %+v", c)
	}
	peer.Available = false
	if c := p.Choose(&Facts{Candidates: []Candidate{full, peer}}); c.Index != Wait {
		t.Errorf("with nothing available: %+v", c)
	}
}

// steadyPool returns an engine of G ranks of 72 slots, some of them free, and a full pool.
func steadyPool(ranks int) *Pool {
	rng := rand.New(rand.NewPCG(1, 2))
	p := &Pool{Model: "m"}
	for g := range ranks {
		r := Rank{Engine: "e"}
		r.ID = fmt.Sprintf("e/%03d", g)
		if r.FreeSlots = rng.IntN(2); g < 4 {
			r.FreeSlots = 1
		}
		for range 72 - r.FreeSlots {
			prompt, output := barrier.SyntheticLengths(rng)
			had := rng.Int64N(output + 1)
			r.OutstandingRequests = append(r.OutstandingRequests, OutstandingRequest{Tokens: int(prompt + had), Remaining: 1 + rng.IntN(1000)})
			r.LoadTokens += int(prompt + had)
		}
		r.Outstanding = len(r.OutstandingRequests)
		p.Ranks = append(p.Ranks, r)
	}
	for i := range 128 {
		prompt, _ := barrier.SyntheticLengths(rng)
		p.Waiting = append(p.Waiting, WaitingRequest{PromptTokens: int(prompt), MaxTokens: 4096, InPool: time.Duration(128-i) * 10 * time.Millisecond})
	}
	return p
}

// BenchmarkAssign measures one decision for a pool of 128, with a free slot at about half of the ranks.
func BenchmarkAssign(b *testing.B) {
	for _, ranks := range []int{16, 64, 256} {
		for _, window := range []int{0, 4, 8, 16, 20} {
			b.Run(fmt.Sprintf("G=%d/H=%d", ranks, window), func(b *testing.B) {
				o := DefaultBFIO()
				o.Window = window
				p, pool := NewBFIO(o), steadyPool(ranks)
				b.ReportAllocs()
				for b.Loop() {
					p.Assign(pool)
				}
			})
		}
	}
}

func TestAssignDoesNotAllocate(t *testing.T) {
	p, pool := NewBFIO(DefaultBFIO()), steadyPool(16)
	p.Assign(pool)
	if n := testing.AllocsPerRun(20, func() { p.Assign(pool) }); n != 0 {
		t.Errorf("a decision allocates %v times", n)
	}
}
