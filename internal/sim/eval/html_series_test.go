package eval

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/sim"
	"skyserve/plan/chart"
)

// regionLoads returns a load of some regions that changes at every sample.
func regionLoads(regions, moments int) []sim.LoadSample {
	var out []sim.LoadSample
	for i := range moments {
		m := sim.LoadSample{At: time.Duration(i) * time.Second}
		for r := range regions {
			wave := int(60 + 50*math.Sin(float64(i*(r+1))))
			m.Regions = append(m.Regions, sim.RegionLoad{Queued: wave, Pending: i % 7, Running: wave})
		}
		out = append(out, m)
	}
	return out
}

// The page for all policies in three regions is smaller than 200 KB, however much the load changes.
func TestPageSizeIsBounded(t *testing.T) {
	r := fullReport("")
	r.Constants.Duration = 200
	r.Constants.Regions = make([]sim.ConstantsRegion, 3)
	summary := r.Summary[1]
	r.Summary, r.series = nil, nil
	for i := range 13 {
		summary.Policy = fmt.Sprintf("a-long-policy-name-%d", i)
		r.Summary, r.series = append(r.Summary, summary), append(r.series, regionLoads(3, 200))
	}
	if n := len(htmlOf(t, r)); n > 200_000 {
		t.Errorf("the page has %d bytes", n)
	}
}

// Regions beyond the number of colours share the last line, which sums their load.
func TestManyRegionsShareTheLastLine(t *testing.T) {
	r := fullReport("")
	r.Constants.Regions = make([]sim.ConstantsRegion, 9)
	for i := range r.series {
		r.series[i] = []sim.LoadSample{{At: 50 * time.Second, Regions: make([]sim.RegionLoad, 9)}}
		for k := range 9 {
			r.series[i][0].Regions[k] = sim.RegionLoad{Queued: 1, Pending: 2, Running: 3}
		}
	}
	c := newLineup(r).loadSeries()
	if got := strings.Join(c.Regions, "|"); got != "|||||4 others" || c.frame.Y.High != 20 {
		t.Errorf("regions %s, at most %v", got, c.frame.Y.High)
	}
	lines := c.Panels[0].Lines
	if len(lines) != 2*maxLines || lines[11].Class != "run c5" || lines[0].Class != "held c0" {
		t.Errorf("lines %+v", lines)
	}
	if r.series[0][0].Regions[5].Queued != 1 {
		t.Error("drawing changes what is drawn")
	}
	if !strings.HasSuffix(c.Panels[0].Title, "\n4 others: in engines mean 20.0, max 20; queued mean 4.0, max 4") {
		t.Errorf("the tip is %s", c.Panels[0].Title)
	}
}

// Faults and surges are numbered by start time; those after the end are omitted.
func TestEventsAreNumberedByStart(t *testing.T) {
	r := fullReport("")
	r.Constants.Faults = []sim.ConstantsFault{
		{Kind: sim.LinkCut, Region: "us", Peer: "eu", From: 50, To: 60}, {Kind: sim.LinkCut, From: 100, To: 110}, {Kind: sim.ReplicaDown, Replica: "us-01", From: 10, To: 120},
	}
	want := []chart.Span{
		{Class: "fault", Title: "replica-down: us-01, 10 to 120 s", From: 10, To: 120, Number: 1},
		{Class: "surge", Title: "8 times the load in here, 30 to 40 s", From: 30, To: 40, Number: 2},
		{Class: "fault", Title: "link-cut: us and eu, 50 to 60 s", From: 50, To: 60, Number: 3},
	}
	if got := events(&r.Constants); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestFaultText(t *testing.T) {
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

// A report's time series are those of the first seed of each policy, from the start of the run to its
// end.
func TestSeriesUseTheFirstSeed(t *testing.T) {
	p := smallPlan(t)
	many := report(t, p)
	p.Seeds = 1
	one := report(t, p)
	if fmt.Sprint(many.series) != fmt.Sprint(one.series) || len(one.series) != len(one.Summary) {
		t.Error("other seeds change the series")
	}
	for _, moments := range one.series {
		if len(moments) < 200 || moments[0].At != 0 || len(moments[0].Regions) != 3 || p.Scenario.Duration-moments[len(moments)-1].At > time.Second {
			t.Errorf("%d moments to %v", len(moments), moments[len(moments)-1].At)
		}
	}
}
