// Package chart is the geometry of drawings on pages: round marks on axes, and lines and
// bands as paths of SVG. It is pure; what is drawn and how it looks is the pages' own.
package chart

import (
	"fmt"
	"math"
	"strings"
)

// Tenth rounds a coordinate to what a drawing needs.
func Tenth(x float64) float64 { return math.Round(10*x) / 10 }

// RoundStep is the least of 1, 2, 5, 10, ... that is no smaller than a step above 0.
func RoundStep(step float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(step)))
	for _, m := range []float64{1, 2, 5} {
		if m*decade >= step {
			return m * decade
		}
	}
	return 10 * decade
}

// Marks are the multiples of a round step from 0 to high, up to n+1 of them.
func Marks(high float64, n int) []float64 {
	step := RoundStep(high / float64(n))
	var marks []float64
	for i := 0; float64(i)*step <= high; i++ {
		marks = append(marks, float64(i)*step)
	}
	return marks
}

// Point is a place in a drawing; a Y that is NaN is unknown.
type Point struct{ X, Y float64 }

// Line is the path through points, which breaks where one is unknown; empty where none is
// known.
func Line(points []Point) string {
	var b strings.Builder
	pen := "M"
	for _, p := range points {
		if math.IsNaN(p.Y) {
			pen = "M"
			continue
		}
		fmt.Fprintf(&b, "%s%g,%g", pen, p.X, p.Y)
		pen = "L"
	}
	return b.String()
}

// Band is the path around the area between two lines of known points; empty without any.
func Band(upper, lower []Point) string {
	if len(upper) == 0 || len(lower) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(Line(upper))
	for i := len(lower) - 1; i >= 0; i-- {
		fmt.Fprintf(&b, "L%g,%g", lower[i].X, lower[i].Y)
	}
	return b.String() + "Z"
}
