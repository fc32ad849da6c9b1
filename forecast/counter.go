package forecast

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// maxLapse is the maximum distance of two readings of a counter, in steps. Their increase is spread
// evenly, which over a longer time would invent a load curve.
const maxLapse = 5

// CounterIncreases converts readings of counters to their increase in each step: one sample per step,
// source and key, at the step's start. A counter that falls was reset to zero. Only steps that the
// readings cover completely are returned; others are unknown. The step is in whole seconds, above
// 0.
func CounterIncreases(readings []Sample, step time.Duration) ([]Sample, BuildReport, error) {
	if step < time.Second || step%time.Second != 0 {
		return nil, BuildReport{}, fmt.Errorf("differencing counters: step: must be whole seconds, got %s", step)
	}
	b := builder{BuildOptions: BuildOptions{Step: step}, step: int64(step / time.Second)}
	sorted := b.dedupe(readings)
	slices.SortStableFunc(sorted, func(x, y Sample) int {
		return cmp.Or(compareKeys(x.SeriesKey, y.SeriesKey), cmp.Compare(x.Source, y.Source), cmp.Compare(x.At, y.At))
	})
	var out []Sample
	for from := 0; from < len(sorted); {
		to := from + 1
		for to < len(sorted) && sorted[to].SeriesKey == sorted[from].SeriesKey && sorted[to].Source == sorted[from].Source {
			to++
		}
		c := counter{builder: &b}
		for i := from + 1; i < to; i++ {
			if err := c.addReadings(sorted[i-1], sorted[i]); err != nil {
				return nil, b.report, err
			}
		}
		out = append(out, c.coveredSteps()...)
		from = to
	}
	return out, b.report, nil
}

// counter is the increase of one counter by steps, and the part of each step that its readings
// cover.
type counter struct {
	*builder
	steps   []Sample
	covered []int64 // seconds
}

// addReadings distributes the counter's increase between two readings.
func (c *counter) addReadings(a, b Sample) error {
	for _, s := range []Sample{a, b} {
		if s.Value < 0 || s.Value > maxValue {
			return fmt.Errorf("differencing counters: %s at %s: must be 0 to %g, got %g", s.SeriesKey, formatTime(s.At), float64(maxValue), s.Value)
		}
	}
	grown := b.Value - a.Value
	if grown < 0 {
		c.report.Resets.add(b.SeriesKey, b.At)
		grown = b.Value
	}
	if b.At-a.At > maxLapse*c.step {
		c.report.LongReadGaps.add(a.SeriesKey, a.At)
		return nil
	}
	for at := a.At; at < b.At; {
		begin := floorDiv(at, c.step) * c.step
		end := min(begin+c.step, b.At)
		c.addIncrease(b, begin, grown*float64(end-at)/float64(b.At-a.At), end-at)
		at = end
	}
	return nil
}

// addIncrease adds to the step that begins at begin; steps must be in order.
func (c *counter) addIncrease(of Sample, begin int64, by float64, seconds int64) {
	if n := len(c.steps); n == 0 || c.steps[n-1].At != begin {
		c.steps = append(c.steps, Sample{SeriesKey: of.SeriesKey, Source: of.Source, At: begin})
		c.covered = append(c.covered, 0)
	}
	last := len(c.steps) - 1
	c.steps[last].Value += by
	c.covered[last] += seconds
}

// coveredSteps returns the steps that the readings cover completely.
func (c *counter) coveredSteps() []Sample {
	out := c.steps[:0]
	for i, s := range c.steps {
		if c.covered[i] == c.step {
			out = append(out, s)
		}
	}
	return out
}
