package bfio

import (
	"math"
	"sort"
)

// tolerance is the minimum relative improvement of a cost, so that rounding does not count as
// progress.
const tolerance = 1e-12

// replaceAll assigns its best job to each slot, one slot after the other, with everything
// else fixed.
func (s *Solver) replaceAll() bool {
	if s.overdue >= s.placed || s.placed == len(s.jobs) {
		return false // no job can be replaced, or none waits
	}
	changed := false
	for i := range s.slots {
		if int(s.slots[i].rank) >= s.overdue && s.replace(&s.slots[i]) {
			changed = true
		}
	}
	return changed
}

// replace exchanges the slot's job for a waiting job with a lower cost. Of two jobs with equal
// cost, the older one is placed.
func (s *Solver) replace(sl *slot) bool {
	row := s.row(sl.worker)
	copy(s.own, row)
	s.addJob(s.own, sl.rank, -1)
	for h := range s.others {
		s.others[h] = s.top[h].highestWithout(sl.worker, sl.worker) + s.skylineLift
	}
	now := s.slotCost(s.jobs[sl.rank])
	best, cost := s.bestWaiting()
	if best < 0 || cost > now || (cost >= now-tolerance*math.Abs(now) && !(cost == now && best < sl.rank)) {
		return false
	}
	s.waiting.setBit(s.position[sl.rank])
	s.waiting.clearBit(s.position[best])
	copy(row, s.own)
	s.addJob(row, best, 1)
	sl.rank = best
	s.updateTopLoads(sl.worker)
	return true
}

// slotCost returns the part of J that depends on the slot's job: own is the worker's load without
// it, others the highest load of the other workers.
func (s *Solver) slotCost(job rankedJob) float64 {
	sum := 0.0
	for h, own := range s.own {
		if h < int(job.life) {
			own += job.size + s.drift[h]
		}
		sum += s.weights[h] * (s.scale*max(own, s.others[h]) - own)
	}
	return sum
}

// bestWaiting returns the waiting job with the lowest cost in the slot, or -1. Of equal jobs it
// returns the oldest. Among jobs of one life the cost is convex in the size, so only the two
// neighbours of the best size are candidates.
func (s *Solver) bestWaiting() (int32, float64) {
	best, cost := int32(-1), math.Inf(1)
	for life := 1; life <= s.steps; life++ {
		from, to := s.bounds[life], s.bounds[life+1]
		if from == to {
			continue
		}
		size := s.bestSize(life)
		mid := s.firstFrom(from, to, size)
		below := s.waiting.prevBit(from, mid)
		if below >= 0 { // the oldest job of the same size
			below = s.waiting.nextBit(s.firstFrom(from, mid, s.jobs[s.pool[below]].size), to)
		}
		for _, at := range [...]int32{below, s.waiting.nextBit(mid, to)} {
			if at < 0 {
				continue
			}
			rank := s.pool[at]
			if c := s.slotCost(s.jobs[rank]); c < cost || (c == cost && rank < best) {
				best, cost = rank, c
			}
		}
	}
	return best, cost
}

// bestSize returns the size with the minimum cost among jobs of that life. At step h, the cost
// falls by the step's weight per token until the worker reaches the highest load of the others.
// Above it, the cost rises by (workers-1) weights per token. The minimum is the size at which the
// steps above have a share of 1/workers of the total weight.
func (s *Solver) bestSize(life int) float64 {
	if life == 1 {
		return s.others[0] - s.own[0]
	}
	want := s.weightSums[life] / s.scale
	weightAbove, size := 0.0, math.Inf(-1)
	for weightAbove < want {
		next, weight := math.Inf(1), 0.0
		for h := range life {
			reach := s.others[h] - s.own[h] - s.drift[h] // size at which the worker reaches the others
			if reach > size && reach < next {
				next, weight = reach, s.weights[h]
			} else if reach == next {
				weight += s.weights[h]
			}
		}
		if math.IsInf(next, 1) {
			return size
		}
		weightAbove += weight
		size = next
	}
	return size
}

// firstFrom returns the first position of [from, to) whose job has at least the given size.
func (s *Solver) firstFrom(from, to int32, size float64) int32 {
	return from + int32(sort.Search(int(to-from), func(i int) bool {
		return s.jobs[s.pool[from+int32(i)]].size >= size
	}))
}
