package policy

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"skyserve/internal/sim/barrier"
)

// imbalance runs an engine of 16 ranks that never lacks requests, and returns how many fewer tokens the others
// have than the fullest rank, summed over the second half of the steps. Clients bound their responses exactly.
func imbalance(window int, mean float64, steps int) int {
	const ranks, slots = 16, 72
	rng := rand.New(rand.NewPCG(7, 7))
	o := DefaultBFIO()
	o.Window = window
	p, pool := NewBFIO(o), &Pool{Ranks: make([]Rank, ranks)}
	for i := range pool.Ranks {
		pool.Ranks[i].Engine = "e"
	}
	sum := 0
	for step := range steps {
		for len(pool.Waiting) < max(128, (1-step)*ranks*slots) { // all slots start full
			prompt, _ := barrier.SyntheticLengths(rng)
			pool.Waiting = append(pool.Waiting, WaitingRequest{PromptTokens: int(prompt), MaxTokens: 1 + int(mean*rng.ExpFloat64()), ExpectedTokens: int(mean)})
		}
		highest, total := 0, 0
		for i := range pool.Ranks {
			r := &pool.Ranks[i]
			r.FreeSlots, r.Outstanding, r.LoadTokens = slots-len(r.OutstandingRequests), len(r.OutstandingRequests), 0
			for _, run := range r.OutstandingRequests {
				r.LoadTokens += run.Tokens
			}
		}
		kept := pool.Waiting[:0]
		for k, c := range p.Assign(pool) {
			w := pool.Waiting[k]
			if c.Index == Wait {
				kept = append(kept, w)
				continue
			}
			r := &pool.Ranks[c.Index]
			r.OutstandingRequests = append(r.OutstandingRequests, OutstandingRequest{w.PromptTokens, w.MaxTokens})
			r.LoadTokens += w.PromptTokens
		}
		pool.Waiting = kept
		for i := range pool.Ranks {
			r := &pool.Ranks[i]
			highest, total = max(highest, r.LoadTokens), total+r.LoadTokens
			running := r.OutstandingRequests[:0]
			for _, run := range r.OutstandingRequests {
				if run.Remaining > 1 {
					running = append(running, OutstandingRequest{run.Tokens + 1, run.Remaining - 1})
				}
			}
			r.OutstandingRequests = running
		}
		if step >= steps/2 {
			sum += ranks*highest - total
		}
	}
	return sum
}

// Complaint: with responses of tens of tokens, looking ahead balances worse than not looking ahead.
func TestLookaheadIsNoWorseOnShortResponses(t *testing.T) {
	for _, mean := range []float64{5, 13, 30, 50} {
		if none, ahead := imbalance(0, mean, 120), imbalance(DefaultBFIO().Window, mean, 120); ahead > none {
			t.Errorf("responses of %v tokens: an imbalance of %d with lookahead, %d without", mean, ahead, none)
		}
	}
}

// BenchmarkAssignShortResponses measures one decision for code completion: five of the 72 slots of each rank become
// free in every step.
func BenchmarkAssignShortResponses(b *testing.B) {
	for _, ranks := range []int{16, 64, 256} {
		b.Run(fmt.Sprintf("G=%d", ranks), func(b *testing.B) {
			p, pool := NewBFIO(DefaultBFIO()), steadyPool(ranks)
			for i := range pool.Ranks {
				r := &pool.Ranks[i]
				r.FreeSlots, r.Outstanding = 5, 67
			}
			for i := range pool.Waiting {
				pool.Waiting[i].MaxTokens, pool.Waiting[i].ExpectedTokens = 13, 13
			}
			b.ReportAllocs()
			for b.Loop() {
				p.Assign(pool)
			}
		})
	}
}
