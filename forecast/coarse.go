package forecast

import (
	"math"
	"time"
)

// coarse is a series at a coarser step, aligned to the series' end. A step's value is the mean of
// its known values, unknown where less than half of them are known.
type coarse struct {
	Series
	// each is the number of steps of the series in one coarse step.
	each int
	// skipped is the number of steps of the series before the first coarse one.
	skipped int
}

// coarsen combines steps until they are at least as long as step, and keeps at most the
// last maxSteps of them.
func coarsen(s Series, step time.Duration, maxSteps int) coarse {
	c := coarse{Series: s, each: s.steps(step)}
	n := min(len(s.Values)/c.each, maxSteps)
	c.skipped = len(s.Values) - n*c.each
	c.Step = s.Step * time.Duration(c.each)
	c.Values = make([]float64, n)
	for i := range c.Values {
		c.Values[i] = meanOfKnown(s.Values[c.skipped+i*c.each : c.skipped+(i+1)*c.each])
	}
	return c
}

// meanOfKnown returns the mean of the known values, unknown where less than half are.
func meanOfKnown(values []float64) float64 {
	var sum float64
	n := 0
	for _, v := range values {
		if !math.IsNaN(v) {
			sum += v
			n++
		}
	}
	if 2*n < len(values) || n == 0 {
		return math.NaN()
	}
	return sum / float64(n)
}

// fine interpolates coarse means over horizon steps of the series, on the line between the middles
// of the coarse steps, and never below 0.
func (c coarse) fine(means []float64, horizon int) []float64 {
	out := make([]float64, horizon)
	for h := range out {
		x := (float64(h)+0.5)/float64(c.each) - 0.5
		i := min(max(0, int(math.Floor(x))), len(means)-1)
		j := min(i+1, len(means)-1)
		f := min(max(0, x-float64(i)), 1)
		out[h] = max(0, means[i]+f*(means[j]-means[i]))
	}
	return out
}
