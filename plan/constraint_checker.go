package plan

import (
	"fmt"
	"math"
	"strings"
)

// constraintChecker checks counts quickly during the search. It lists the coverage of each model once, as rows
// over sets of regions. Verify makes the final check.
type constraintChecker struct {
	p      *Problem
	covers [][]coverage // by model
}

func newConstraintChecker(p *Problem) *constraintChecker {
	r := &constraintChecker{p: p}
	sets := p.reachSets()
	for i := range p.Models {
		r.covers = append(r.covers, p.covers(i, sets))
	}
	return r
}

// verify returns the first row that counts x violate.
func (r *constraintChecker) verify(x [][][]int) error {
	for i := range r.p.Models {
		if err := r.verifyModel(i, x[i]); err != nil {
			return err
		}
	}
	return r.p.verifyCapacity(x)
}

// verifyModel returns the first row of model i alone that counts x violate.
func (r *constraintChecker) verifyModel(i int, x [][]int) error {
	p := r.p
	if err := p.verifyCounts(i, x); err != nil {
		return err
	}
	for _, c := range r.covers[i] {
		var served float64
		for j := range p.Regions {
			if c.regions.has(j) {
				served += p.Throughput(i, x[j])
			}
		}
		if !meetsNeed(served, c.need) {
			return fmt.Errorf("%s over %s: serves %g of %g tokens per second", p.Models[i], p.nameCover(c), served, c.need)
		}
	}
	return nil
}

// nameCover names the regions of a coverage row.
func (p *Problem) nameCover(c coverage) string {
	if c.regions.size() == len(p.Regions) {
		return "all regions"
	}
	if c.lost >= 0 && c.regions.size() == len(p.Regions)-1 {
		return "all regions except " + p.Regions[c.lost]
	}
	var names []string
	for j, name := range p.Regions {
		if c.regions.has(j) {
			names = append(names, name)
		}
	}
	name := strings.Join(names, ", ")
	if name == "" {
		name = "no region"
	}
	if c.lost >= 0 {
		name += " except " + p.Regions[c.lost]
	}
	return name
}

// redistribute moves replicas to the regions with load, if a move costs nothing. It makes one move after the other,
// each between two regions, as long as a move reduces the load above the regions' own capacity (the sum over the
// regions, at their peaks). Each move has as many replicas as reduce that load. The result need not be the minimum
// over all equally cheap solutions.
func (s *solver) redistribute() {
	cost := s.p.Cost(s.best)
	for i := range s.p.Models {
		for k := range s.p.GPUs {
			for s.redistributeOnce(i, k, cost) {
			}
		}
	}
}

// redistributeOnce makes the move of a replica of model i on GPU k that reduces the load without local
// capacity most, and repeats it. It returns false when no move reduces it.
func (s *solver) redistributeOnce(i, k int, cost float64) bool {
	p := s.p
	bestGain, bestFrom, bestTo := roundingError(p.GlobalDemand(i)), -1, -1
	for from := range p.Regions {
		for to := range p.Regions {
			if gain := s.redistributeGain(i, k, from, to, 1); gain > bestGain && s.move(i, k, from, to, 1, cost) {
				s.move(i, k, to, from, 1, math.Inf(1))
				bestGain, bestFrom, bestTo = gain, from, to
			}
		}
	}
	if bestFrom < 0 {
		return false
	}
	s.move(i, k, bestFrom, bestTo, 1, cost)
	for n := 1; n > 0; {
		each := s.redistributeGain(i, k, bestFrom, bestTo, n) / float64(n)
		if each >= bestGain-roundingError(p.GlobalDemand(i)) && s.move(i, k, bestFrom, bestTo, n, cost) {
			n *= 2
		} else {
			n /= 2
		}
	}
	return true
}

// move moves n replicas of model i on GPU k where the result satisfies the rows and a cost, and reports
// whether it did.
func (s *solver) move(i, k, from, to, n int, cost float64) bool {
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

// redistributeGain returns how much the load without local capacity falls after the move of n replicas; 0
// when the move changes the number of started replicas and starts have a cost.
func (s *solver) redistributeGain(i, k, from, to, n int) float64 {
	p, x := s.p, s.best[i]
	if from == to || x[from][k] < n {
		return 0
	}
	started := max(0, x[from][k]-p.Current[i][from][k]) - max(0, x[from][k]-n-p.Current[i][from][k])
	starts := max(0, x[to][k]+n-p.Current[i][to][k]) - max(0, x[to][k]-p.Current[i][to][k])
	if started != starts && p.StartCostUSD[i][k] != 0 {
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
