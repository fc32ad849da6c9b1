package plan

import (
	"bytes"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/plan/chart"
)

// aPage is a review of two regions, one of which has no forecast.
func aPage(t *testing.T, service string) Report {
	t.Helper()
	p := twoRegions()
	at := time.Date(2027, 1, 15, 14, 0, 0, 0, time.UTC)
	then := 3000.0
	c := LoadCurve{Model: "m", Region: "us", CurrentCapacity: 2000, PlannedCapacity: &then, StartUp: 10 * time.Minute, PeakHigh: 4400}
	for m := range 24 * 60 {
		v := 1500 + 1000*math.Sin(float64(m)/200)
		if m > 300 && m < 400 {
			v = math.NaN()
		}
		c.History = append(c.History, v)
	}
	for m := range 60 {
		v := 3000 + 16*float64(m)
		c.Planned, c.Mean, c.Lo90, c.Hi90 = append(c.Planned, v), append(c.Mean, v-50), append(c.Lo90, v-300), append(c.Hi90, v+300)
	}
	dark := LoadCurve{Model: "m", Region: "eu", Planned: make([]float64, 60), CurrentCapacity: 2000}
	proposal := proposal(t, p, ProposalContext{At: at, Horizon: time.Hour, Forecaster: "auto", Assumed: []string{"a <price> & more"}})
	return Report{Service: service, Proposal: proposal, LoadCurves: []LoadCurve{c, dark}}
}

func htmlOf(t *testing.T, p Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := p.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The page shows everything needed for a decision.
func TestPageShowsTheReview(t *testing.T) {
	text := htmlOf(t, aPage(t, "chat"))
	for _, want := range []string{
		"Capacity plan of chat", "for 1h from Friday, 15 January 2027, 14:00 UTC, forecast by auto", "Add 1 replica: $0.80 more per hour.",
		"Proven to be the cheapest plan that satisfies every constraint: $4.10 for the hour, including start-up costs.", "$3.20 → $4.00", "+$584.00 per month at this rate",
		"4 → 5", "1000 of the peak is served by eu", "peak 3944 at 14:59, p95 4400; capacity 2000 → 3000 tokens/s", "(above current capacity)",
		"planned load 0; capacity 2000 tokens/s", "a &lt;price&gt; &amp; more", "all regions together serve their common peak",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not on the page", want)
		}
	}
	for _, not := range []string{"NaN", "Inf", "ZgotmplZ", "<nil>"} {
		if strings.Contains(text, not) {
			t.Errorf("%s is on the page", not)
		}
	}
}

// A plan of regions that are not billed does not show a cost of an hour beside "no change in cost", and a service
// without replicas has no load above its capacity.
func TestPageOfUnbilledRegions(t *testing.T) {
	p := aPage(t, "chat")
	none := 0.0
	p.Proposal.CostPerHour.Current, p.Proposal.CostPerHour.Planned = &none, &none
	p.LoadCurves[0].CurrentCapacity = 0
	text := htmlOf(t, p)
	for _, want := range []string{"Add 1 replica; not billed.", "$4.10 for the hour at the assumed prices, including start-up costs.", "no change per month"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not on the page", want)
		}
	}
	for _, not := range []string{"+$0.00", "no change in cost", "(above current capacity)"} {
		if strings.Contains(text, not) {
			t.Errorf("%q is on the page", not)
		}
	}
}

// The page is self-contained, and does not depend on the solving time.
func TestPageIsSelfContained(t *testing.T) {
	p := aPage(t, "chat")
	first := htmlOf(t, p)
	p.Proposal.SolveMillis = 1234
	if htmlOf(t, p) != first {
		t.Error("the time of solving is on the page")
	}
	if found := regexp.MustCompile(`https?://|<script|@import|src=`).FindString(first); found != "" {
		t.Errorf("the page has an external reference: %s", found)
	}
}

// Names from users are escaped.
func TestPageEscapes(t *testing.T) {
	const evil = `"><script>alert(1)</script>`
	p := aPage(t, evil)
	p.LoadCurves[0].Model, p.LoadCurves[0].Region, p.Proposal.Changes[0].Model, p.Proposal.Changes[0].Reason = evil, evil, evil, evil
	p.Proposal.Infeasible = []string{evil}
	if text := htmlOf(t, p); strings.Contains(text, "<script") {
		t.Error("a name became a tag")
	}
}

// Capacity rises when new replicas are ready, and falls at once.
func TestPageDrawsSteps(t *testing.T) {
	for name, c := range map[string]struct {
		now, then float64
		from      float64 // minutes
	}{"up": {1000, 3000, 10}, "down": {3000, 1000, 0}, "same": {2000, 2000, 0}} {
		got := LoadCurve{CurrentCapacity: c.now, PlannedCapacity: &c.then, StartUp: 10 * time.Minute, Planned: make([]float64, 60)}.capacityOverTime()
		want := []chart.Point{{X: 0, Y: c.now}, {X: c.from, Y: c.now}, {X: c.from, Y: c.then}, {X: 60, Y: c.then}}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// A review without a plan, a forecast or a time still yields a page.
func TestPageWithoutPlanOrForecast(t *testing.T) {
	p := aPage(t, "chat")
	for name, page := range map[string]Report{
		"nothing":    {},
		"infeasible": {Service: "chat", Proposal: Proposal{Status: StatusInfeasible, Infeasible: []string{"m in us: too much"}}, LoadCurves: p.LoadCurves},
		"unknown":    {Service: "chat", Proposal: Proposal{Status: StatusUnknown}},
	} {
		text := htmlOf(t, page)
		if strings.Contains(text, "NaN") || !strings.HasSuffix(text, "</html>\n") {
			t.Errorf("%s:\n%s", name, text)
		}
		if name == "infeasible" && !strings.Contains(text, "No plan satisfies every constraint.") {
			t.Error(name)
		}
		if name == "unknown" && !strings.Contains(text, "Retry with another --solver: highs, cbc or glpsol.") {
			t.Error(name)
		}
	}
}

func TestDollars(t *testing.T) {
	for v, want := range map[float64]string{0: "$0.00", 12.345: "$12.35", 999.5: "$999.50", 1234.4: "$1,234", 1234567: "$1,234,567", 123456: "$123,456"} {
		if got := dollars(v); got != want {
			t.Errorf("%g: %s, want %s", v, got, want)
		}
	}
}

// The headline tells added, removed and donated replicas apart.
func TestHeadline(t *testing.T) {
	change := func(delta, donate int) ReplicaChange { return ReplicaChange{Delta: delta, Donate: donate} }
	for want, changes := range map[string][]ReplicaChange{
		"No changes; no change in cost.":                            {change(0, 0)},
		"Add 1 replica; no change in cost.":                         {change(1, 0)},
		"Remove 2 replicas; no change in cost.":                     {change(-2, 0)},
		"Donate 2 replicas; no change in cost.":                     {change(-2, 2)},
		"Add 3 replicas and remove 1; no change in cost.":           {change(3, 0), change(-1, 0)},
		"Add 3 replicas, remove 1 and donate 2; no change in cost.": {change(3, 0), change(-1, 0), change(-2, 2)},
		"Remove 1 replica and donate 2; no change in cost.":         {change(-1, 0), change(-2, 2)},
	} {
		then := 1.0
		p := Proposal{Status: StatusOptimal, Changes: changes}
		p.CostPerHour.Current, p.CostPerHour.Planned = &then, &then
		if got := (Report{Proposal: p}).headline(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
