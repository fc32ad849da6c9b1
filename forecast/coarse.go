package forecast

import (
	"slices"
	"time"
)

// coarse is a series in blocks (see blocks), as a series with a longer step.
type coarse struct {
	Series
	// size is the number of steps of the series in a block.
	size int
	// skipped is the number of steps of the series before the first block.
	skipped int
}

// coarsen returns the last blocks of a series, at most maxSteps. A block is as long as step, whether that divides a day
// or not (unlike blockSize), and at least a step of the series.
func coarsen(s Series, step time.Duration, maxSteps int) coarse {
	c := coarse{Series: s, size: s.steps(step)}
	n := min(len(s.Values)/c.size, maxSteps)
	c.skipped = len(s.Values) - n*c.size
	c.Step = s.Step * time.Duration(c.size)
	c.Values = slices.Clone(blocks(s.Values[c.skipped:], c.size)) // callers change them
	return c
}
