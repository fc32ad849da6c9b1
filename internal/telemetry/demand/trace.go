package demand

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/sim/workload"
	"skyserve/internal/telemetry"
)

// maxCells is the maximum number of points of a trace: a year of minutes of eight series.
const maxCells = 4 << 20

// headSlack is the maximum time between the start of a minute and the start of a trace for which that
// minute counts as complete.
const headSlack = time.Second

// cell is a minute of a series.
type cell struct {
	minute int64
	forecast.SeriesKey
}

// readTrace counts a trace's requests and tokens per minute.
func readTrace(name string, in io.Reader) (*found, error) {
	t, err := workload.OpenTrace(name, in, workload.TraceOptions{})
	if err != nil {
		return nil, err
	}
	counts := map[cell]*telemetry.Point{}
	var end time.Duration
	for {
		row, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		end = t.Origin() + row.At
		if err := count(counts, row, minuteOf(end)); err != nil {
			return nil, fmt.Errorf("reading history %s:%d: %w", name, row.Line, err)
		}
	}
	return whole(counts, t.Origin(), end), nil
}

func minuteOf(d time.Duration) int64 {
	m := int64(d / time.Minute)
	if d%time.Minute < 0 {
		m--
	}
	return m
}

func count(counts map[cell]*telemetry.Point, row workload.TraceRow, minute int64) error {
	c := cell{minute, rowKey(row)}
	p := counts[c]
	if p == nil {
		if len(counts) >= maxCells {
			return fmt.Errorf("all series together must have at most %d minutes", maxCells)
		}
		p = &telemetry.Point{Minute: minute, Region: c.Region, Model: c.Model, Tier: c.Tier}
		counts[c] = p
	}
	p.Requests++
	p.PromptTokens += int64(row.InputTokens)
	p.OutputTokens += int64(row.OutputTokens)
	return nil
}

// whole keeps the minutes that the trace covers completely. A minute without rows between
// the first and the last row has no load, in every region.
func whole(counts map[cell]*telemetry.Point, begin, end time.Duration) *found {
	first, last := minuteOf(begin), minuteOf(end) // the last minute continues after the last row
	if begin-time.Duration(first)*time.Minute > headSlack {
		first++
	}
	f := &found{}
	omitted := int64(0)
	seen := map[service.Region]map[int64]bool{}
	quiet := map[service.Region]telemetry.Point{} // by the region's first series
	for _, p := range sorted(counts) {
		if _, ok := quiet[p.Region]; !ok {
			seen[p.Region] = map[int64]bool{}
			quiet[p.Region] = telemetry.Point{Region: p.Region, Model: p.Model, Tier: p.Tier}
		}
		if p.Minute < first || p.Minute >= last {
			omitted += p.Requests
			continue
		}
		seen[p.Region][p.Minute] = true
		f.points = append(f.points, p)
	}
	for _, region := range regionsOf(quiet) {
		for m := first; m < last; m++ {
			if p := quiet[region]; !seen[region][m] {
				p.Minute = m
				f.points = append(f.points, p)
			}
		}
	}
	slices.SortStableFunc(f.points, func(a, b telemetry.Point) int { return cmp.Compare(a.Minute, b.Minute) })
	if omitted > 0 {
		if omitted == 1 {
			f.notes = append(f.notes, "1 request omitted: the trace covers only a part of its minute")
		} else {
			f.notes = append(f.notes, fmt.Sprintf("%d requests omitted: the trace covers only a part of their minutes", omitted))
		}
	}
	return f
}

// sorted returns the points by series and minute.
func sorted(counts map[cell]*telemetry.Point) []telemetry.Point {
	out := make([]telemetry.Point, 0, len(counts))
	for _, p := range counts {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b telemetry.Point) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Minute, b.Minute))
	})
	return out
}

func regionsOf(quiet map[service.Region]telemetry.Point) []service.Region {
	out := make([]service.Region, 0, len(quiet))
	for r := range quiet {
		out = append(out, r)
	}
	slices.Sort(out)
	return out
}
