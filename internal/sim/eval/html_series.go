package eval

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"skyserve/internal/sim"
	"skyserve/plan/chart"
)

// maxLines is the maximum number of lines, one for each colour that colour-blind readers can
// distinguish. Further regions share the last line.
const maxLines = 6

// loadSeries holds the load over time of all policies, with one scale.
type loadSeries struct {
	Seed    uint64
	Regions []string // in the order of the lines' classes
	Panels  []panel
	frame   chart.Plot // common to all panels: scales, faults and surges
	warm    float64    // the end of the warm-up in seconds
}

// panel is the chart of one policy's load over time.
type panel struct {
	*entry
	chart.Plot
}

// regionClass returns the CSS class of a region's line: requests in its engines (run) or queued at its
// balancers (held).
func regionClass(what string, region int) string { return fmt.Sprintf("%s c%d", what, region) }

// loadSeries draws the load over time; nil without time series.
func (l *lineup) loadSeries() *loadSeries {
	constants := &l.report.Constants
	c := &loadSeries{Regions: regionNames(constants.Regions), warm: constants.Warmup * constants.Duration}
	high := 1.0
	for i := range l.entries {
		e := &l.entries[i]
		for _, m := range e.series {
			for _, load := range lineLoads(m.Regions) {
				high = max(high, float64(inEngines(load)), float64(load.Queued))
			}
		}
		if len(e.series) > 0 {
			c.Panels = append(c.Panels, panel{entry: e})
		}
	}
	if len(c.Panels) == 0 || constants.Duration <= 0 {
		return nil
	}
	c.Seed = l.report.Rows[0].Seed
	c.frame = chart.Plot{Height: 120, X: chart.Scale{High: constants.Duration}, Y: chart.Scale{High: high}}
	c.frame.XTicks = c.frame.X.Ticks(5, func(v float64) string { return plain(v) + " s" })
	c.frame.YTicks = wholeMarks(c.frame.Y, 4)
	if c.warm > 0 {
		c.frame.Spans = []chart.Span{{Class: "warm", To: c.warm, Title: fmt.Sprintf("warm-up until %s s, excluded from all figures", plain(c.warm))}}
	}
	c.frame.Spans = append(c.frame.Spans, events(constants)...)
	for i := range c.Panels {
		c.Panels[i].draw(c)
	}
	return c
}

// wholeMarks returns the axis marks of a count.
func wholeMarks(s chart.Scale, n int) []chart.Tick {
	return slices.DeleteFunc(s.Ticks(n, plain), func(m chart.Tick) bool { return m.Value != math.Trunc(m.Value) })
}

// regionNames returns the names of the lines.
func regionNames(regions []sim.ConstantsRegion) []string {
	var names []string
	for _, r := range regions {
		names = append(names, r.Name)
	}
	if len(names) > maxLines {
		others := len(names) - maxLines + 1
		names = append(names[:maxLines-1], fmt.Sprintf("%d others", others))
	}
	return names
}

// lineLoads returns the load of each line.
func lineLoads(regions []sim.RegionLoad) []sim.RegionLoad {
	if len(regions) <= maxLines {
		return regions
	}
	drawn := slices.Clone(regions[:maxLines])
	others := &drawn[maxLines-1]
	for _, r := range regions[maxLines:] {
		others.Queued += r.Queued
		others.Pending += r.Pending
		others.Running += r.Running
	}
	return drawn
}

func inEngines(l sim.RegionLoad) int { return l.Pending + l.Running }

// events numbers the scenario's faults and surges by start time. It omits those after the end of the
// run.
func events(constants *sim.Constants) []chart.Span {
	var out []chart.Span
	for i := range constants.Surges {
		s := &constants.Surges[i]
		out = append(out, chart.Span{Class: "surge", Title: fmt.Sprintf("%s times the load in %s", plain(s.Factor), s.Region), From: s.From, To: s.To})
	}
	for i := range constants.Faults {
		f := &constants.Faults[i]
		out = append(out, chart.Span{Class: "fault", Title: faultText(f), From: f.From, To: f.To})
	}
	out = slices.DeleteFunc(out, func(e chart.Span) bool { return e.From >= constants.Duration })
	slices.SortStableFunc(out, func(a, b chart.Span) int { return cmp.Compare(a.From, b.From) })
	for i := range out {
		e := &out[i]
		e.Number = i + 1
		e.Title += fmt.Sprintf(", %s to %s s", plain(e.From), plain(e.To))
	}
	return out
}

// faultText describes a fault.
func faultText(f *sim.ConstantsFault) string {
	who := cmp.Or(f.Replica, f.Region, "all")
	switch f.Kind {
	case sim.ReplicaSlow:
		return fmt.Sprintf("%s: %s takes %s times as long", f.Kind, who, plain(f.Factor))
	case sim.LinkCut:
		return fmt.Sprintf("%s: %s and %s", f.Kind, who, f.Peer)
	case sim.ProbeLoss:
		return fmt.Sprintf("%s: %s%% of %s", f.Kind, plain(100*f.Share), who)
	case sim.ReportDelay:
		return fmt.Sprintf("%s: %s ms, %s", f.Kind, plain(f.Delay), who)
	case sim.BalancerDown:
		if f.Balancer > 0 {
			who += " " + strconv.Itoa(f.Balancer)
		}
	}
	return fmt.Sprintf("%s: %s", f.Kind, who)
}

// draw creates the panel's lines: queued requests below, requests in the engines above.
func (p *panel) draw(c *loadSeries) {
	p.Plot = c.frame
	p.Title = fmt.Sprintf("%s, seed %d, after the warm-up", p.name(), c.Seed)
	var held, served []chart.Line
	for region, name := range c.Regions {
		queued := p.points(region, func(l sim.RegionLoad) int { return l.Queued })
		inside := p.points(region, inEngines)
		p.Title += fmt.Sprintf("\n%s: in engines %s; queued %s", name, c.summarise(inside), c.summarise(queued))
		if slices.ContainsFunc(queued, func(s chart.Point) bool { return s.Y > 0 }) {
			ground := []chart.Point{{X: queued[0].X}, {X: queued[len(queued)-1].X}}
			held = append(held, chart.Line{Class: regionClass("held", region), Points: queued, Lower: ground})
		}
		served = append(served, chart.Line{Class: regionClass("run", region), Points: inside})
	}
	p.Lines = append(held, served...)
}

// points returns a count of requests in a region over time, in seconds.
func (p *panel) points(region int, get func(sim.RegionLoad) int) []chart.Point {
	points := make([]chart.Point, 0, len(p.series))
	for _, m := range p.series {
		if loads := lineLoads(m.Regions); region < len(loads) {
			points = append(points, chart.Point{X: m.At.Seconds(), Y: float64(get(loads[region]))})
		}
	}
	return points
}

// summarise formats the mean and the maximum of the counts after the warm-up.
func (c *loadSeries) summarise(counts []chart.Point) string {
	n, total, highest := 0.0, 0.0, 0.0
	for _, s := range counts {
		if s.X >= c.warm {
			n, total, highest = n+1, total+s.Y, max(highest, s.Y)
		}
	}
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("mean %.1f, max %.0f", total/n, highest)
}
