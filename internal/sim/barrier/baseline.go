package barrier

import (
	"slices"

	"skyserve/lbd/bfio"
)

// Policy decides an instance: it returns, for each job, its worker's index or Unplaced. The result is
// valid until the next call. (*Solver).Solve is a Policy.
type Policy func(in bfio.Instance) []int

// FCFS returns first come, first served (appendix B of the paper): it fills workers in index order with
// jobs in order of age.
func FCFS() Policy {
	var answer []int
	return func(in bfio.Instance) []int {
		answer = inOrder(answer, in)
		g, taken := 0, 0
		for i := range answer[:in.Places()] {
			for taken >= in.Workers[g].Free {
				g, taken = g+1, 0
			}
			answer[i] = g
			taken++
		}
		return answer
	}
}

// JSQ returns join the shortest queue (section 6.2): jobs in order of age, each to the worker with the
// fewest running requests. Workers are identical, so that is the worker with the most free slots; of
// equals the first.
func JSQ() Policy {
	var answer, free []int
	return func(in bfio.Instance) []int {
		answer = inOrder(answer, in)
		free = slices.Grow(free[:0], len(in.Workers))[:len(in.Workers)]
		for g, w := range in.Workers {
			free[g] = w.Free
		}
		for i := range answer[:in.Places()] {
			best := 0
			for g := range free {
				if free[g] > free[best] {
					best = g
				}
			}
			answer[i] = best
			free[best]--
		}
		return answer
	}
}

// inOrder returns an empty answer for an instance whose jobs are ordered oldest first.
func inOrder(answer []int, in bfio.Instance) []int {
	answer = slices.Grow(answer[:0], len(in.Jobs))[:len(in.Jobs)]
	for i := range answer {
		answer[i] = bfio.Unplaced
	}
	return answer
}
