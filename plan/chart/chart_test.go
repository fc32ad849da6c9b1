package chart

import (
	"math"
	"slices"
	"testing"
)

func TestMarks(t *testing.T) {
	for _, c := range []struct {
		high float64
		n    int
		want []float64
	}{{10, 5, []float64{0, 2, 4, 6, 8, 10}}, {7, 4, []float64{0, 2, 4, 6}}, {1, 4, []float64{0, 0.5, 1}}, {4_300, 4, []float64{0, 2000, 4000}}} {
		if got := Marks(c.high, c.n); !slices.Equal(got, c.want) {
			t.Errorf("to %g: %v, want %v", c.high, got, c.want)
		}
	}
}

// A line breaks where nothing is known, and a band comes back along its lower edge.
func TestPaths(t *testing.T) {
	points := []Point{{0, 1}, {1, 2}, {2, math.NaN()}, {3, 4.5}}
	if got := Line(points); got != "M0,1L1,2M3,4.5" {
		t.Error(got)
	}
	if got := Line([]Point{{0, math.NaN()}}); got != "" {
		t.Error(got)
	}
	if got := Band([]Point{{0, 1}, {1, 1}}, []Point{{0, 5}, {1, 6}}); got != "M0,1L1,1L1,6L0,5Z" {
		t.Error(got)
	}
	if got := Band(nil, nil); got != "" {
		t.Error(got)
	}
	if got := Tenth(1.26); got != 1.3 {
		t.Error(got)
	}
}
