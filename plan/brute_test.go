package plan

import "math"

// brute is the dumb twin of Solve: it tries every count up to most in every
// cell, model by model.
func brute(p *Problem, most int) (cost float64, ok bool) {
	options := make([][][][]int, len(p.Models))
	for i := range p.Models {
		options[i] = bruteModel(p, i, most)
	}
	best := math.Inf(1)
	x := make([][][]int, len(p.Models))
	var from func(i int, sum float64)
	from = func(i int, sum float64) {
		if sum >= best {
			return
		}
		if i == len(x) {
			if fits(p, x) {
				best = sum
			}
			return
		}
		for _, o := range options[i] {
			x[i] = o
			from(i+1, sum+modelCost(p, i, o))
		}
	}
	from(0, 0)
	return best, !math.IsInf(best, 1)
}

// bruteModel lists every choice of model i that keeps the model's own rows.
func bruteModel(p *Problem, i, most int) [][][]int {
	cells := len(p.Regions) * len(p.GPUs)
	flat := make([]int, cells)
	var out [][][]int
	for {
		x := make([][]int, len(p.Regions))
		for j := range x {
			x[j] = append([]int(nil), flat[j*len(p.GPUs):(j+1)*len(p.GPUs)]...)
		}
		if newRules(p).verifyModel(i, x) == nil {
			out = append(out, x)
		}
		c := 0
		for c < cells && flat[c] == most {
			flat[c] = 0
			c++
		}
		if c == cells {
			return out
		}
		flat[c]++
	}
}

func modelCost(p *Problem, i int, x [][]int) float64 {
	var sum float64
	for j := range x {
		for k, n := range x[j] {
			sum += p.Alpha[k]*float64(n) + p.Sigma[i][k]*float64(max(0, n-p.N[i][j][k]))
		}
	}
	return sum
}

func fits(p *Problem, x [][][]int) bool {
	for j := range p.Regions {
		for k := range p.GPUs {
			used := 0
			for i := range x {
				used += x[i][j][k]
			}
			if used > limit(p.Capacity, j, k, unlimited) {
				return false
			}
		}
	}
	return true
}
