package whatif

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"skyserve/lbd/sim"
)

func htmlOf(t *testing.T, reports ...*Report) string {
	t.Helper()
	var out bytes.Buffer
	if err := WriteHTML(&out, reports); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// The page needs nothing from elsewhere, shows every row in the table and in
// each drawing, and its drawings are well-formed.
func TestThePageStandsByItself(t *testing.T) {
	p := small(t)
	p.Paper = true
	text := htmlOf(t, report(t, p), report(t, p))
	if bad := regexp.MustCompile(`(?i)https?://|<script|@import|url\(|NaN|Inf\b`).FindString(text); bad != "" {
		t.Errorf("the page holds %q", bad)
	}
	if n := strings.Count(text, "<section>"); n != 2 {
		t.Errorf("%d sections for 2 reports", n)
	}
	drawings := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(text, -1)
	if len(drawings) != 6 {
		t.Fatalf("%d drawings, want 3 a report", len(drawings))
	}
	for _, d := range drawings {
		if strings.Count(d, `class="box"`) != 2 || !strings.Contains(d, "skylb, pending") || !strings.Contains(d, "round-robin, blind") {
			t.Errorf("a policy is missing in\n%s", d)
		}
		for in := xml.NewDecoder(strings.NewReader(d)); ; {
			if _, err := in.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in\n%s", err, d)
			}
		}
	}
	for _, want := range []string{"3161 (0.26 s): ", "throughput of consistent-hash over that of least-load", `<tr class="best"><td>skylb</td>`, "prefers-color-scheme: dark"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// What people write into a scenario's file stays text.
func TestThePageEscapes(t *testing.T) {
	r := &Report{Scenario: "<script>alert(1)</script>", Rows: []Row{{}}, Summary: []Summary{{Policy: `"><b>`}}}
	if text := htmlOf(t, r); strings.Contains(text, "<script") || strings.Contains(text, "<b>") {
		t.Errorf("the page is\n%s", text)
	}
}

// An axis keeps the order of values, shows all of them, and has marks, whether
// logarithmic or not.
func TestAxes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		low := rapid.Float64Range(0, 100).Draw(rt, "low")
		high := low + rapid.Float64Range(0, 1e6).Draw(rt, "more")
		middle := low + (high-low)*rapid.Float64Range(0, 1).Draw(rt, "middle")
		c := newChart("t", "s", "", 1)
		c.scale(low, high)
		a, b, d := c.axis.x(low), c.axis.x(middle), c.axis.x(high)
		if !(plotLeft <= a && a <= b && b <= d && d <= plotRight) {
			rt.Fatalf("%v, %v, %v stand at %v, %v, %v", low, middle, high, a, b, d)
		}
		if len(c.Ticks) < 2 || len(c.Ticks) > 40 {
			rt.Fatalf("%d marks from %v to %v", len(c.Ticks), low, high)
		}
		for _, mark := range c.Ticks {
			if math.IsNaN(mark.X) || mark.X < plotLeft || mark.X > plotRight {
				rt.Fatalf("a mark at %v", mark)
			}
		}
	})
}

// What a paper claims stands beside what was measured: ratios as ratios, shares
// as points, and what was not run is a dash.
func TestClaims(t *testing.T) {
	rate := func(x float64) *float64 { return &x }
	r := &Report{paper: true, Summary: []Summary{
		{Policy: "a", Push: "blind", Mean: sim.Figures{OutputTokensPerSecond: 100, PrefixHitRate: rate(0.5), TTFT: &sim.Percentiles{P90: 4000}}},
		{Policy: "a", Push: "pending", Mean: sim.Figures{OutputTokensPerSecond: 150, PrefixHitRate: rate(0.8), TTFT: &sim.Percentiles{P90: 400}}},
		{Policy: "b", Push: "blind"},
	}}
	blind, pending := sim.Side{Policy: "a", Push: "blind"}, sim.Side{Policy: "a", Push: "pending"}
	r.judge([]sim.Claim{
		{Figure: "output_tokens_per_second", Side: pending, Than: &blind, Least: 1.2, Most: 1.2},
		{Figure: "output_tokens_per_second", Side: pending, Than: &blind, Least: 1.2, Most: 1.6},
		{Figure: "ttft_p90_ms", Side: sim.Side{Policy: "a"}, Than: &pending, Least: 20, Most: 20},
		{Figure: "prefix_hit_rate", Side: pending, Than: &blind, Least: 0.25, Most: 0.25},
		{Figure: "prefix_hit_rate", Side: sim.Side{Policy: "b"}, Least: 0.25, Most: 0.25},
		{Figure: "outstanding_max_over_min", Side: sim.Side{Policy: "c"}, Least: 2, Most: 2},
	})
	var got []string
	for i := range r.Claims {
		got = append(got, strings.Join(r.Claims[i].cells(), "|"))
	}
	want := []string{
		"throughput of a (pending) over that of a (blind)|1.20|1.50|+25.0%",
		"throughput of a (pending) over that of a (blind)|1.20 to 1.60|1.50|+0.0%",
		"P90 TTFT of a over that of a (pending)|20.00|10.00|-50.0%",
		"hit rate of a (pending) less that of a (blind)|25.0%|30.0%|+5.0 points",
		"hit rate of b|25.0%|-|-",
		"most over least outstanding of c|2.00|-|-",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A scenario compares what it says where the plan says nothing.
func TestScenariosSayWhatToCompare(t *testing.T) {
	found, err := sim.Named("fig9-30")
	if err != nil {
		t.Fatal(err)
	}
	p := Plan{Scenario: found[0], Seeds: 1}
	setups, err := p.setups()
	if err != nil || len(setups) != 5 || setups[1].Push.N != 10 || setups[3].Policy != "cache-aware:skylb" || setups[4].Policy != sim.Oracle {
		t.Errorf("setups %+v, %v", setups, err)
	}
	p.Policies, p.Pushes = []string{"skylb"}, []string{"blind"}
	if setups, err = p.setups(); err != nil || len(setups) != 1 || setups[0].Policy != "skylb" {
		t.Errorf("setups %+v, %v", setups, err)
	}
}
