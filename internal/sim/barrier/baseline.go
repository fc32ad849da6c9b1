package barrier

import (
	"slices"

	"skyserve/lbd/bfio"
)

// Policy decides an instance: for each job its worker's index, or Unplaced. What
// it returns holds until its next call. (*Solver).Solve is one.
type Policy func(in bfio.Instance) []int

// FCFS returns first come, first served (appendix B of the paper): workers in
// the order of their index are filled with the jobs in the order of their age.
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

// JSQ returns join the shortest queue (section 6.2): jobs in the order of their
// age, each to the worker that runs the fewest requests. Workers are alike, so
// that it is the one with the most free slots; of equals the first.
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

// inOrder is an empty answer to an instance whose jobs come oldest first, as a
// queue hands them over.
func inOrder(answer []int, in bfio.Instance) []int {
	answer = slices.Grow(answer[:0], len(in.Jobs))[:len(in.Jobs)]
	for i := range answer {
		answer[i] = bfio.Unplaced
	}
	return answer
}
