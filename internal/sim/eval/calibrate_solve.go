package eval

import (
	"math"
	"slices"
)

// equation states that the sum of the columns, each times an unknown, equals value.
type equation struct {
	columns []float64
	value   float64
}

// solveRelative finds the non-negative unknowns with the smallest relative residuals: least squares for
// most equations, linear weight for outliers (Huber's weights at 1.5 deviations). It lists unknowns
// that the equations do not determine in lost.
func solveRelative(equations []equation, unknowns int) (x []float64, lost []int) {
	weights := make([]float64, len(equations))
	for i := range weights {
		weights[i] = 1
	}
	for range 10 {
		if x, lost = solveNotNegative(equations, weights, unknowns); len(lost) > 0 {
			return nil, lost
		}
		misses := make([]float64, len(equations))
		for i := range equations {
			misses[i] = math.Abs(predict(equations[i].columns, x)/equations[i].value - 1)
		}
		limit := 1.5 * 1.4826 * medianOf(misses) // 1.4826 medians are one standard deviation of normal residuals
		for i, m := range misses {
			weights[i] = 1
			if m > limit && limit > 0 {
				weights[i] = limit / m
			}
		}
	}
	return x, nil
}

// predict returns the sum of the columns times the unknowns.
func predict(columns, x []float64) float64 {
	sum := 0.0
	for i := range x {
		sum += columns[i] * x[i]
	}
	return sum
}

// solveNotNegative removes the most negative unknown until none is negative.
func solveNotNegative(equations []equation, weights []float64, unknowns int) (x []float64, lost []int) {
	use := make([]int, unknowns)
	for i := range use {
		use[i] = i
	}
	for len(use) > 0 {
		part, bad := solveLeastSquares(equations, weights, use)
		if len(bad) > 0 {
			return nil, bad
		}
		worst := 0
		for i := range part {
			if part[i]*scaleOf(equations, use[i]) < part[worst]*scaleOf(equations, use[worst]) {
				worst = i
			}
		}
		if part[worst] >= 0 {
			x = make([]float64, unknowns)
			for i, u := range use {
				x[u] = part[i]
			}
			return x, nil
		}
		use = slices.Delete(use, worst, worst+1)
	}
	return make([]float64, unknowns), nil
}

// scaleOf returns the mean size of a column relative to the values.
func scaleOf(equations []equation, column int) float64 {
	sum := 0.0
	for i := range equations {
		sum += equations[i].columns[column] / equations[i].value
	}
	return sum / float64(len(equations))
}

// minPivot is the smallest usable pivot: the squared remainder of a column after the columns before
// it are eliminated. A smaller one is noise.
const minPivot = 1e-6

// solveLeastSquares solves the normal equations of the used columns, each scaled to length 1.
func solveLeastSquares(equations []equation, weights []float64, use []int) (x []float64, lost []int) {
	n := len(use)
	a := make([][]float64, n)
	for i := range a {
		a[i] = make([]float64, n+1)
	}
	for e := range equations {
		w, v := weights[e], equations[e].value
		for i, u := range use {
			c := equations[e].columns[u] / v
			for k, u2 := range use {
				a[i][k] += w * c * equations[e].columns[u2] / v
			}
			a[i][n] += w * c
		}
	}
	length := make([]float64, n)
	for i := range a {
		if length[i] = math.Sqrt(a[i][i]); length[i] == 0 {
			lost = append(lost, use[i])
		}
	}
	if len(lost) > 0 {
		return nil, lost
	}
	for i := range a {
		for k := range n {
			a[i][k] /= length[i] * length[k]
		}
		a[i][n] /= length[i]
	}
	return eliminate(a, length, use)
}

// eliminate solves a symmetric system whose diagonal is 1, without exchanging rows: a pivot is the
// remainder of its column.
func eliminate(a [][]float64, length []float64, use []int) (x []float64, lost []int) {
	n := len(a)
	for i := range n {
		if a[i][i] < minPivot {
			return nil, []int{use[i]}
		}
		for k := i + 1; k < n; k++ {
			f := a[k][i] / a[i][i]
			for j := i; j <= n; j++ {
				a[k][j] -= f * a[i][j]
			}
		}
	}
	x = make([]float64, n)
	for i := n - 1; i >= 0; i-- {
		x[i] = a[i][n]
		for k := i + 1; k < n; k++ {
			x[i] -= a[i][k] * x[k]
		}
		x[i] /= a[i][i]
	}
	for i := range x {
		x[i] /= length[i]
	}
	return x, nil
}

// medianOf returns the median of values; 0 if there are none.
func medianOf(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	values = slices.Clone(values)
	slices.Sort(values)
	return (values[len(values)/2] + values[(len(values)-1)/2]) / 2
}
