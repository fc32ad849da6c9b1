package chart

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Plot is a drawing of values over time. Elements are drawn in this order, later ones on top.
type Plot struct {
	Title          string  // description as text
	Height         float64 // of the plot area in pixels, without the labels below it
	X, Y           Scale
	XTicks, YTicks []Tick
	Spans          []Span
	Lines          []Line
	Dots           []Dot
}

// Point is a position in a drawing, in the units of its scales; a NaN Y is unknown.
type Point struct{ X, Y float64 }

// Line is a line through points with gaps where one is unknown. With a Lower edge it is the area
// between the two, all of whose points must be known.
type Line struct {
	Class         string
	Points, Lower []Point
}

// Dot is a single point.
type Dot struct {
	Class string
	Point
}

// Span is a period that is coloured from top to bottom. A Number, from 1, is shown in a row below
// the axis.
type Span struct {
	Class, Title string
	From, To     float64
	Number       int
}

// Measures in pixels. A number's mark is at least as wide as the number, in a drawing of at least
// minWidth.
const (
	labelHeight   = 20 // below the axis
	markRowHeight = 12
	minWidth      = 300
	grid          = 1000 // not pixels: steps of paths in both directions
)

// Put adds the drawing to a page.
func (p Plot) Put(page *Page) {
	lanes, n := p.placeMarks()
	page.Put(`<svg class="plot" height="{}" role="img"><title>{}</title><rect width="100%" height="100%" opacity="0"/>`, p.Height+labelHeight+float64(n*markRowHeight), p.Title)
	page.Put("\n<svg height=\"{}\"><line class=\"grid\" x2=\"100%\" y1=\"100%\" y2=\"100%\"/>", p.Height)
	for _, m := range p.XTicks {
		x := p.X.At(m.Value)
		page.Put(`<line class="grid" x1="{}%" x2="{}%" y2="100%"/>`, x, x)
	}
	for _, m := range p.YTicks {
		y := p.y(m.Value)
		page.Put(`<line class="grid" x2="100%" y1="{}%" y2="{}%"/>`, y, y)
	}
	for _, s := range p.Spans {
		x := p.X.At(s.From)
		page.Put(`<rect class="during {}" x="{}%" width="{}%" height="100%"><title>{}</title></rect>`, s.Class, x, tenth(p.X.At(s.To)-x), s.Title)
	}
	page.Put(`<svg viewBox="0 0 {} {}" preserveAspectRatio="none">`, grid, grid)
	for _, l := range p.Lines {
		page.Put(`<path class="{}" d="{}"/>`, l.Class, p.path(l))
	}
	page.Put("</svg>")
	for _, d := range p.Dots {
		page.Put(`<circle class="{}" cx="{}%" cy="{}%" r="4"/>`, d.Class, p.X.At(d.X), p.y(d.Y))
	}
	p.putLabels(page)
	for i, l := range lanes {
		if s := p.Spans[i]; s.Number > 0 {
			y := p.Height + labelHeight + markRowHeight*float64(l.row)
			page.Put(`<g class="{}"><title>{}</title><rect x="{}%" y="{}" width="{}%" height="{}" rx="2"/>`, s.Class, s.Title, l.x, y, l.width, markRowHeight-2)
			page.Put(`<text class="number" x="{}%" y="{}" text-anchor="middle">{}</text></g>`, tenth(l.x+l.width/2), y+markRowHeight-3.5, s.Number)
		}
	}
	page.Put("</svg>\n")
}

// y returns the position of a value from the top, in percent.
func (p Plot) y(v float64) float64 { return tenth(100 - p.Y.At(v)) }

// putLabels adds the labels of values inside the plot, above their lines but below the highest,
// ends the plot area, and adds the labels of times below it.
func (p Plot) putLabels(page *Page) {
	const nearEdge = 4 // percent
	for _, m := range p.YTicks {
		if y := p.y(m.Value); y < 100 {
			dy := -3
			if y < nearEdge {
				dy = 11
			}
			page.Put(`<text x="2" y="{}%" dy="{}">{}</text>`, y, dy, m.Text)
		}
	}
	page.Put("</svg>\n")
	for _, m := range p.XTicks {
		x, anchor := p.X.At(m.Value), "middle"
		if x < nearEdge {
			anchor = "start"
		} else if x > 100-nearEdge {
			anchor = "end"
		}
		page.Put(`<text x="{}%" y="{}" text-anchor="{}">{}</text>`, x, p.Height+15, anchor, m.Text)
	}
}

// path returns the SVG path through a line's points in relative integer steps, which keeps pages
// small; empty where no point is known.
func (p Plot) path(l Line) string {
	var b strings.Builder
	x, y, down := 0, 0, false
	through := func(at Point) {
		if math.IsNaN(at.Y) {
			down = false
			return
		}
		toX, toY := int(math.Round(grid/100*p.X.At(at.X))), int(math.Round(grid/100*p.y(at.Y)))
		switch {
		case !down:
			fmt.Fprintf(&b, "M%d %d", toX, toY)
		case toY == y && toX != x:
			fmt.Fprintf(&b, "h%d", toX-x)
		case toY != y:
			fmt.Fprintf(&b, "l%d %d", toX-x, toY-y)
		}
		x, y, down = toX, toY, true
	}
	for _, at := range l.Points {
		through(at)
	}
	for _, at := range slices.Backward(l.Lower) {
		through(at)
	}
	if l.Lower != nil && down {
		b.WriteString("Z")
	}
	return strings.ReplaceAll(b.String(), " -", "-")
}

// markPosition is the position of a span's mark: x and width in percent, and its row below the axis.
type markPosition struct {
	x, width float64
	row      int
}

// placeMarks assigns each numbered span the first row in which it overlaps no other mark, and returns
// the number of rows. Spans must be sorted by their start.
func (p Plot) placeMarks() ([]markPosition, int) {
	out := make([]markPosition, len(p.Spans))
	var ends []float64 // x up to which each row is occupied
	for i, s := range p.Spans {
		if s.Number == 0 {
			continue
		}
		l := &out[i]
		number := 6 + 7*len(strconv.Itoa(s.Number))
		l.width = tenth(max(p.X.At(s.To)-p.X.At(s.From), 100*float64(number)/minWidth))
		l.x = tenth(min(p.X.At(s.From), 100-l.width))
		l.row = slices.IndexFunc(ends, func(end float64) bool { return end <= l.x })
		if l.row < 0 {
			l.row, ends = len(ends), append(ends, 0)
		}
		ends[l.row] = l.x + l.width
	}
	return out, len(ends)
}
