package eval

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"skyserve/internal/sim"
	"skyserve/internal/testkit"
)

func htmlOf(t *testing.T, reports ...*SimReport) string {
	t.Helper()
	var out bytes.Buffer
	if err := WriteHTML(&out, reports); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// outline lists the elements of a page, each by its name and classes and indented by its depth, with
// the text of headings; it fails if elements are not well-formed. It omits the head and drawings.
func outline(t *testing.T, text string) []string {
	t.Helper()
	var lines, open []string
	hidden := 0
	for in := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := in.Token()
		if errors.Is(err, io.EOF) {
			return lines
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		switch e := token.(type) {
		case xml.StartElement:
			name := e.Name.Local
			for _, a := range e.Attr {
				if a.Name.Local == "class" {
					name += "." + strings.ReplaceAll(a.Value, " ", ".")
				}
			}
			if hidden == 0 {
				lines = append(lines, strings.Repeat(" ", len(open))+name)
			}
			if e.Name.Local == "head" || e.Name.Local == "svg" || hidden > 0 {
				hidden++
			}
			open = append(open, e.Name.Local)
		case xml.EndElement:
			open = open[:len(open)-1]
			hidden = max(0, hidden-1)
		case xml.CharData:
			if n := len(open); n > 0 && hidden == 0 && (open[n-1] == "h1" || open[n-1] == "h2") {
				lines[len(lines)-1] += ": " + string(e)
			}
		}
	}
}

// fullReport returns a report with everything that a page can show. word is used for all user-defined
// text.
func fullReport(word string) *SimReport {
	figures := func(speed float64) sim.RunFigures {
		hits := 0.5
		set := &sim.Percentiles{P10: 10, P25: 25, P50: 50, P75: 75, P90: 90}
		return sim.RunFigures{OutputTokensPerSecond: speed, TTFT: set, TPOT: set, E2E: set, PrefixHitRate: &hits, OutstandingMaxOverMin: &hits}
	}
	r := &SimReport{
		Scenario: "name" + word, Title: "title" + word, Note: "note" + word, paper: true,
		Rows: make([]RunRow, 6),
		Constants: sim.Constants{
			ConstantsProfile: sim.ConstantsProfile{Profile: "profile" + word}, Duration: 100, Warmup: 0.2,
			Regions: []sim.ConstantsRegion{{Name: "here" + word}, {Name: "there" + word}},
			Surges:  []sim.ConstantsSurge{{Region: "here" + word, From: 30, To: 40, Factor: 8}},
			Faults:  []sim.ConstantsFault{{Kind: sim.ReplicaDown, Replica: "replica" + word, From: 35, To: 100}},
		},
	}
	for i, policy := range []string{sim.Oracle, "slow" + word, "fast" + word} {
		f, spread := figures([]float64{400, 100, 200}[i]), figures(10)
		r.Summary = append(r.Summary, Summary{
			Policy: policy, Push: "push" + word, Layout: sim.Layout("layout" + word),
			Mean: f, Spread: &spread, Reference: &Reference{150, 80},
		})
		r.series = append(r.series, []sim.LoadSample{
			{Regions: make([]sim.RegionLoad, 2)},
			{At: 50 * time.Second, Regions: []sim.RegionLoad{{Queued: i, Pending: 1, Running: 2}, {Running: 7}}},
		})
	}
	r.addClaims([]sim.Claim{{
		Figure: "output_tokens_per_second", Side: sim.Side{Policy: "fast" + word}, Than: &sim.Side{Policy: "slow" + word}, Min: 1.5, Max: 1.8,
	}})
	return r
}

// For each report, a page has the texts, the table, three charts with a row per policy, and a panel per
// policy; its elements are well-formed.
func TestPageStructure(t *testing.T) {
	got := outline(t, htmlOf(t, fullReport("")))
	var marks []string
	seen := regexp.MustCompile(`^ *(h1|h2|p\.headline|p\.note|table.*|tr.*|figure.*|div\.(row\.|lead|plain|oracle|panels|charts).*|b\.badge.*)$`)
	for _, line := range got {
		if m := seen.FindStringSubmatch(line); m != nil || strings.Contains(line, ": ") {
			marks = append(marks, strings.TrimSpace(line))
		}
	}
	rows := " div.row.plain div.row.lead div.row.oracle div.row.ticks"
	want := "h1: name p.headline table.policies tr tr.plain tr.lead tr.oracle p.note table.claims tr tr div.charts" +
		" figure.across h2: Output tokens per second" + rows +
		" figure h2: Time to first token, in seconds" + rows +
		" figure h2: Time to the last token, in seconds" + rows +
		" figure.courses h2: Load over time b.badge.surge b.badge.fault div.panels div.plain div.lead div.oracle"
	if text := strings.Join(marks, " "); text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
}

// The page of real runs is self-contained and reproducible.
func TestPageIsSelfContained(t *testing.T) {
	testkit.Slow(t)
	p := smallPlan(t)
	p.Paper = true
	p.Scenario.Faults = []sim.Fault{{Kind: sim.BalancerDown, Region: "eu", From: 8 * time.Second, To: 12 * time.Second}}
	text := htmlOf(t, report(t, p), report(t, p))
	if bad := regexp.MustCompile(`(?i)https?://|<script|@import|url\(|<(img|link|iframe|object)|NaN|Inf\b`).FindString(text); bad != "" {
		t.Errorf("the page holds %q", bad)
	}
	outline(t, text)
	for want, times := range map[string]int{
		"<section>": 2, "<figure": 8, `class="box"`: 12, `<svg class="plot" height="`: 4, `class="run c2"`: 6, "balancer-down: eu, 8 to 12 s": 10,
		`<title>warm-up until 3 s, excluded from all figures</title>`: 4, `class="reference"`: 8, `>3161<small>`: 2,
		"throughput of consistent-hash relative to that of least-load": 2, "prefers-color-scheme: dark": 2,
	} {
		if n := strings.Count(text, want); n != times {
			t.Errorf("the page has %q %d times, want %d", want, n, times)
		}
	}
	p.Workers = 1
	if text != htmlOf(t, report(t, p), report(t, p)) {
		t.Error("the same plan yields another page")
	}
}

// Text from a scenario file is escaped.
func TestPageEscapesText(t *testing.T) {
	for _, word := range []string{"<script>alert(1)</script>", `"><b id=hostile>`, "'onload='alert(1)", "</title></style></svg><hostile/>", "{{.}}"} {
		text := htmlOf(t, fullReport(word))
		if strings.Contains(text, "<script") || strings.Contains(text, "<hostile") || strings.Contains(text, "<b id") {
			t.Errorf("the page is\n%s", text)
		}
		plain := outline(t, htmlOf(t, fullReport("")))
		for i, line := range outline(t, text) {
			line = strings.ReplaceAll(line, word, "")
			if want := strings.Replace(plain[i], "div.rows", "div.rows.long", 1); line != plain[i] && line != want {
				t.Errorf("%q formats %q as %q", word, plain[i], line)
			}
		}
	}
}

// A report without time series or measurements still has a page.
func TestPageWithoutMeasurements(t *testing.T) {
	text := htmlOf(t, &SimReport{Rows: []RunRow{{}}, Summary: []Summary{{Policy: "p"}}})
	if outline(t, text); strings.Contains(text, "Load over time") || strings.Contains(text, `class="headline"`) || strings.Contains(text, "NaN") {
		t.Errorf("the page is\n%s", text)
	}
	outline(t, htmlOf(t))
}

// The oracle is not a runnable policy: it is last and never leads.
func TestOracleIsLastAndNeverLeads(t *testing.T) {
	l := newLineup(fullReport(""))
	var got []string
	for i := range l.entries {
		got = append(got, l.entries[i].Policy+" "+l.entries[i].Style())
	}
	if text := strings.Join(got, ", "); text != "slow plain, fast lead, oracle oracle" {
		t.Errorf("the page shows %s", text)
	}
	if alone := newLineup(&SimReport{Summary: []Summary{{Policy: "p"}}}); alone.entries[0].Style() != "plain" {
		t.Error("a policy leads itself")
	}
	if only := newLineup(&SimReport{Summary: []Summary{{Policy: sim.Oracle}}}); only.leader != nil || only.headline() != "" {
		t.Errorf("the oracle leads: %s", only.headline())
	}
}

func TestHeadlines(t *testing.T) {
	run := func(policy string, speed, deviation, p90 float64) Summary {
		s := Summary{Policy: policy, Push: "blind", Mean: sim.RunFigures{OutputTokensPerSecond: speed}}
		if deviation > 0 {
			s.Spread = &sim.RunFigures{OutputTokensPerSecond: deviation}
		}
		if p90 > 0 {
			s.Mean.TTFT = &sim.Percentiles{P90: p90}
		}
		return s
	}
	for _, c := range []struct {
		runs []Summary
		want string
	}{
		{[]Summary{run("a", 100, 0, 0)}, "a (blind) reaches 100 output tokens per second."},
		{
			[]Summary{run("a", 80, 1, 0), run("b", 100, 1, 250), run("oracle", 125, 1, 0)},
			"b (blind) reaches 100 output tokens per second, the highest of all runnable policies, with a P90 TTFT of 0.250 s." +
				" Next is a (blind) with 20.0% less. That is 80.0% of the oracle's 125.",
		},
		{
			[]Summary{run("a", 80, 12, 0), run("b", 100, 8, 0)},
			"b (blind) reaches 100 output tokens per second, the highest of all runnable policies." +
				" Next is a (blind) with 20.0% less, within the variation between seeds.",
		},
		{
			[]Summary{run("a", 999, 0, 2000), run("b", 1000, 0, 3000), run("c", 998, 0, 2500), run("d", 500, 0, 1)},
			"b (blind) reaches 1000 output tokens per second, the highest of all runnable policies, with a P90 TTFT of 3.00 s." +
				" 2 other policies are within 1%; of these, a (blind) has the lowest P90 TTFT, 2.00 s.",
		},
		{
			[]Summary{run("a", 999, 0, 0), run("b", 1000, 0, 0)},
			"b (blind) reaches 1000 output tokens per second, the highest of all runnable policies. a (blind) is within 1%.",
		},
	} {
		if got := newLineup(&SimReport{Summary: c.runs}).headline(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// The best value in a column is bold. Only runnable policies count, and formatted values are compared:
// equal texts are all best, and if all are equal, none is.
func TestBestValuesAreMarked(t *testing.T) {
	run := func(policy string, speed, p50, p90 float64) Summary {
		return Summary{Policy: policy, Mean: sim.RunFigures{OutputTokensPerSecond: speed, TTFT: &sim.Percentiles{P50: p50, P90: p90}}}
	}
	l := newLineup(&SimReport{Summary: []Summary{
		run("a", 100.2, 500, 1000), run("b", 99.9, 500, 3000), run("c", 90, 501, 1001), {Policy: "d"}, run(sim.Oracle, 120, 1, 1),
	}})
	columns, rows := l.table()
	best := map[string]string{}
	for _, row := range rows {
		for i, c := range row.Cells {
			if c.Best {
				best[columns[i].Name] += row.Policy
			}
		}
	}
	if got := fmt.Sprint(best); got != "map[TTFT P90:ac output:ab]" {
		t.Errorf("best are %s", got)
	}
	if text := rows[3].Cells[1].Text; text != "-" {
		t.Errorf("an unknown figure is %q", text)
	}
}

// Claims of ratios are shown as ratios and shares as points, with the measured value; a side that was
// not run is a dash.
func TestClaimCells(t *testing.T) {
	rate := func(x float64) *float64 { return &x }
	r := &SimReport{paper: true, Summary: []Summary{
		{Policy: "a", Push: "blind", Mean: sim.RunFigures{OutputTokensPerSecond: 100, PrefixHitRate: rate(0.5), TTFT: &sim.Percentiles{P90: 4000}}},
		{Policy: "a", Push: "pending", Mean: sim.RunFigures{OutputTokensPerSecond: 150, PrefixHitRate: rate(0.8), TTFT: &sim.Percentiles{P90: 400}}},
		{Policy: "b", Push: "blind"},
	}}
	blind, pending := sim.Side{Policy: "a", Push: "blind"}, sim.Side{Policy: "a", Push: "pending"}
	r.addClaims([]sim.Claim{
		{Figure: "output_tokens_per_second", Side: pending, Than: &blind, Min: 1.2, Max: 1.2},
		{Figure: "output_tokens_per_second", Side: pending, Than: &blind, Min: 1.2, Max: 1.6},
		{Figure: "ttft_p90_ms", Side: sim.Side{Policy: "a"}, Than: &pending, Min: 20, Max: 20},
		{Figure: "prefix_hit_rate", Side: pending, Than: &blind, Min: 0.25, Max: 0.25},
		{Figure: "prefix_hit_rate", Side: sim.Side{Policy: "b"}, Min: 0.25, Max: 0.25},
		{Figure: "outstanding_max_over_min", Side: sim.Side{Policy: "c"}, Min: 2, Max: 2},
	})
	var got []string
	for i := range r.Claims {
		got = append(got, strings.Join(r.Claims[i].cells(), "|"))
	}
	want := []string{
		"throughput of a (pending) relative to that of a (blind)|1.20|1.50|+25.0%",
		"throughput of a (pending) relative to that of a (blind)|1.20 to 1.60|1.50|+0.0%",
		"P90 TTFT of a relative to that of a (pending)|20.00|10.00|-50.0%",
		"hit rate of a (pending) minus that of a (blind)|25.0%|30.0%|+5.0 points",
		"hit rate of b|25.0%|-|-",
		"max/min outstanding of c|2.00|-|-",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A plan without policies and push modes uses those of the scenario.
func TestPlanDefaultsToScenarioPolicies(t *testing.T) {
	found, err := sim.FindScenarios("fig9-30")
	if err != nil {
		t.Fatal(err)
	}
	p := Comparison{Scenario: found[0], Seeds: 1}
	setups, err := p.setups()
	if err != nil || len(setups) != 5 || setups[1].Push.N != 10 || setups[3].Policy != "cache-aware:skylb" || setups[4].Policy != sim.Oracle {
		t.Errorf("setups %+v, %v", setups, err)
	}
	p.Policies, p.Pushes = []string{"skylb"}, []string{"blind"}
	if setups, err = p.setups(); err != nil || len(setups) != 1 || setups[0].Policy != "skylb" {
		t.Errorf("setups %+v, %v", setups, err)
	}
}
