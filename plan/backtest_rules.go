package plan

import "math"

// The threshold rule scales out above a share of the current capacity, by up to thresholdPerMinute
// replicas a minute: one after each cooldown of 15 seconds (SageServe 7.1). Below a lower share it
// scales in by one replica a minute. The strategy reactive (strategy_reactive.go) has the same thresholds for
// memory utilisation, which past load does not contain.
const (
	scaleOutThreshold  = 0.7
	scaleInThreshold   = 0.3
	thresholdPerMinute = 4
)

// ConstantCounts returns counts sized for the peak of every model in every region over the whole
// trace, so it uses hindsight.
func (p *LoadTrace) ConstantCounts() [][][]int {
	x := zeroCounts(p.Problem)
	for i := range x {
		for j := range x[i] {
			var peak float64
			for _, v := range p.Load[i][j] {
				if v > peak {
					peak = v
				}
			}
			p.addReplicas(x, i, j, peak, unlimited)
		}
	}
	return x
}

// ThresholdCounts returns the target counts of a rule without a forecast. Every minute it compares the
// load of the previous minute with the capacity of all replicas, starting ones included. It starts
// replicas above 70 % of it and stops one below 30 %, within min and max.
func (p *LoadTrace) ThresholdCounts() []TargetCounts {
	x := zeroCounts(p.Problem)
	for i := range x {
		for j := range x[i] {
			p.addReplicas(x, i, j, knownAt(p.Load[i][j], 0)/scaleOutThreshold, limitOr(p.Problem.Max, i, j, unlimited))
		}
	}
	targets := []TargetCounts{{0, cloneCounts(x)}}
	for m := 1; m < p.minutes(); m++ {
		changed := false
		for i := range x {
			for j := range x[i] {
				if v := p.Load[i][j][m-1]; !math.IsNaN(v) {
					changed = p.scaleByThreshold(x, i, j, v) || changed
				}
			}
		}
		if changed {
			targets = append(targets, TargetCounts{m, cloneCounts(x)})
		}
	}
	return targets
}

// knownAt returns a value, 0 where it is unknown.
func knownAt(values []float64, at int) float64 {
	if at >= len(values) || math.IsNaN(values[at]) {
		return 0
	}
	return values[at]
}

// scaleByThreshold changes the counts of model i in region j for a load, and reports whether any changed.
func (p *LoadTrace) scaleByThreshold(x [][][]int, i, j int, load float64) bool {
	has := p.Problem.regionThroughput(x, i, j)
	switch {
	case load > scaleOutThreshold*has:
		changed := false
		for range thresholdPerMinute {
			k := p.cheapest(x, i, j)
			if load <= scaleOutThreshold*p.Problem.regionThroughput(x, i, j) || k < 0 || sumCounts(x[i][j]) >= limitOr(p.Problem.Max, i, j, unlimited) {
				break
			}
			x[i][j][k]++
			changed = true
		}
		return changed
	case load < scaleInThreshold*has && sumCounts(x[i][j]) > limitOr(p.Problem.Min, i, j, 0):
		k := p.mostExpensive(x, i, j)
		if load > scaleOutThreshold*(has-p.Problem.ReplicaTPS[i][k]) {
			return false // it would be started again immediately
		}
		x[i][j][k]--
		return true
	}
	return false
}

// addReplicas adds replicas of model i in region j, the cheapest per throughput first, until they serve a
// load and reach the minimum, or until there are limit replicas or no GPU has free capacity.
func (p *LoadTrace) addReplicas(x [][][]int, i, j int, load float64, limit int) {
	minimum := limitOr(p.Problem.Min, i, j, 0)
	for sumCounts(x[i][j]) < limit && (!meetsNeed(p.Problem.regionThroughput(x, i, j), load) || sumCounts(x[i][j]) < minimum) {
		k := p.cheapest(x, i, j)
		if k < 0 {
			return
		}
		n := 1
		if p.Problem.Capacity == nil || p.Problem.Capacity[j][k] == nil {
			n = max(1, min(unitsFor(load-p.Problem.regionThroughput(x, i, j), p.Problem.ReplicaTPS[i][k]), limit-sumCounts(x[i][j])))
		}
		x[i][j][k] += n
	}
}

// cheapest returns the GPU with free capacity in region j that serves model i at the lowest cost,
// -1 for none.
func (p *LoadTrace) cheapest(x [][][]int, i, j int) int {
	best := -1
	for k, tps := range p.Problem.ReplicaTPS[i] {
		used := 0
		for m := range x {
			used += x[m][j][k]
		}
		if tps > 0 && used < limitOr(p.Problem.Capacity, j, k, unlimited) && (best < 0 || p.priceRate(i, j, k) < p.priceRate(i, j, best)) {
			best = k
		}
	}
	return best
}

// mostExpensive returns the GPU in use in region j that serves model i at the highest cost.
func (p *LoadTrace) mostExpensive(x [][][]int, i, j int) int {
	best := -1
	for k, n := range x[i][j] {
		if n > 0 && (best < 0 || p.priceRate(i, j, k) > p.priceRate(i, j, best)) {
			best = k
		}
	}
	return best
}

// priceRate returns the price of serving a token per second of model i on GPU k; reserved capacity is
// free.
func (p *LoadTrace) priceRate(i, j, k int) float64 {
	return p.Problem.Price(j, k) / p.Problem.ReplicaTPS[i][k]
}

// sumCounts returns the number of replicas on all GPUs.
func sumCounts(row []int) int {
	sum := 0
	for _, n := range row {
		sum += n
	}
	return sum
}
