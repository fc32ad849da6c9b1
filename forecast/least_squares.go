package forecast

import "math"

// leastSquares solves ordinary least squares by the normal equations of columns of unit length; it
// reuses its buffers.
type leastSquares struct {
	// beta has one coefficient per column.
	beta        []float64
	gram, norms []float64
	right       []float64
}

// dependent is the squared part of a column, relative to its length, not explained by the columns
// before it, below which it counts as linearly dependent.
const dependent = 1e-12

// solve computes beta and the sum of squared residuals; ok is false when columns are linearly
// dependent.
func (l *leastSquares) solve(y []float64, columns [][]float64) (rss float64, ok bool) {
	k := len(columns)
	l.beta, l.norms, l.right = resized(l.beta, k), resized(l.norms, k), resized(l.right, k)
	l.gram = resized(l.gram, k*k)
	for i, c := range columns {
		l.norms[i] = math.Sqrt(dot(c, c))
		if !(l.norms[i] > 0) || math.IsInf(l.norms[i], 0) {
			return 0, false
		}
		l.right[i] = dot(c, y) / l.norms[i]
		for j := range i + 1 {
			l.gram[i*k+j] = dot(c, columns[j]) / l.norms[i] / l.norms[j]
		}
	}
	if !l.cholesky(k) {
		return 0, false
	}
	for i := range k {
		l.beta[i] /= l.norms[i]
	}
	for t, v := range y {
		for i, c := range columns {
			v -= l.beta[i] * c[t]
		}
		rss += v * v
	}
	return rss, true
}

// cholesky factors gram in place and solves for beta.
func (l *leastSquares) cholesky(k int) bool {
	for i := range k {
		for j := range i + 1 {
			v := l.gram[i*k+j] - dot(l.gram[i*k:i*k+j], l.gram[j*k:j*k+j])
			if i > j {
				l.gram[i*k+j] = v / l.gram[j*k+j]
				continue
			}
			if !(v > dependent) {
				return false
			}
			l.gram[i*k+i] = math.Sqrt(v)
		}
	}
	for i := range k {
		l.beta[i] = (l.right[i] - dot(l.gram[i*k:i*k+i], l.beta[:i])) / l.gram[i*k+i]
	}
	for i := k - 1; i >= 0; i-- {
		v := l.beta[i]
		for j := i + 1; j < k; j++ {
			v -= l.gram[j*k+i] * l.beta[j]
		}
		l.beta[i] = v / l.gram[i*k+i]
	}
	return true
}

// dot returns the product of two columns of the same length.
func dot(a, b []float64) float64 {
	b = b[:len(a)]
	var s0, s1 float64
	i := 0
	for ; i+1 < len(a); i += 2 {
		s0 += a[i] * b[i]
		s1 += a[i+1] * b[i+1]
	}
	if i < len(a) {
		s0 += a[i] * b[i]
	}
	return s0 + s1
}
