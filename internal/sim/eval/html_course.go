package eval

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/sim"
	"skyserve/plan/chart"
)

// The measures of a panel in SVG units, which are pixels where three panels stand
// side by side on a wide screen.
const (
	panelWidth  = 400
	panelLeft   = 36 // of the plot; counts stand to the left of it
	panelRight  = 382
	panelTop    = 6
	panelBottom = 126
	axisGap     = 14 // from the plot to the foot of the times
	laneTop     = 20 // from the plot to the first lane of events
	laneHeight  = 12
)

// The grid that lines run on, of steps small enough to look continuous. Lines in
// whole numbers keep the page small.
const (
	gridWide = 200
	gridHigh = 240
)

// drawnRegions is how many regions have a line of their own, one for each colour
// that people with any sight of colours tell apart; more are drawn as one.
const drawnRegions = 6

// courses are the loads over time of all policies on one scale.
type courses struct {
	Seed    uint64
	Regions []string // in the order of the lines' classes
	Events  []courseEvent
	Panels  []panel
	// Left, Right, Top and Bottom bound a plot, Width and Height a panel.
	Left, Right, Top, Bottom, Width, Height int
	GridWide, GridHigh                      int
	TimeY                                   int     // the foot of the times
	Times, Counts                           []tick  // Counts have their y for X
	Warm                                    float64 // x of the warm-up's end
	WarmTip                                 string
	high                                    float64 // the most of any line
	duration                                float64 // seconds
}

// Inner is the plot's width.
func (c *courses) Inner() int { return c.Right - c.Left }

// Tall is the plot's height.
func (c *courses) Tall() int { return c.Bottom - c.Top }

// Warmth is the width of the warm-up.
func (c *courses) Warmth() float64 { return chart.Tenth(c.Warm - float64(c.Left)) }

// courseEvent is a fault or a surge: what the scenario does to the run from From
// until To, in seconds.
type courseEvent struct {
	Number   int // from 1, by when they begin
	Surge    bool
	Text     string
	From, To float64
	X, Wide  float64 // of the band across the plot
	Lane     eventLane
}

// eventLane is the mark of an event under the time axis: at least as wide as its
// number, and under the marks that it would overlap.
type eventLane struct{ X, Y, Wide, High, Middle, Foot float64 }

// panel is one policy's course.
type panel struct {
	*entry
	Tip   string
	Lines []courseLine
}

// Speed is what the panel's heading says of the policy.
func (p *panel) Speed() string { return fmt.Sprintf("%.0f tok/s", p.speed()) }

// courseLine is the path of a region's load: of what is in its engines or, where
// Held, of what its balancers hold.
type courseLine struct {
	Region int
	Held   bool
	Path   string
}

// courses draws the load over time; nil where no course is known.
func (l *lineup) courses() *courses {
	constants := &l.report.Constants
	c := &courses{
		Left: panelLeft, Right: panelRight, Top: panelTop, Bottom: panelBottom, Width: panelWidth,
		GridWide: gridWide, GridHigh: gridHigh, TimeY: panelBottom + axisGap,
		duration: constants.Duration, Regions: regionNames(constants.Regions),
	}
	for i := range l.entries {
		e := &l.entries[i]
		for _, m := range e.course {
			for _, load := range drawnLoads(m.Regions) {
				c.high = max(c.high, float64(inEngines(load)), float64(load.Queued))
			}
		}
		if len(e.course) > 0 {
			c.Panels = append(c.Panels, panel{entry: e})
		}
	}
	if len(c.Panels) == 0 || c.duration <= 0 {
		return nil
	}
	c.Seed = l.report.Rows[0].Seed
	c.high = max(c.high, 1)
	c.axes(constants.Warmup)
	c.addEvents(constants)
	for i := range c.Panels {
		c.Panels[i].draw(c)
	}
	return c
}

// regionNames names the lines.
func regionNames(regions []sim.ConstantsRegion) []string {
	var names []string
	for _, r := range regions {
		names = append(names, r.Name)
	}
	if len(names) > drawnRegions {
		others := len(names) - drawnRegions + 1
		names = append(names[:drawnRegions-1], fmt.Sprintf("%d others", others))
	}
	return names
}

// drawnLoads are the loads that lines are drawn of.
func drawnLoads(regions []sim.RegionLoad) []sim.RegionLoad {
	if len(regions) <= drawnRegions {
		return regions
	}
	drawn := slices.Clone(regions[:drawnRegions])
	others := &drawn[drawnRegions-1]
	for _, r := range regions[drawnRegions:] {
		others.Queued += r.Queued
		others.Pending += r.Pending
		others.Running += r.Running
	}
	return drawn
}

func inEngines(l sim.RegionLoad) int { return l.Pending + l.Running }

// x is where a time in seconds stands.
func (c *courses) x(at float64) float64 {
	return chart.Tenth(panelLeft + min(max(at/c.duration, 0), 1)*(panelRight-panelLeft))
}

func (c *courses) axes(warmup float64) {
	for _, v := range chart.Marks(c.duration, 5) {
		c.Times = append(c.Times, tick{c.x(v), plain(v)})
	}
	c.Times[len(c.Times)-1].Label += " s"
	for _, v := range chart.Marks(c.high, 4) {
		if v == float64(int(v)) { // requests are whole
			c.Counts = append(c.Counts, tick{chart.Tenth(panelBottom - v/c.high*(panelBottom-panelTop)), plain(v)})
		}
	}
	c.Warm = c.x(warmup * c.duration)
	c.WarmTip = fmt.Sprintf("warm-up, to %s s: no figure counts it", plain(warmup*c.duration))
}

// addEvents numbers the scenario's faults and surges by when they begin, and
// places them under the time axis. What would come after the end is left out.
func (c *courses) addEvents(constants *sim.Constants) {
	for i := range constants.Surges {
		s := &constants.Surges[i]
		c.Events = append(c.Events, courseEvent{Surge: true, Text: fmt.Sprintf("%s times the load in %s", plain(s.Factor), s.Region), From: s.From, To: s.To})
	}
	for i := range constants.Faults {
		f := &constants.Faults[i]
		c.Events = append(c.Events, courseEvent{Text: faultText(f), From: f.From, To: f.To})
	}
	c.Events = slices.DeleteFunc(c.Events, func(e courseEvent) bool { return e.From >= c.duration })
	slices.SortStableFunc(c.Events, func(a, b courseEvent) int { return cmp.Compare(a.From, b.From) })
	var ends []float64 // x that each lane is taken to
	for i := range c.Events {
		e := &c.Events[i]
		e.Number = i + 1
		e.Text += fmt.Sprintf(", %s to %s s", plain(e.From), plain(e.To))
		e.X = c.x(e.From)
		e.Wide = chart.Tenth(c.x(e.To) - e.X)
		ends = e.settle(ends)
	}
	c.Height = panelBottom + laneTop + laneHeight*len(ends)
}

// settle gives the event the first lane that is free, and takes it.
func (e *courseEvent) settle(ends []float64) []float64 {
	l := &e.Lane
	l.Wide = max(e.Wide, float64(6+7*len(strconv.Itoa(e.Number))))
	l.X = min(e.X, panelRight-l.Wide)
	free := slices.IndexFunc(ends, func(end float64) bool { return end <= l.X })
	if free < 0 {
		free = len(ends)
		ends = append(ends, 0)
	}
	ends[free] = l.X + l.Wide
	l.Y, l.High = float64(panelBottom+laneTop+free*laneHeight), laneHeight-2
	l.Middle, l.Foot = chart.Tenth(l.X+l.Wide/2), l.Y+laneHeight-3.5
	return ends
}

// faultText says in words what a fault is.
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

// draw makes the panel's lines: what is held below, what is in the engines above.
func (p *panel) draw(c *courses) {
	p.Tip = fmt.Sprintf("%s, seed %d, after the warm-up", p.name(), c.Seed)
	var held, served []courseLine
	for region, name := range c.Regions {
		queued := p.follow(region, func(l sim.RegionLoad) int { return l.Queued })
		inside := p.follow(region, inEngines)
		p.Tip += fmt.Sprintf("\n%s: in the engines %s; held %s", name, c.sum(inside), c.sum(queued))
		if slices.ContainsFunc(queued, func(s sample) bool { return s.count > 0 }) {
			held = append(held, courseLine{region, true, c.path(queued, true)})
		}
		served = append(served, courseLine{region, false, c.path(inside, false)})
	}
	p.Lines = append(held, served...)
}

// sample is a count of requests at a time.
type sample struct {
	at    time.Duration
	count int
}

func (p *panel) follow(region int, get func(sim.RegionLoad) int) []sample {
	samples := make([]sample, 0, len(p.course))
	for _, m := range p.course {
		if loads := drawnLoads(m.Regions); region < len(loads) {
			samples = append(samples, sample{m.At, get(loads[region])})
		}
	}
	return samples
}

// sum says the mean and the most of the samples after the warm-up.
func (c *courses) sum(samples []sample) string {
	n, total, most := 0, 0, 0
	for _, s := range samples {
		if c.x(s.at.Seconds()) >= c.Warm {
			n, total, most = n+1, total+s.count, max(most, s.count)
		}
	}
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f on average, %d at most", float64(total)/float64(n), most)
}

// path runs through the samples on the grid. One that is closed starts and ends on
// the ground, so that it bounds an area.
func (c *courses) path(samples []sample, closed bool) string {
	var b strings.Builder
	x, y, level := 0, gridHigh, 0
	flat := func() {
		if level > 0 {
			fmt.Fprintf(&b, "h%d", level)
		}
		level = 0
	}
	for i, s := range samples {
		atX := int(min(s.at.Seconds()/c.duration, 1)*gridWide + 0.5)
		atY := gridHigh - int(float64(s.count)/c.high*gridHigh+0.5)
		switch {
		case i == 0 && closed:
			fmt.Fprintf(&b, "M%d %dv%d", atX, gridHigh, atY-gridHigh)
		case i == 0:
			fmt.Fprintf(&b, "M%d %d", atX, atY)
		case atY == y:
			level += atX - x
		default:
			flat()
			fmt.Fprintf(&b, "l%d %d", atX-x, atY-y)
		}
		x, y = atX, atY
	}
	flat()
	if closed {
		fmt.Fprintf(&b, "V%d", gridHigh)
	}
	return strings.ReplaceAll(b.String(), " -", "-")
}
