package forecast

import (
	"math"
	"time"
)

// blocks returns the means of blocks of size steps, which are aligned to the end of the series, so that the last block
// is whole. A mean is that of the block's known values, NaN where less than half of the values are known.
func blocks(values []float64, size int) []float64 {
	if size <= 1 {
		return values
	}
	n := len(values) / size
	out := make([]float64, n)
	for b := range out {
		from := len(values) - (n-b)*size
		var sum float64
		have := 0
		for _, v := range values[from : from+size] {
			if !math.IsNaN(v) {
				sum += v
				have++
			}
		}
		out[b] = math.NaN()
		if 2*have >= size {
			out[b] = sum / float64(have)
		}
	}
	return out
}

// blockSize returns the number of steps in a block of about d that divides a day; 1 for steps
// longer than d.
func (s Series) blockSize(d time.Duration) int {
	perDay := s.steps(day)
	for size := s.steps(d); size > 1; size-- {
		if perDay%size == 0 {
			return size
		}
	}
	return 1
}

// unblock converts blocks back to single steps: each block's value is at its middle, with linear
// interpolation between two middles.
func unblock(means []float64, size, horizon int) []float64 {
	out := make([]float64, horizon)
	last := len(means) - 1
	for h := range out {
		x := max(0, (float64(h)+0.5)/float64(size)-0.5)
		i := min(int(x), last)
		next := means[min(i+1, last)]
		out[h] = means[i] + (x-float64(i))*(next-means[i])
	}
	return out
}

// blocksOf returns the number of blocks that cover a horizon.
func blocksOf(horizon, size int) int { return (horizon + size - 1) / size }
