package plan

import (
	"fmt"
	"math"
	"time"

	"skyserve/plan/chart"
)

// The last day takes pastShare of a chart's width and the forecast the remainder: to scale, an hour
// would be too narrow to see.
const (
	pastShare   = 0.6
	pastMinutes = 24 * 60
	pastBin     = 5 // minutes whose mean is one point
	yTicks      = 4
)

// chartLegend is the legend of a load curve's lines and areas.
var chartLegend = []chart.LegendEntry{
	{Class: "past", Text: "the last day, means of 5 minutes"},
	{Class: "load", Text: "planned load"},
	{Class: "band", Area: true, Text: "forecast, 90 % prediction interval"},
	{Class: "current-capacity", Text: "current capacity"},
	{Class: "planned-capacity", Text: "planned capacity"},
	{Class: "divide", Text: "time of the plan; wider scale after it"},
}

// loadChart is the chart of one load curve.
type loadChart struct {
	Model, Region, Summary string
	AboveCapacity          bool // load is above current capacity, which is not zero
	chart.Plot
}

// chart draws a load curve over minutes relative to the plan's time.
func (p Report) chart(c LoadCurve) loadChart {
	ahead := max(1, float64(len(c.Planned)))
	peak, minute := c.Peak()
	out := loadChart{Model: c.Model, Region: c.Region, Summary: p.summarise(c), AboveCapacity: c.CurrentCapacity > 0 && peak > c.CurrentCapacity*(1+relTolerance)}
	out.Title = fmt.Sprintf("%s in %s: %s", c.Model, c.Region, out.Summary)
	out.Height = 150
	out.X = chart.Scale{Low: -pastMinutes, High: ahead, Middle: 0, Share: pastShare}
	out.Y = chart.Scale{High: scaleTop(c)}
	out.YTicks = out.Y.Ticks(yTicks, formatRate)
	for _, at := range []float64{-pastMinutes, -pastMinutes / 2, 0, ahead / 2, ahead} {
		label := fmt.Sprintf("%+.0fm", at)
		if p.Proposal.At != nil {
			label = p.Proposal.At.Add(time.Duration(at) * time.Minute).Format("15:04")
		}
		out.XTicks = append(out.XTicks, chart.Tick{Value: at, Text: label})
	}
	out.Lines = []chart.Line{
		{Class: "divide", Points: []chart.Point{{X: 0, Y: 0}, {X: 0, Y: out.Y.High}}},
		{Class: "past", Points: binPoints(binMeans(c.History), -float64(len(c.History)), pastBin)},
		{Class: "current-capacity", Points: []chart.Point{{X: -pastMinutes, Y: c.CurrentCapacity}, {X: ahead, Y: c.CurrentCapacity}}},
		{Class: "planned-capacity", Points: c.capacityOverTime()},
		{Class: "load", Points: binPoints(c.Planned, 0, 1)},
	}
	if len(c.Lo90) == len(c.Hi90) && len(c.Hi90) > 0 {
		band := chart.Line{Class: "band", Points: binPoints(c.Hi90, 0, 1), Lower: binPoints(c.Lo90, 0, 1)}
		out.Lines = append([]chart.Line{band}, out.Lines...)
	}
	if peak > 0 {
		at := chart.Point{X: float64(minute) + 0.5, Y: peak}
		out.Lines = append(out.Lines, chart.Line{Class: "high", Points: []chart.Point{at, {X: at.X, Y: c.PeakHigh}}})
		out.Dots = []chart.Dot{{Class: "dot", Point: at}}
	}
	return out
}

// scaleTop returns the upper end of the Y scale: the highest value and a margin.
func scaleTop(c LoadCurve) float64 {
	highest := math.Max(c.CurrentCapacity, c.PeakHigh)
	if c.PlannedCapacity != nil {
		highest = math.Max(highest, *c.PlannedCapacity)
	}
	for _, values := range [][]float64{binMeans(c.History), c.Planned, c.Hi90} {
		for _, v := range values {
			if v > highest { // false for NaN
				highest = v
			}
		}
	}
	if highest <= 0 {
		return 1
	}
	return 1.08 * highest
}

// binMeans returns the means of every pastBin minutes, NaN where all of them are.
func binMeans(values []float64) []float64 {
	var out []float64
	for at := 0; at < len(values); at += pastBin {
		var sum, n float64
		for _, v := range values[at:min(at+pastBin, len(values))] {
			if !math.IsNaN(v) {
				sum, n = sum+v, n+1
			}
		}
		out = append(out, sum/n)
	}
	return out
}

// binPoints converts values of step minutes each, starting at from, to points at their middles.
func binPoints(values []float64, from float64, step int) []chart.Point {
	out := make([]chart.Point, len(values))
	for n, v := range values {
		out[n] = chart.Point{X: from + (float64(n)+0.5)*float64(step), Y: v}
	}
	return out
}

// capacityOverTime returns the capacity after the plan: a higher one applies when new replicas are ready, a lower one at
// once; nil without a plan.
func (c LoadCurve) capacityOverTime() []chart.Point {
	if c.PlannedCapacity == nil {
		return nil
	}
	now, then, from, end := c.CurrentCapacity, *c.PlannedCapacity, 0.0, float64(len(c.Planned))
	if then > now {
		from = min(end, c.StartUp.Minutes())
	}
	return []chart.Point{{X: 0, Y: now}, {X: from, Y: now}, {X: from, Y: then}, {X: end, Y: then}}
}

// summarise describes a load curve: its planned peak and its capacity.
func (p Report) summarise(c LoadCurve) string {
	capacity := formatRate(c.CurrentCapacity)
	if c.PlannedCapacity != nil && *c.PlannedCapacity != c.CurrentCapacity {
		capacity += " → " + formatRate(*c.PlannedCapacity)
	}
	tps, minute := c.Peak()
	if tps == 0 {
		return fmt.Sprintf("planned load 0; capacity %s tokens/s", capacity)
	}
	s := fmt.Sprintf("peak %s %s", formatRate(tps), p.describeMinute(minute))
	if c.PeakHigh > tps*1.005 {
		s += fmt.Sprintf(", p95 %s", formatRate(c.PeakHigh))
	}
	return s + fmt.Sprintf("; capacity %s tokens/s", capacity)
}
