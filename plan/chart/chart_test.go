package chart

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func plain(v float64) string { return fmt.Sprint(v) }

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		scale Scale
		n     int
		want  string
	}{
		{Scale{High: 10}, 5, "0 2 4 6 8 10"},
		{Scale{High: 7}, 4, "0 2 4 6"},
		{Scale{High: 1}, 4, "0 0.5 1"},
		{Scale{High: 4300}, 4, "0 2000 4000"},
		{FitScale(1, 60), 5, "1 2 5 10 20 50"},
		{FitScale(1, 5000), 5, "1 10 100 1000"},
		{FitScale(3, 60), 4, "0 20 40 60"},
	} {
		var got []string
		for _, m := range c.scale.Ticks(c.n, plain) {
			got = append(got, m.Text)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %v, want %s", c.scale, got, c.want)
		}
	}
}

// A scale keeps the order of values, shows all of them, and has marks, whether
// logarithmic or not.
func TestScales(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		low := rapid.Float64Range(0, 100).Draw(rt, "low")
		high := low + rapid.Float64Range(0, 1e6).Draw(rt, "more")
		middle := low + (high-low)*rapid.Float64Range(0, 1).Draw(rt, "middle")
		s := FitScale(low, high)
		if a, b, d := s.At(low), s.At(middle), s.At(high); !(0 <= a && a <= b && b <= d && d <= 100) {
			rt.Fatalf("%v, %v, %v are at %v, %v, %v", low, middle, high, a, b, d)
		}
		marks := s.Ticks(5, plain)
		if len(marks) < 2 || len(marks) > 10 {
			rt.Fatalf("%d marks from %v to %v", len(marks), low, high)
		}
		for _, m := range marks {
			if m.Value < s.Low || m.Value > s.High {
				rt.Fatalf("a mark at %v of %+v", m, s)
			}
		}
	})
	bent := Scale{Low: -100, High: 10, Middle: 0, Share: 0.6}
	for v, want := range map[float64]float64{-100: 0, -50: 30, 0: 60, 5: 80, 10: 100, 11: 100, -200: 0} {
		if got := bent.At(v); got != want {
			t.Errorf("%v is at %v, want %v", v, got, want)
		}
	}
}

// A line has a gap where values are unknown, and an area returns along its lower edge.
func TestPaths(t *testing.T) {
	p := Plot{X: Scale{High: 10}, Y: Scale{High: 10}}
	for _, c := range []struct {
		line Line
		want string
	}{
		{Line{Points: []Point{{0, 1}, {1, 2}, {2, math.NaN()}, {3, 4}, {5, 4}, {5, 4}, {5, 0}}}, "M0 900l100-100M300 600h200l0 400"},
		{Line{Points: []Point{{0, math.NaN()}}}, ""},
		{Line{Points: []Point{{0, 9}, {1, 9}}, Lower: []Point{{0, 5}, {1, 4}}}, "M0 100h100l0 500l-100-100Z"},
		{Line{}, ""},
	} {
		if got := p.path(c.line); got != c.want {
			t.Errorf("%v: %s, want %s", c.line, got, c.want)
		}
	}
}

// A path interpreted like a browser contains every point.
func TestPathsContainEveryPoint(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		values := rapid.SliceOfN(rapid.IntRange(0, 100), 1, 60).Draw(rt, "values")
		p := Plot{X: Scale{High: float64(len(values))}, Y: Scale{High: 100}}
		var line Line
		for i, v := range values {
			line.Points = append(line.Points, Point{float64(i), float64(v)})
		}
		through := map[[2]int]bool{}
		var at [2]int
		for _, step := range regexp.MustCompile(`[Mlh][-0-9 ]*`).FindAllString(p.path(line), -1) {
			n := append(regexp.MustCompile(`-?[0-9]+`).FindAllString(step[1:], -1), "0")
			dx, _ := strconv.Atoi(n[0])
			dy, _ := strconv.Atoi(n[1])
			at = [2]int{at[0] + dx, at[1] + dy}
			through[at] = true
		}
		for _, point := range line.Points {
			want := [2]int{int(math.Round(10 * p.X.At(point.X))), 1000 - 10*int(point.Y)}
			if !through[want] {
				rt.Fatalf("%v is not on the path %s", want, p.path(line))
			}
		}
	})
}

// Marks of numbered spans are inside the drawing and do not overlap.
func TestMarkRowsDoNotOverlap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := Plot{X: Scale{High: 100}, Spans: []Span{{To: 20}}}
		from := 0.0
		for i := range rapid.IntRange(0, 40).Draw(rt, "spans") {
			from = min(100, from+rapid.Float64Range(0, 10).Draw(rt, "later"))
			p.Spans = append(p.Spans, Span{From: from, To: from + rapid.Float64Range(0, 50).Draw(rt, "long"), Number: i + 1})
		}
		lanes, n := p.placeMarks()
		for i, l := range lanes {
			if p.Spans[i].Number == 0 {
				continue
			}
			if l.x < 0 || l.x+l.width > 100.01 || l.row < 0 || l.row >= n {
				rt.Fatalf("%+v of %d rows", l, n)
			}
			for k, o := range lanes[:i] {
				if p.Spans[k].Number > 0 && o.row == l.row && o.x+0.01 < l.x+l.width && l.x+0.01 < o.x+o.width {
					rt.Fatalf("%+v and %+v", o, l)
				}
			}
		}
	})
}
