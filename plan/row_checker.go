package plan

import (
	"fmt"
	"strings"
)

// rowChecker checks counts quickly during the search. It lists the coverage of each model once, as rows
// over sets of regions. Verify makes the final check.
type rowChecker struct {
	p      *Problem
	covers [][]cover // by model
}

func newRowChecker(p *Problem) *rowChecker {
	r := &rowChecker{p: p}
	sets := p.reachSets()
	for i := range p.Models {
		r.covers = append(r.covers, p.covers(i, sets))
	}
	return r
}

// verify returns the first row that counts x break.
func (r *rowChecker) verify(x [][][]int) error {
	for i := range r.p.Models {
		if err := r.verifyModel(i, x[i]); err != nil {
			return err
		}
	}
	return r.p.verifyCapacity(x)
}

// verifyModel returns the first row of model i alone that counts x break.
func (r *rowChecker) verifyModel(i int, x [][]int) error {
	p := r.p
	if err := p.verifyCounts(i, x); err != nil {
		return err
	}
	for _, c := range r.covers[i] {
		var carried float64
		for j := range p.Regions {
			if c.regions.has(j) {
				carried += p.Throughput(i, x[j])
			}
		}
		if !meetsNeed(carried, c.need) {
			return fmt.Errorf("%s over %s: serves %g of %g tokens per second", p.Models[i], p.nameCover(c), carried, c.need)
		}
	}
	return nil
}

// nameCover names the regions of a coverage row.
func (p *Problem) nameCover(c cover) string {
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

// redistribute moves replicas to the regions with load, where a move costs nothing. It makes single
// moves while one reduces the sum of the regions' peaks above their own capacity. The result need not
// be the minimum over all equally cheap solutions.
func (s *solver) redistribute() {
	cost := s.p.Cost(s.best)
	for i := range s.p.Models {
		for k := range s.p.GPUs {
			for s.redistributeOnce(i, k, cost) {
			}
		}
	}
}

// redistributeOnce makes the single move of a replica of model i on GPU k that reduces the load without
// local capacity most. It returns false when no move reduces it.
func (s *solver) redistributeOnce(i, k int, cost float64) bool {
	p, x := s.p, s.best[i]
	bestGain, bestFrom, bestTo := slackOf(p.GlobalDemand(i)), -1, -1
	for from := range p.Regions {
		if x[from][k] == 0 {
			continue
		}
		for to := range p.Regions {
			gain := s.redistributeGain(i, k, from, to)
			if gain <= bestGain {
				continue
			}
			x[from][k]--
			x[to][k]++
			if s.rowChecker.verify(s.best) == nil && p.Cost(s.best) <= cost+slackOf(cost) {
				bestGain, bestFrom, bestTo = gain, from, to
			}
			x[from][k]++
			x[to][k]--
		}
	}
	if bestFrom < 0 {
		return false
	}
	x[bestFrom][k]--
	x[bestTo][k]++
	return true
}

// redistributeGain returns how much the load without local capacity falls after the move; 0 when the move
// changes the number of started replicas and starts have a cost.
func (s *solver) redistributeGain(i, k, from, to int) float64 {
	p, x := s.p, s.best[i]
	started := x[from][k] > p.N[i][from][k]
	starts := x[to][k] >= p.N[i][to][k]
	if from == to || started != starts && p.Sigma[i][k] != 0 {
		return 0
	}
	theta := p.Theta[i][k]
	return s.localShortfall(i, from, 0) + s.localShortfall(i, to, 0) - s.localShortfall(i, from, -theta) - s.localShortfall(i, to, theta)
}

// localShortfall returns the load of model i in region j above the capacity there, after the given
// change of that capacity.
func (s *solver) localShortfall(i, j int, change float64) float64 {
	capacity := change
	for k, n := range s.best[i][j] {
		capacity += s.p.Theta[i][k] * float64(n)
	}
	return max(0, s.p.RegionPeak(i, j)-capacity)
}
