package tui

import (
	"cmp"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Limits of the chart, which fills the lines that the table leaves empty.
const (
	minChart       = 6  // lines, below which a sparkline is as good
	maxChart       = 14 // lines
	maxTallChart   = 26 // lines, in the overview
	chartFromWidth = 80
	axisWidth      = 6
)

// chart draws the output tokens per second of the shown regions over as much of the history
// as fits, in n lines: a title and bars.
func (s *screen) chart(t *Theme, n int) []string {
	if n == 0 {
		return nil
	}
	regions := s.shownRegions()
	cells := min(s.width-axisWidth-1, maxBuckets)
	rows := n - 3
	values, peak := s.chartValues(regions, cells)
	what := "all regions"
	if s.focus != "" {
		what = t.text(string(s.focus))
	}
	title := t.cut("output tok/s, "+what+", "+strings.ToLower(s.history.sparkSpan(cells)), s.width)
	lines := []string{"", t.heading.apply(title)}
	for row := rows - 1; row >= 0; row-- {
		var bars strings.Builder
		for _, v := range values {
			bars.WriteString(cmp.Or(t.bar(v, peak, row, rows), " "))
		}
		lines = append(lines, t.scale(peak, row, rows)+t.accent.apply(strings.TrimRight(bars.String(), " ")))
	}
	return append(lines, t.muted.apply(t.cut(s.timeAxis(cells), s.width)))
}

// timeAxis returns the times of a chart of n cells: its begin, its middle and its end.
func (s *screen) timeAxis(n int) string {
	at := func(cell int) string {
		return s.snapshot.At.Add(-time.Duration(n-cell) * s.history.cell).Format("15:04")
	}
	const label = len("15:04")
	middle := max(n/2-label/2, label+1)
	line := pad(pad("", axisWidth+1, false)+at(0), axisWidth+1+middle, false) + at(n/2)
	return pad(line, axisWidth+1+n-label, false) + at(n)
}

// shownRegions returns the regions whose replicas the table shows.
func (s *screen) shownRegions() []*telemetry.RegionSnapshot {
	return focused(regionsOf(s.snapshot), s.focus)
}

// focused returns the region of that name, or all regions if it is empty.
func focused(regions []*telemetry.RegionSnapshot, focus service.Region) []*telemetry.RegionSnapshot {
	if focus == "" {
		return regions
	}
	for i, r := range regions {
		if r.Name == focus {
			return regions[i : i+1]
		}
	}
	return nil
}

// chartValues returns the sums of the last n buckets, newest last and -1 for unknown, and
// the greatest of them.
func (s *screen) chartValues(regions []*telemetry.RegionSnapshot, n int) (values []float64, peak float64) {
	values = make([]float64, n)
	for i := range values {
		v, known := s.history.total(regions, s.history.last-int64(n-1-i))
		if !known {
			v = -1
		}
		values[i] = v
		peak = max(peak, v)
	}
	return values, peak
}
