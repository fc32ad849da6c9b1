package plan

import "fmt"

// Verify reports the first row that counts x break, with its place.
func (p *Problem) Verify(x [][][]int) error {
	for i := range p.Models {
		if err := p.verifyModel(i, x[i]); err != nil {
			return err
		}
	}
	for j := range p.Regions {
		for k := range p.GPUs {
			used := 0
			for i := range p.Models {
				used += x[i][j][k]
			}
			if most := limit(p.Capacity, j, k, unlimited); used > most {
				return fmt.Errorf("%s on %s: %d replicas, capacity is %d", p.Regions[j], p.GPUs[k], used, most)
			}
		}
	}
	return nil
}

func (p *Problem) verifyModel(i int, x [][]int) error {
	var total float64
	for j := range p.Regions {
		count, carried := 0, 0.0
		for k, n := range x[j] {
			if n < 0 {
				return fmt.Errorf("%s in %s on %s: count %d is negative", p.Models[i], p.Regions[j], p.GPUs[k], n)
			}
			count += n
			carried += p.Theta[i][k] * float64(n)
		}
		total += carried
		least, most := limit(p.Min, i, j, 0), limit(p.Max, i, j, unlimited)
		switch {
		case count < least || count > most:
			return fmt.Errorf("%s in %s: %d replicas, want %d to %d", p.Models[i], p.Regions[j], count, least, most)
		case !covers(carried, p.LocalNeed(i, j)):
			return fmt.Errorf("%s in %s: carries %g tokens a second of %g", p.Models[i], p.Regions[j], carried, p.LocalNeed(i, j))
		}
	}
	if !covers(total, p.GlobalNeed(i)) {
		return fmt.Errorf("%s over all regions: carries %g tokens a second of %g", p.Models[i], total, p.GlobalNeed(i))
	}
	return nil
}

// spread moves replicas between regions where that costs nothing and brings
// capacity to where load is: of equally cheap answers, the one that forwards
// least.
func (s *solver) spread() {
	for i := range s.p.Models {
		for k := range s.p.GPUs {
			for s.spreadOnce(i, k) {
			}
		}
	}
}

// spreadOnce makes the one move of a replica of model i on GPU k that lowers
// the load without local capacity most; false when none does.
func (s *solver) spreadOnce(i, k int) bool {
	p, x := s.p, s.best[i]
	bestGain, bestFrom, bestTo := slackOf(p.GlobalNeed(i)), -1, -1
	for from := range p.Regions {
		if x[from][k] == 0 {
			continue
		}
		for to := range p.Regions {
			gain := s.spreadGain(i, k, from, to)
			if gain <= bestGain {
				continue
			}
			x[from][k]--
			x[to][k]++
			if p.Verify(s.best) == nil {
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

// spreadGain is how much less load lacks local capacity after the move; 0 when
// the move changes the cost.
func (s *solver) spreadGain(i, k, from, to int) float64 {
	p, x := s.p, s.best[i]
	started := x[from][k] > p.N[i][from][k]
	starts := x[to][k] >= p.N[i][to][k]
	if from == to || started != starts && p.Sigma[i][k] != 0 {
		return 0
	}
	theta := p.Theta[i][k]
	return s.lacking(i, from, 0) + s.lacking(i, to, 0) - s.lacking(i, from, -theta) - s.lacking(i, to, theta)
}

// lacking is the load of model i in region j above its capacity there.
func (s *solver) lacking(i, j int, change float64) float64 {
	for k, n := range s.best[i][j] {
		change += s.p.Theta[i][k] * float64(n)
	}
	return max(0, s.p.Peak(i, j)-change)
}
