package tui

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// A cell of a plot is the mean of the known steps in its time, or the value of the step
// that contains it. It is empty before the first step and after the last.
func TestMeanOver(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		values     []float64
		from, cell time.Duration
		want       float64
	}{
		{[]float64{1, 3, 5, 7}, 2 * time.Minute, 2 * time.Minute, 6},
		{[]float64{1, 3, nan, 7}, time.Minute, 2 * time.Minute, 3},
		{[]float64{1, nan}, time.Minute, time.Minute, nan},
		{[]float64{4, 5}, 90 * time.Second, 20 * time.Second, 5},
		{[]float64{4}, -2 * time.Minute, time.Minute, nan},
		{[]float64{4}, 2 * time.Minute, time.Minute, nan},
		{nil, 0, time.Minute, nan},
	} {
		if got := meanOver(c.values, time.Minute, c.from, c.cell); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%v from %v over %v: %v, want %v", c.values, c.from, c.cell, got, c.want)
		}
	}
	if got := meanOver([]float64{1}, 0, 0, time.Minute); !math.IsNaN(got) {
		t.Errorf("without a step: %v", got)
	}
}
