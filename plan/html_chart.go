package plan

import (
	"fmt"
	"math"
	"time"

	"skyserve/plan/chart"
)

// The drawing of a course: lines are drawn in a frame that stretches with the
// page, so x is in thousandths of its width and y in pixels. The last day takes
// pastShare of the width, the forecast the rest, or its hour would be a hair.
const (
	chartWidth  = 1000.0
	chartHeight = 150.0
	pastShare   = 0.6
	pastMinutes = 24 * 60
	pastBin     = 5 // minutes whose mean is one point
	yMarks      = 4
)

// courseChart is one course as the page draws it.
type courseChart struct {
	Model, Region, Summary string
	Past, Band, Mean       string // paths
	Now, Then              string
	Before                 string // what stands now, over a past that is not known to have had it
	Short                  bool   // load is above what stands now
	PeakX, PeakY, HighY    float64
	PeakLabel              string
	YTicks                 []yTick
	XTicks                 []xTick
	Width, Height          float64
	Divide                 float64 // x of the plan's time, percent
	HasPast, HasBand       bool
}

type yTick struct {
	Y     float64
	Label string
}

type xTick struct {
	X      float64 // percent
	Label  string
	Anchor string
}

// frame maps minutes from the plan's time on, and rates, to the drawing.
type frame struct {
	ahead int
	top   float64
}

func (f frame) x(minute float64) float64 {
	split := chartWidth * pastShare
	if minute < 0 {
		return chart.Tenth(split * (1 + minute/pastMinutes))
	}
	return chart.Tenth(split + (chartWidth-split)*minute/math.Max(1, float64(f.ahead)))
}

func (f frame) y(tps float64) float64 { return chart.Tenth(chartHeight * (1 - tps/f.top)) }

func (p Page) chart(c Course) courseChart {
	f := frame{ahead: len(c.Planned), top: top(c)}
	out := courseChart{Model: c.Model, Region: c.Region, Width: chartWidth, Height: chartHeight, Divide: 100 * pastShare}
	out.Past, out.HasPast = f.line(binned(c.Past), -float64(len(c.Past)), pastBin)
	out.Mean, _ = f.line(c.Planned, 0, 1)
	out.Band, out.HasBand = f.band(c.Lo90, c.Hi90)
	out.capacity(f, c)
	out.peak(f, c, p)
	out.ticks(f, p)
	return out
}

// top is the greatest value of a drawing, with some air.
func top(c Course) float64 {
	most := math.Max(c.CapacityNow, c.PeakHigh)
	if c.CapacityThen != nil {
		most = math.Max(most, *c.CapacityThen)
	}
	for _, values := range [][]float64{binned(c.Past), c.Planned, c.Hi90} {
		for _, v := range values {
			if v > most { // never of what is unknown
				most = v
			}
		}
	}
	if most <= 0 {
		return 1
	}
	return 1.08 * most
}

// binned is the means of every few minutes, unknown where all of them are.
func binned(values []float64) []float64 {
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

// line draws values that begin at a minute, each so many minutes long; ok is false
// when none is known.
func (f frame) line(values []float64, from float64, step int) (path string, ok bool) {
	points := make([]chart.Point, len(values))
	for n, v := range values {
		points[n] = chart.Point{X: f.x(from + (float64(n)+0.5)*float64(step)), Y: f.y(v)}
	}
	path = chart.Line(points)
	return path, path != ""
}

// band draws the area between two lines of the forecast.
func (f frame) band(lo, hi []float64) (path string, ok bool) {
	if len(hi) == 0 || len(lo) != len(hi) {
		return "", false
	}
	upper, lower := make([]chart.Point, len(hi)), make([]chart.Point, len(lo))
	for n := range hi {
		x := f.x(float64(n) + 0.5)
		upper[n], lower[n] = chart.Point{X: x, Y: f.y(math.Min(hi[n], f.top))}, chart.Point{X: x, Y: f.y(math.Min(lo[n], f.top))}
	}
	return chart.Band(upper, lower), true
}

// capacity draws what is carried: up to the plan's time as it stands, then so until
// new replicas are ready, or at once where fewer are wanted.
func (c *courseChart) capacity(f frame, course Course) {
	end := float64(f.ahead)
	c.Before = fmt.Sprintf("M0,%gH%g", f.y(course.CapacityNow), f.x(0))
	c.Now = fmt.Sprintf("M%g,%gH%g", f.x(0), f.y(course.CapacityNow), f.x(end))
	peak, _ := course.Peak()
	c.Short = peak > course.CapacityNow*(1+relTolerance)
	if course.CapacityThen == nil {
		return
	}
	then, from := *course.CapacityThen, 0.0
	if then > course.CapacityNow {
		from = math.Min(end, course.StartUp.Minutes())
	}
	c.Then = fmt.Sprintf("M%g,%gH%gV%gH%g", f.x(0), f.y(course.CapacityNow), f.x(from), f.y(then), f.x(end))
}

// peak marks the peak that is planned for.
func (c *courseChart) peak(f frame, course Course, p Page) {
	tps, minute := course.Peak()
	carries := figure(course.CapacityNow)
	if course.CapacityThen != nil && *course.CapacityThen != course.CapacityNow {
		carries += " → " + figure(*course.CapacityThen)
	}
	c.Summary = fmt.Sprintf("no load forecast; capacity %s tokens/s", carries)
	if tps == 0 {
		return
	}
	c.PeakX, c.PeakY = chart.Tenth(f.x(float64(minute)+0.5)/chartWidth*100), f.y(tps)
	c.HighY = f.y(math.Min(course.PeakHigh, f.top))
	c.PeakLabel = figure(tps)
	c.Summary = fmt.Sprintf("peak %s %s", figure(tps), p.clock(minute))
	if course.PeakHigh > tps*1.005 {
		c.Summary += fmt.Sprintf(", 19 of 20 below %s", figure(course.PeakHigh))
	}
	c.Summary += fmt.Sprintf("; capacity %s tokens/s", carries)
}

// ticks marks round rates, and times of the day.
func (c *courseChart) ticks(f frame, p Page) {
	for _, v := range chart.Marks(f.top, yMarks)[1:] {
		if v < f.top*0.97 {
			c.YTicks = append(c.YTicks, yTick{f.y(v), figure(v)})
		}
	}
	at := func(minute float64, anchor string) {
		label := fmt.Sprintf("%+.0fm", minute)
		if p.Proposal.At != nil {
			label = p.Proposal.At.Add(time.Duration(minute) * time.Minute).Format("15:04")
		}
		c.XTicks = append(c.XTicks, xTick{chart.Tenth(f.x(minute) / chartWidth * 100), label, anchor})
	}
	at(-pastMinutes, "start")
	at(-pastMinutes/2, "middle")
	at(0, "middle")
	at(float64(f.ahead)/2, "middle")
	at(float64(f.ahead), "end")
}
