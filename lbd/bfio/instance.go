package bfio

import (
	"fmt"
	"math"
)

// Unplaced is the worker of a job that stays in the queue.
const Unplaced = -1

// decay is the default weight of a step over the weight of the step before it.
const decay = 0.9

// Worker is the state of a worker before a decision.
type Worker struct {
	// Load is the number of tokens resident now, without the jobs to place.
	Load int64
	// Free is the number of free slots; a negative number counts as zero.
	Free int
	// Future[h-1] is the load in tokens predicted h steps from now, without the jobs to place: each
	// active request grows by the drift, and requests predicted to complete are removed. If it is
	// shorter than the window, its last value (Load, if it is empty) applies to the missing steps.
	Future []int64
}

// loadAt returns the worker's own load h steps from now.
func (w *Worker) loadAt(h int) int64 {
	if h = min(h, len(w.Future)); h > 0 {
		return w.Future[h-1]
	}
	return w.Load
}

// Job is a request that waits for a worker. Jobs are identified by their index; of two jobs with
// equal waiting time, the one with the lower index is older.
type Job struct {
	// Prefill is the number of tokens that the job adds to its worker.
	Prefill int64
	// Waited is how long the job has waited, in steps or in another unit of time; WaitBound has the same unit.
	Waited int
	// Remaining is the predicted number of steps until the job ends. 0 means unknown; the solver
	// then assumes that the job runs longer than the window.
	Remaining int
}

// Options configures the objective and the effort.
type Options struct {
	// H is the window of lookahead in steps beyond the current one.
	H int
	// Weights[h] is the weight of step h, at least 0; missing steps have weight 0. Nil means 0.9^h.
	Weights []float64
	// Drift is the number of tokens by which a placed job grows per step: 1 in decoding, 0 if the load
	// is constant (section 5.1 of the paper).
	Drift int64
	// WaitBound is the value of Job.Waited from which a waiting job precedes all that waited less; 0
	// means no bound.
	WaitBound int
	// Passes is the maximum number of improvement rounds after the seed, and again after each change of the
	// skyline, which is the peak load of each step (lift.go).
	Passes int
}

// Defaults returns the options for a window of h steps in decoding: weights 0.9^h, one token of
// drift, no bound on the wait, four passes.
func Defaults(h int) Options {
	return Options{H: h, Drift: 1, Passes: 4}
}

// weight returns the weight of step h.
func (o *Options) weight(h int) float64 {
	switch {
	case o.Weights == nil:
		return math.Pow(decay, float64(h))
	case h < len(o.Weights):
		return o.Weights[h]
	}
	return 0
}

// Instance is one decision to make. Loads are exact up to 2^53 tokens.
type Instance struct {
	Workers []Worker
	Jobs    []Job
	Options Options
}

// Places returns the number of jobs that a decision places: all jobs, or as many as there
// are free slots.
func (in *Instance) Places() int {
	free := 0
	for _, w := range in.Workers {
		free += min(max(w.Free, 0), len(in.Jobs))
	}
	return min(free, len(in.Jobs))
}

// size returns the number of tokens of a placed job h steps from now.
func (in *Instance) size(job, h int) int64 {
	j := &in.Jobs[job]
	if j.Remaining > 0 && h >= j.Remaining {
		return 0
	}
	return j.Prefill + int64(h)*in.Options.Drift
}

// Cost is the cost of an assignment over the window, in tokens.
type Cost struct {
	// Imbalance is J, the objective of (IO) with the imbalance of equation (2): the sum
	// over the steps of weight * (workers * highest load - sum of the loads).
	Imbalance float64
	// Peak is the sum over the steps of weight * highest load.
	Peak float64
}

// Evaluate computes the cost of an assignment, one worker index or Unplaced per job, directly from
// the definition. It does not check the constraints; see Check.
func Evaluate(in Instance, assignment []int) Cost {
	var cost Cost
	loads := make([]int64, len(in.Workers))
	for h := 0; h <= in.Options.H && len(loads) > 0; h++ {
		for g := range loads {
			loads[g] = in.Workers[g].loadAt(h)
		}
		for job, g := range assignment {
			if g != Unplaced {
				loads[g] += in.size(job, h)
			}
		}
		peak, sum := loads[0], int64(0)
		for _, l := range loads {
			peak, sum = max(peak, l), sum+l
		}
		weight := in.Options.weight(h)
		cost.Imbalance += weight * float64(int64(len(loads))*peak-sum)
		cost.Peak += weight * float64(peak)
	}
	return cost
}

// Check returns an error if an assignment violates the constraints of (IO) or the bound on the
// wait.
func Check(in Instance, assignment []int) error {
	if len(assignment) != len(in.Jobs) {
		return fmt.Errorf("checking an assignment: must have one worker for each of %d jobs, got %d", len(in.Jobs), len(assignment))
	}
	taken := make([]int, len(in.Workers))
	placed := 0
	for job, g := range assignment {
		if g == Unplaced {
			continue
		}
		if g < 0 || g >= len(taken) {
			return fmt.Errorf("checking an assignment: job %d: worker must be from 0 to %d, got %d", job, len(taken)-1, g)
		}
		taken[g]++
		placed++
	}
	for g, n := range taken {
		if free := max(in.Workers[g].Free, 0); n > free {
			return fmt.Errorf("checking an assignment: worker %d must have at most %d jobs, got %d", g, free, n)
		}
	}
	if want := in.Places(); placed != want {
		return fmt.Errorf("checking an assignment: must place %d jobs, got %d", want, placed)
	}
	return in.checkWait(assignment)
}

// checkWait returns an error if a job that has reached the bound is not placed while one that waited less is.
func (in *Instance) checkWait(assignment []int) error {
	bound := in.Options.WaitBound
	if bound <= 0 {
		return nil
	}
	unplaced, placed := Unplaced, Unplaced
	for job, g := range assignment {
		waited := in.Jobs[job].Waited
		if g == Unplaced && waited >= bound && (unplaced == Unplaced || waited > in.Jobs[unplaced].Waited) {
			unplaced = job
		}
		if g != Unplaced && (placed == Unplaced || waited < in.Jobs[placed].Waited) {
			placed = job
		}
	}
	if unplaced != Unplaced && placed != Unplaced && in.Jobs[placed].Waited < in.Jobs[unplaced].Waited {
		return fmt.Errorf("checking an assignment: job %d waited %d, at least the bound of %d, but is not placed while job %d, which waited %d, is",
			unplaced, in.Jobs[unplaced].Waited, bound, placed, in.Jobs[placed].Waited)
	}
	return nil
}
