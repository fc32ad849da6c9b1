package eval

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/sim"
)

// walk follows a path of M, l, h, v and V as a browser does, and lists where it
// comes through.
func walk(t *rapid.T, path string) [][2]int {
	var at [2]int
	var points [][2]int
	for _, step := range regexp.MustCompile(`[MlhvV][-0-9 ]*`).FindAllString(path, -1) {
		var n []int
		for _, word := range regexp.MustCompile(`-?[0-9]+`).FindAllString(step[1:], -1) {
			v, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			n = append(n, v)
		}
		switch step[0] {
		case 'M':
			at = [2]int{n[0], n[1]}
		case 'l':
			at[0], at[1] = at[0]+n[0], at[1]+n[1]
		case 'h':
			at[0] += n[0]
		case 'v':
			at[1] += n[0]
		case 'V':
			at[1] = n[0]
		}
		points = append(points, at)
	}
	return points
}

// A path goes through every sample, and where it is closed begins and ends on the
// ground.
func TestPathsGoThroughEverySample(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		counts := rapid.SliceOfN(rapid.IntRange(0, 3), 1, 60).Draw(rt, "counts")
		closed := rapid.Bool().Draw(rt, "closed")
		c := &courses{duration: float64(len(counts)), high: 3}
		var samples []sample
		for i, n := range counts {
			samples = append(samples, sample{time.Duration(i) * time.Second, n})
		}
		points := walk(rt, c.path(samples, closed))
		if closed {
			if points[0][1] != gridHigh || points[len(points)-1][1] != gridHigh {
				rt.Fatalf("the area is bounded by %v", points)
			}
			points = points[1 : len(points)-1]
		}
		level := func(x int) int { // where a line through the points is at x
			for k := len(points) - 1; k > 0; k-- {
				a, b := points[k-1], points[k]
				if a[0] <= x && x <= b[0] && a[0] < b[0] {
					return a[1] + (b[1]-a[1])*(x-a[0])/(b[0]-a[0])
				}
			}
			return points[0][1]
		}
		for _, s := range samples {
			x := int(s.at.Seconds()/c.duration*gridWide + 0.5)
			if got, want := level(x), gridHigh-80*s.count; got != want {
				rt.Fatalf("%d requests at %v are drawn at %d, want %d: %v", s.count, s.at, got, want, points)
			}
		}
	})
}

// course is a load of some regions that changes at every moment.
func course(regions, moments int) []sim.Moment {
	var out []sim.Moment
	for i := range moments {
		m := sim.Moment{At: time.Duration(i) * time.Second}
		for r := range regions {
			wave := int(60 + 50*math.Sin(float64(i*(r+1))))
			m.Regions = append(m.Regions, sim.RegionLoad{Queued: wave, Pending: i % 7, Running: wave})
		}
		out = append(out, m)
	}
	return out
}

// All policies of three regions make a page of less than 200 KB, however much
// their loads change.
func TestThePageStaysSmall(t *testing.T) {
	r := everything("")
	r.Constants.Duration = 200
	r.Constants.Regions = make([]sim.ConstantsRegion, 3)
	summary := r.Summary[1]
	r.Summary, r.courses = nil, nil
	for i := range 13 {
		summary.Policy = fmt.Sprintf("a-long-policy-name-%d", i)
		r.Summary, r.courses = append(r.Summary, summary), append(r.courses, course(3, 200))
	}
	if n := len(htmlOf(t, r)); n > 200_000 {
		t.Errorf("the page has %d bytes", n)
	}
}

// More regions than there are colours share the last line, and nothing of their
// load is left out.
func TestManyRegions(t *testing.T) {
	r := everything("")
	r.Constants.Regions = make([]sim.ConstantsRegion, 9)
	for i := range r.courses {
		r.courses[i] = []sim.Moment{{At: 50 * time.Second, Regions: make([]sim.RegionLoad, 9)}}
		for k := range 9 {
			r.courses[i][0].Regions[k] = sim.RegionLoad{Queued: 1, Pending: 2, Running: 3}
		}
	}
	c := lineUp(r).courses()
	if got := strings.Join(c.Regions, "|"); got != "|||||4 others" || c.high != 20 {
		t.Errorf("regions %s, at most %v", got, c.high)
	}
	lines := c.Panels[0].Lines
	if len(lines) != 2*drawnRegions || lines[11].Region != 5 || lines[11].Held || !lines[0].Held {
		t.Errorf("lines %+v", lines)
	}
	if r.courses[0][0].Regions[5].Queued != 1 {
		t.Error("drawing changes what is drawn")
	}
	if !strings.HasSuffix(c.Panels[0].Tip, "\n4 others: in the engines 20.0 on average, 20 at most; held 4.0 on average, 4 at most") {
		t.Errorf("the tip is %s", c.Panels[0].Tip)
	}
}

// Events stand inside the plot by when they begin, and never upon each other.
func TestEventsDoNotOverlap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := everything("")
		r.Constants.Faults = nil
		for range rapid.IntRange(0, 40).Draw(rt, "faults") {
			from := rapid.Float64Range(0, 110).Draw(rt, "from")
			r.Constants.Faults = append(r.Constants.Faults, sim.ConstantsFault{Kind: sim.LinkCut, From: from, To: from + rapid.Float64Range(0, 50).Draw(rt, "more")})
		}
		c := lineUp(r).courses()
		for i := range c.Events {
			e := &c.Events[i]
			if e.Number != i+1 || e.From >= 100 || e.X < panelLeft || e.X+e.Wide > panelRight+0.01 || e.Lane.X+e.Lane.Wide > panelRight+0.01 || e.Lane.Y+e.Lane.High > float64(c.Height) {
				rt.Fatalf("event %+v", e)
			}
			for k := range i {
				o := &c.Events[k].Lane
				if o.Y == e.Lane.Y && o.X < e.Lane.X+e.Lane.Wide && e.Lane.X < o.X+o.Wide {
					rt.Fatalf("events %+v and %+v", c.Events[k], e)
				}
			}
		}
	})
}

func TestFaultsInWords(t *testing.T) {
	for want, f := range map[string]sim.ConstantsFault{
		"replica-down: us-01":                         {Kind: sim.ReplicaDown, Replica: "us-01"},
		"replica-slow: us-01 takes 2.5 times as long": {Kind: sim.ReplicaSlow, Replica: "us-01", Factor: 2.5},
		"link-cut: us and eu":                         {Kind: sim.LinkCut, Region: "us", Peer: "eu"},
		"probe-loss: 30% of all":                      {Kind: sim.ProbeLoss, Share: 0.3},
		"report-delay: 250 ms, eu":                    {Kind: sim.ReportDelay, Region: "eu", Delay: 250},
		"balancer-down: eu":                           {Kind: sim.BalancerDown, Region: "eu"},
		"balancer-down: eu 2":                         {Kind: sim.BalancerDown, Region: "eu", Balancer: 2},
	} {
		if got := faultText(&f); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A report's courses are those of the first seed of each policy, from the very
// beginning of the run to its end.
func TestCoursesAreOfTheFirstSeed(t *testing.T) {
	p := small(t)
	many := report(t, p)
	p.Seeds = 1
	one := report(t, p)
	if fmt.Sprint(many.courses) != fmt.Sprint(one.courses) || len(one.courses) != len(one.Summary) {
		t.Error("other seeds change the courses")
	}
	for _, moments := range one.courses {
		if len(moments) < 200 || moments[0].At != 0 || len(moments[0].Regions) != 3 || p.Scenario.Duration-moments[len(moments)-1].At > time.Second {
			t.Errorf("%d moments to %v", len(moments), moments[len(moments)-1].At)
		}
	}
}
