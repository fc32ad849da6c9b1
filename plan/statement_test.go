package plan

import (
	"cmp"
	"math"
	"slices"
)

// statement is a Problem by its documentation (docs/json.md, "plan --problem FILE"), without code
// of the solver: its own rows, its own cost, and a solution by brute force. It is slow on purpose.
type statement struct{ *Problem }

// bound is a limit, or otherwise where there is none.
func (s statement) bound(rows [][]*int, a, b, fallback int) int {
	if rows == nil || rows[a][b] == nil {
		return fallback
	}
	return *rows[a][b]
}

// reaches reports whether region r may serve load of region j.
func (s statement) reaches(j, r int) bool {
	return j == r || s.RTTMillis == nil || s.MaxRTTMillis == 0 || s.RTTMillis[j][r] <= s.MaxRTTMillis
}

// losses lists the regions that may be lost one at a time, with -1 for no loss.
func (s statement) losses() []int {
	out := []int{-1}
	for j, name := range s.Regions {
		if s.Survive && (len(s.SurviveRegions) == 0 || slices.Contains(s.SurviveRegions, name)) {
			out = append(out, j)
		}
	}
	return out
}

// enough reports whether a capacity meets a need up to rounding.
func enough(have, need float64) bool { return have >= need-1e-9*math.Max(1, need) }

// demandOf is a need that the regions of a set must serve together.
type demandOf struct {
	servers []bool
	need    float64
}

// demandsOf lists the load that sets of regions must serve of model i: for every set of regions
// with load, and every loss, the regions that may serve any of that load must serve all of it. By
// Hall's theorem the load can then be placed.
func (s statement) demandsOf(i int) []demandOf {
	var out []demandOf
	for _, lost := range s.losses() {
		for set := 1; set < 1<<len(s.Regions); set++ {
			d := demandOf{servers: make([]bool, len(s.Regions))}
			for w := range s.LoadTPS[i][0] {
				sum := 0.0
				for j := range s.Regions {
					if set>>j&1 == 1 {
						sum += s.LoadTPS[i][j][w]
					}
				}
				d.need = math.Max(d.need, sum)
			}
			for j := range s.Regions {
				for r := range s.Regions {
					if set>>j&1 == 1 && s.reaches(j, r) && r != lost {
						d.servers[r] = true
					}
				}
			}
			out = append(out, d)
		}
	}
	return out
}

// keepsModel reports whether counts of model i keep the rows of that model.
func (s statement) keepsModel(i int, x [][]int, demands []demandOf) bool {
	all := 0
	served := make([]float64, len(s.Regions))
	for j := range s.Regions {
		count, peak := 0, 0.0
		for k, n := range x[j] {
			if n > 0 && s.ReplicaTPS[i][k] == 0 {
				return false // the model does not run there
			}
			count += n
			served[j] += float64(n) * s.ReplicaTPS[i][k]
		}
		for _, load := range s.LoadTPS[i][j] {
			peak = math.Max(peak, load)
		}
		if all += count; count < s.bound(s.Min, i, j, 0) || count > s.bound(s.Max, i, j, 1<<30) || !enough(served[j], s.LocalShare*peak) {
			return false
		}
	}
	if s.MinTotal != nil && s.MinTotal[i] != nil && all < *s.MinTotal[i] || s.MaxTotal != nil && s.MaxTotal[i] != nil && all > *s.MaxTotal[i] {
		return false
	}
	for _, d := range demands {
		sum := 0.0
		for r, serves := range d.servers {
			if serves {
				sum += served[r]
			}
		}
		if !enough(sum, d.need) {
			return false
		}
	}
	return true
}

// keepsCapacity reports whether counts of all models are within the capacities.
func (s statement) keepsCapacity(x [][][]int) bool {
	for j := range s.Regions {
		for k := range s.GPUs {
			sum := 0
			for i := range x {
				sum += x[i][j][k]
			}
			if sum > s.bound(s.Capacity, j, k, 1<<30) {
				return false
			}
		}
	}
	return true
}

// hourly is the price of one replica for an hour; reserved ones are paid anyway.
func (s statement) hourly(j, k int) float64 {
	if s.CapacityType != nil && s.CapacityType[k] == "reserved" {
		return 0
	}
	if s.RegionPricePerHour != nil {
		return s.RegionPricePerHour[j][k]
	}
	return s.PricePerHour[k]
}

// hours is the price of model i's counts without starts: the replicas, and the load that a region's
// own replicas do not serve, the mean of the windows.
func (s statement) hours(i int, x [][]int) float64 {
	sum := 0.0
	for j := range s.Regions {
		served := 0.0
		for k, n := range x[j] {
			sum += s.hourly(j, k) * float64(n)
			served += s.ReplicaTPS[i][k] * float64(n)
		}
		if s.Egress != nil {
			for _, load := range s.LoadTPS[i][j] {
				tokens := 3600 * math.Max(0, load-served) / float64(len(s.LoadTPS[i][j]))
				sum += s.Egress[j] * tokens / 1e6
			}
		}
	}
	return sum
}

// starts is the minimum cost of starting the replicas of region j on GPU k, over every choice of
// which VMs stay with their model and which switch to another.
func (s statement) starts(j, k int, x [][][]int) float64 {
	standing := 0
	for i := range x {
		standing += s.Current[i][j][k]
	}
	var from func(i, vms int) float64
	from = func(i, vms int) float64 {
		if i == len(x) {
			return 0
		}
		best := math.Inf(1)
		for own := 0; own <= min(vms, s.Current[i][j][k], x[i][j][k]); own++ {
			for taken := 0; taken <= min(vms-own, x[i][j][k]-own, standing-s.Current[i][j][k]); taken++ {
				cost := s.StartCostUSD[i][k] * float64(x[i][j][k]-own-taken)
				if taken > 0 {
					if s.SwitchCostUSD == nil || s.SwitchCostUSD[i][k] == nil {
						break
					}
					cost += *s.SwitchCostUSD[i][k] * float64(taken)
				}
				best = math.Min(best, cost+from(i+1, vms-own-taken))
			}
		}
		return best
	}
	return from(0, standing)
}

// cost is the cost of counts.
func (s statement) cost(x [][][]int) float64 {
	sum := 0.0
	for i := range x {
		sum += s.hours(i, x[i])
	}
	for j := range s.Regions {
		for k := range s.GPUs {
			sum += s.starts(j, k, x)
		}
	}
	return sum
}

// keeps reports whether counts keep every row.
func (s statement) keeps(x [][][]int) bool {
	for i := range x {
		if !s.keepsModel(i, x[i], s.demandsOf(i)) {
			return false
		}
	}
	return s.keepsCapacity(x)
}

// choiceOf is one model's counts and their minimum cost.
type choiceOf struct {
	x      [][]int
	lowest float64
}

// choicesOf lists the counts of 0 to maximum that keep the rows of model i, the
// cheapest first.
func (s statement) choicesOf(i, maximum int) []choiceOf {
	demands := s.demandsOf(i)
	var out []choiceOf
	x := make([][]int, len(s.Regions))
	for j := range x {
		x[j] = make([]int, len(s.GPUs))
	}
	for cells := len(s.Regions) * len(s.GPUs); ; {
		if s.keepsModel(i, x, demands) {
			c := choiceOf{x: cloneCounts([][][]int{x})[0]}
			for j := range x {
				for k, n := range x[j] {
					start := s.StartCostUSD[i][k]
					if s.SwitchCostUSD != nil && s.SwitchCostUSD[i][k] != nil {
						start = math.Min(start, *s.SwitchCostUSD[i][k])
					}
					c.lowest += start * float64(max(0, n-s.Current[i][j][k]))
				}
			}
			c.lowest += s.hours(i, x)
			out = append(out, c)
		}
		cell := 0
		for ; cell < cells && x[cell/len(s.GPUs)][cell%len(s.GPUs)] == maximum; cell++ {
			x[cell/len(s.GPUs)][cell%len(s.GPUs)] = 0
		}
		if cell == cells {
			break
		}
		x[cell/len(s.GPUs)][cell%len(s.GPUs)]++
	}
	slices.SortFunc(out, func(a, b choiceOf) int { return cmp.Compare(a.lowest, b.lowest) })
	return out
}

// cheapest tries every count of 0 to maximum in every cell and returns the lowest cost, +Inf when no
// counts keep the rows.
func (s statement) cheapest(maximum int) float64 {
	choices := make([][]choiceOf, len(s.Models))
	rest := make([]float64, len(s.Models)+1)
	for i := len(choices) - 1; i >= 0; i-- {
		if choices[i] = s.choicesOf(i, maximum); len(choices[i]) == 0 {
			return math.Inf(1)
		}
		rest[i] = rest[i+1] + choices[i][0].lowest
	}
	best := math.Inf(1)
	x := make([][][]int, len(choices))
	var from func(i int, sum float64)
	from = func(i int, sum float64) {
		if i == len(x) {
			if s.keepsCapacity(x) {
				best = math.Min(best, s.cost(x))
			}
			return
		}
		for _, c := range choices[i] {
			if sum+c.lowest+rest[i+1] >= best {
				return
			}
			x[i] = c.x
			from(i+1, sum+c.lowest)
		}
	}
	from(0, 0)
	return best
}
