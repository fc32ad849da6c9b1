package plan

import "math"

// redistribute moves replicas to the regions with load, if a move costs nothing. It makes one move after the other,
// each between two regions, as long as a move reduces the local shortfall (the load above a region's own capacity at
// its peak, summed over the regions). The result need not be the minimum over all equally cheap solutions.
func (s *solver) redistribute() {
	cost := s.p.Cost(s.best)
	for i := range s.p.Models {
		for k := range s.p.GPUs {
			for s.redistributeOnce(i, k, cost) {
			}
		}
	}
}

// redistributeOnce finds the move of one replica of model i on GPU k that reduces the local shortfall
// most, and makes it for as many replicas as reduce the shortfall by that much each. It returns false
// when no move reduces the shortfall.
func (s *solver) redistributeOnce(i, k int, cost float64) bool {
	p := s.p
	bestGain, bestFrom, bestTo := roundingError(p.GlobalDemand(i)), -1, -1
	for from := range p.Regions {
		for to := range p.Regions {
			if gain := s.redistributeGain(i, k, from, to, 1); gain > bestGain && s.moveReplicas(i, k, from, to, 1, cost) {
				s.moveReplicas(i, k, to, from, 1, math.Inf(1))
				bestGain, bestFrom, bestTo = gain, from, to
			}
		}
	}
	if bestFrom < 0 {
		return false
	}
	s.moveReplicas(i, k, bestFrom, bestTo, 1, cost)
	for n := 1; n > 0; {
		each := s.redistributeGain(i, k, bestFrom, bestTo, n) / float64(n)
		if each >= bestGain-roundingError(p.GlobalDemand(i)) && s.moveReplicas(i, k, bestFrom, bestTo, n, cost) {
			n *= 2
		} else {
			n /= 2
		}
	}
	return true
}

// moveReplicas moves n replicas of model i on GPU k, if the result satisfies every row and costs at most cost. It
// reports whether it did.
func (s *solver) moveReplicas(i, k, from, to, n int, cost float64) bool {
	x := s.best[i]
	if x[from][k] < n {
		return false
	}
	x[from][k] -= n
	x[to][k] += n
	if s.constraints.verify(s.best) == nil && s.p.Cost(s.best) <= cost+roundingError(cost) {
		return true
	}
	x[from][k] += n
	x[to][k] -= n
	return false
}

// redistributeGain returns how much the local shortfall falls if n replicas move; 0 when the move
// changes the number of started replicas and a start has a cost.
func (s *solver) redistributeGain(i, k, from, to, n int) float64 {
	p, x := s.p, s.best[i]
	if from == to || x[from][k] < n {
		return 0
	}
	savedStarts := max(0, x[from][k]-p.Current[i][from][k]) - max(0, x[from][k]-n-p.Current[i][from][k])
	addedStarts := max(0, x[to][k]+n-p.Current[i][to][k]) - max(0, x[to][k]-p.Current[i][to][k])
	if savedStarts != addedStarts && p.StartCostUSD[i][k] != 0 {
		return 0
	}
	moved := float64(n) * p.ReplicaTPS[i][k]
	return s.localShortfall(i, from, 0) + s.localShortfall(i, to, 0) - s.localShortfall(i, from, -moved) - s.localShortfall(i, to, moved)
}

// localShortfall returns the load of model i in region j above the capacity there, after the given
// change of that capacity.
func (s *solver) localShortfall(i, j int, change float64) float64 {
	capacity := change
	for k, n := range s.best[i][j] {
		capacity += s.p.ReplicaTPS[i][k] * float64(n)
	}
	return max(0, s.p.RegionPeak(i, j)-capacity)
}
