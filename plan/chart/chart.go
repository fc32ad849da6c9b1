// Package chart writes pages of HTML and draws on them, as SVG: values over time (Plot),
// and rows of bars and boxes (Rows). A caller says what is to be drawn, in its own units;
// scales, marks, paths and legends are made here, and page.css says how they look. A
// drawing is as wide as its place: x is in percent of its width, and letters keep their
// size. Read page.go first. The package is pure.
package chart

import (
	"math"
)

// Scale maps values to percent of a drawing's width or height.
type Scale struct {
	Low, High float64
	Log       bool // logarithmic, for a Low above 0
	// Low to Middle takes Share (0 to 1) of the whole and the rest what is left of it; a
	// Share of 0 is an even scale.
	Middle, Share float64
}

// farApart is the ratio of the largest to the smallest value from which on a scale is
// logarithmic: below it, an even one still shows the smallest. widest is the most that
// such a scale spans, and fewDecades how many decades leave room for marks between the
// powers of ten.
const (
	farApart   = 30
	widest     = 1e6
	fewDecades = 2.5
)

// Fit is a scale for values from low to high: even from 0, or logarithmic where they are
// far apart.
func Fit(low, high float64) Scale {
	high = max(high, 1e-3)
	if low > 0 && high/low > farApart {
		return Scale{Low: max(low, high/widest), High: high, Log: true}
	}
	return Scale{High: high}
}

// At is where a value stands, in percent to a tenth; what lies beyond the scale stands
// at its edge, and NaN nowhere.
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

// Mark is a value on a scale with its label.
type Mark struct {
	Value float64
	Text  string
}

// Marks are round values: on an even scale up to n+1 multiples from 0, on a logarithmic
// one powers of ten, and 2 and 5 times these where there is room.
func (s Scale) Marks(n int, text func(float64) string) []Mark {
	var marks []Mark
	if !s.Log {
		step := roundStep(s.High / float64(n))
		for i := 0; float64(i)*step <= s.High; i++ {
			marks = append(marks, Mark{float64(i) * step, text(float64(i) * step)})
		}
		return marks
	}
	steps := []float64{1, 2, 5}
	if math.Log10(s.High/s.Low) > fewDecades {
		steps = steps[:1]
	}
	for decade := math.Pow(10, math.Floor(math.Log10(s.Low))); decade <= s.High; decade *= 10 {
		for _, m := range steps {
			if v := m * decade; v >= s.Low && v <= s.High {
				marks = append(marks, Mark{v, text(v)})
			}
		}
	}
	return marks
}

// roundStep is the least of 1, 2, 5, 10, ... that is no smaller than a step above 0.
func roundStep(step float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(step)))
	for _, m := range []float64{1, 2, 5} {
		if m*decade >= step {
			return m * decade
		}
	}
	return 10 * decade
}
