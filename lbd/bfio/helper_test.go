package bfio

import (
	"math"
	"math/rand/v2"
	"slices"

	"pgregory.net/rapid"
)

// draw returns a whole number in lo..hi.
type draw func(lo, hi int) int

func drawRapid(t *rapid.T) draw {
	return func(lo, hi int) int { return rapid.IntRange(lo, hi).Draw(t, "n") }
}

func drawSeeded(seed uint64) draw {
	rng := rand.New(rand.NewPCG(seed, 1))
	return func(lo, hi int) int { return lo + rng.IntN(hi-lo+1) }
}

// instance draws an instance with up to this number of workers and jobs, with all features:
// windows, completions, predictions and bounds.
func instance(n draw, workers, jobs int) Instance {
	options := Defaults(n(0, 3))
	options.Drift = int64(n(0, 3))
	if n(0, 2) == 0 {
		options.WaitBound = n(1, 6)
	}
	in := Instance{Options: options}
	for range n(1, workers) {
		w := Worker{Load: int64(n(0, 200)), Free: n(0, 3)}
		for range n(0, options.H) {
			w.Future = append(w.Future, w.Load+int64(n(-60, 20)))
		}
		in.Workers = append(in.Workers, w)
	}
	for range n(0, jobs) {
		in.Jobs = append(in.Jobs, Job{Prefill: int64(n(1, 120)), Waited: n(0, 9), Remaining: max(0, n(-4, 5))})
	}
	return in
}

// exact returns the optimum by enumeration: the reference.
func exact(in Instance) (Cost, []int) {
	best := Cost{Imbalance: math.Inf(1)}
	var answer []int
	assignment := make([]int, len(in.Jobs))
	var try func(job int)
	try = func(job int) {
		if job == len(assignment) {
			if Check(in, assignment) == nil {
				if c := Evaluate(in, assignment); c.Imbalance < best.Imbalance {
					best, answer = c, slices.Clone(assignment)
				}
			}
			return
		}
		for g := Unplaced; g < len(in.Workers); g++ {
			assignment[job] = g
			try(job + 1)
		}
	}
	try(0)
	return best, answer
}

// gap returns the distance of a cost from the optimum, relative to the total cost of the barrier:
// workers times the weighted highest load.
func gap(in Instance, got, best Cost) float64 {
	return (got.Imbalance - best.Imbalance) / max(1, float64(len(in.Workers))*best.Peak)
}

func solved(t interface{ Fatal(args ...any) }, in Instance) ([]int, Cost) {
	answer := new(Solver).Solve(in)
	if err := Check(in, answer); err != nil {
		t.Fatal(err)
	}
	return answer, Evaluate(in, answer)
}
