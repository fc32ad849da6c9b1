// Package chart writes HTML pages with SVG drawings: values over time (Plot), and rows of bars and
// boxes (BarChart). The caller provides the values in its own units; the package computes scales,
// ticks, paths and legends, and page.css defines their style. A drawing is as wide as its
// container: x is in percent of the width, and text keeps its size. Read page.go first. The package
// is pure.
package chart

import (
	"math"
)

// Scale maps values to percent of a drawing's width or height.
type Scale struct {
	Low, High float64
	Log       bool // logarithmic, for a Low above 0
	// Low to Middle uses the first Share (0 to 1) of the scale and Middle to High the remainder; a
	// Share of 0 is a linear scale.
	Middle, Share float64
}

// minLogRatio is the ratio of the largest to the smallest value from which a scale is logarithmic:
// below it, a linear one still shows the smallest. maxLogRatio is the maximum ratio of a logarithmic
// scale, and maxTickedDecades the number of decades up to which ticks between the powers of ten fit.
const (
	minLogRatio      = 30
	maxLogRatio      = 1e6
	maxTickedDecades = 2.5
)

// FitScale returns a scale for values from low to high: linear from 0, or logarithmic where they are far
// apart.
func FitScale(low, high float64) Scale {
	high = max(high, 1e-3)
	if low > 0 && high/low > minLogRatio {
		return Scale{Low: max(low, high/maxLogRatio), High: high, Log: true}
	}
	return Scale{High: high}
}

// At returns the position of a value, in percent to a tenth. Values beyond the scale are at its
// edge, and NaN has no position.
func (s Scale) At(v float64) float64 {
	share := (v - s.Low) / (s.High - s.Low)
	switch {
	case s.Log:
		share = math.Log(max(v, s.Low)/s.Low) / math.Log(s.High/s.Low)
	case s.Share > 0 && v < s.Middle:
		share = s.Share * (v - s.Low) / (s.Middle - s.Low)
	case s.Share > 0:
		share = s.Share + (1-s.Share)*(v-s.Middle)/(s.High-s.Middle)
	}
	return tenth(100 * min(max(share, 0), 1))
}

func tenth(x float64) float64 { return math.Round(10*x) / 10 }

// Tick is a value on a scale with its label.
type Tick struct {
	Value float64
	Text  string
}

// Ticks returns round values: on a linear scale up to n+1 multiples from 0, on a logarithmic one
// powers of ten, and 2 and 5 times these where they fit.
func (s Scale) Ticks(n int, text func(float64) string) []Tick {
	var ticks []Tick
	if !s.Log {
		step := roundStep(s.High / float64(n))
		for i := 0; float64(i)*step <= s.High; i++ {
			ticks = append(ticks, Tick{float64(i) * step, text(float64(i) * step)})
		}
		return ticks
	}
	steps := []float64{1, 2, 5}
	if math.Log10(s.High/s.Low) > maxTickedDecades {
		steps = steps[:1]
	}
	for decade := math.Pow(10, math.Floor(math.Log10(s.Low))); decade <= s.High; decade *= 10 {
		for _, m := range steps {
			if v := m * decade; v >= s.Low && v <= s.High {
				ticks = append(ticks, Tick{v, text(v)})
			}
		}
	}
	return ticks
}

// roundStep returns the smallest of 1, 2, 5, 10, ... that is not below a step above 0.
func roundStep(step float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(step)))
	for _, m := range []float64{1, 2, 5} {
		if m*decade >= step {
			return m * decade
		}
	}
	return 10 * decade
}
