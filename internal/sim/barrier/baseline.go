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
	var response []int
	return func(in bfio.Instance) []int {
		response = inOrder(response, in)
		g, taken := 0, 0
		for i := range response[:in.Places()] {
			for taken >= in.Workers[g].Free {
				g, taken = g+1, 0
			}
			response[i] = g
			taken++
		}
		return response
	}
}

// JSQ returns join the shortest queue (section 6.2): jobs in order of age, each to the worker with the
// fewest running requests. Workers are identical, so that is the worker with the most free slots; of
// equals the first.
func JSQ() Policy {
	var response, free []int
	return func(in bfio.Instance) []int {
		response = inOrder(response, in)
		free = slices.Grow(free[:0], len(in.Workers))[:len(in.Workers)]
		for g, w := range in.Workers {
			free[g] = w.Free
		}
		for i := range response[:in.Places()] {
			best := 0
			for g := range free {
				if free[g] > free[best] {
					best = g
				}
			}
			response[i] = best
			free[best]--
		}
		return response
	}
}

// inOrder returns an empty assignment for an instance whose jobs are ordered oldest first.
func inOrder(response []int, in bfio.Instance) []int {
	response = slices.Grow(response[:0], len(in.Jobs))[:len(in.Jobs)]
	for i := range response {
		response[i] = bfio.Unplaced
	}
	return response
}
