package eval

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"skyserve/internal/sim"
	"skyserve/lbd/policy"
)

// smallPlan returns a comparison of a few simulated seconds.
func smallPlan(t *testing.T) Comparison {
	t.Helper()
	found, err := sim.FindScenarios("fig8c")
	if err != nil {
		t.Fatal(err)
	}
	s := found[0]
	s.Duration = 20 * time.Second
	return Comparison{Scenario: s, Policies: []string{"skylb", "round-robin"}, Seeds: 3}
}

func report(t *testing.T, p Comparison) *SimReport {
	t.Helper()
	r, err := Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The number of workers does not affect the report.
func TestWorkerCountDoesNotAffectReport(t *testing.T) {
	p := smallPlan(t)
	var texts []string
	for _, workers := range []int{1, 4, 0} {
		p.Workers = workers
		text, err := json.Marshal(report(t, p))
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	if texts[0] != texts[1] || texts[0] != texts[2] {
		t.Errorf("one worker yields\n%s\nfour yield\n%s", texts[0], texts[1])
	}
}

func TestRowsFollowPlanOrder(t *testing.T) {
	p := smallPlan(t)
	p.Pushes = []string{"pending", "outstanding:8"}
	p.Seeds = 2
	ends, last := 0, 0.0 // finished runs and the simulated share, as last reported
	p.Progress = func(done, all int, share float64) {
		if all != 8 || done < ends || share < last || share > 1 {
			t.Errorf("progress goes from %d runs and %v to %d of %d and %v", ends, last, done, all, share)
		}
		ends, last = done, share
	}
	var got []string
	r := report(t, p)
	for _, row := range r.Rows {
		got = append(got, row.Policy+"/"+row.Push+"/"+string(row.Layout)+"/"+string('0'+rune(row.Seed)))
	}
	want := "skylb/pending/regional/1 skylb/pending/regional/2 skylb/outstanding:8/regional/1 skylb/outstanding:8/regional/2 " +
		"round-robin/pending/single/1 round-robin/pending/single/2 round-robin/outstanding:8/single/1 round-robin/outstanding:8/single/2"
	if strings.Join(got, " ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, " "), want)
	}
	if ends != 8 || last != 1 {
		t.Errorf("in the end progress was %d runs, %v", ends, last)
	}
	if len(r.Summary) != 4 || r.Summary[1].Push != "outstanding:8" || r.Summary[2].Policy != "round-robin" {
		t.Errorf("summary is %+v", r.Summary)
	}
}

// Mean and spread match the rows; one seed has no spread.
func TestSummaryMeanAndSpread(t *testing.T) {
	p := smallPlan(t)
	r := report(t, p)
	a, b, c := r.Rows[0].OutputTokensPerSecond, r.Rows[1].OutputTokensPerSecond, r.Rows[2].OutputTokensPerSecond
	s := r.Summary[0]
	if m := (a + b + c) / 3; s.Mean.OutputTokensPerSecond != m {
		t.Errorf("mean of %v, %v, %v is %v, want %v", a, b, c, s.Mean.OutputTokensPerSecond, m)
	}
	if d := s.Spread.OutputTokensPerSecond; !(d > 0 && d < max(a, b, c)-min(a, b, c)) {
		t.Errorf("spread of %v, %v, %v is %v", a, b, c, d)
	}
	if s.Mean.TTFT == nil || s.Mean.TTFT.P90 <= 0 || s.Spread.E2E.Max <= 0 {
		t.Errorf("percentiles are missing: %+v", s)
	}
	if !s.Best || r.Summary[1].Best {
		t.Error("skylb is not the best row on trees")
	}
	if s.Reference == nil || s.Reference.OutputTokensPerSecond != 3161 || s.Reference.TTFTP90Millis != 260 {
		t.Errorf("reference is %+v", s.Reference)
	}
	p.Seeds = 1
	if one := report(t, p); one.Summary[0].Spread != nil || !strings.Contains(table(t, one), "seed 1,") {
		t.Errorf("one seed has a spread: %s", table(t, one))
	}
}

func table(t *testing.T, r *SimReport) string {
	t.Helper()
	var out bytes.Buffer
	if err := r.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Unmeasured figures are null, never zero; the table has a dash for them, without a unit.
func TestUnmeasuredFiguresAreNull(t *testing.T) {
	p := smallPlan(t)
	p.Scenario.Duration = time.Millisecond // too short for a request to reach an engine
	r := report(t, p)
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"ttft_ms":null`, `"prefix_hit_rate":null`, `"outstanding_max_over_min":null`, `"completed":0`} {
		if strings.Count(string(text), want) < len(r.Rows) {
			t.Errorf("%s is missing in %s", want, text)
		}
	}
	if out := table(t, r); strings.Contains(out, "- s") || strings.Contains(out, "- ms") || strings.Contains(out, "NaN") {
		t.Errorf("the table is\n%s", out)
	}
}

func TestPoliciesUseCanonicalPushAndLayout(t *testing.T) {
	p := smallPlan(t)
	p.Policies, p.Seeds, p.Scenario.Duration = nil, 1, 5*time.Second
	r := report(t, p)
	if len(r.Rows) != len(policy.Names())+1 {
		t.Fatalf("%d rows for %d policies and the oracle", len(r.Rows), len(policy.Names()))
	}
	for _, row := range r.Rows {
		if row.Push != policy.CanonicalPush(row.Policy) {
			t.Errorf("%s ran at %s", row.Policy, row.Push)
		}
		if want := map[string]sim.Layout{"round-robin": sim.Single, "least-load": sim.Single, "skylb": sim.Regional, sim.Oracle: sim.Everywhere}[row.Policy]; want != "" && row.Layout != want {
			t.Errorf("%s ran %s", row.Policy, row.Layout)
		}
	}
}

func TestCheckRejectsInvalidPlans(t *testing.T) {
	for want, spoil := range map[string]func(*Comparison){
		"seeds: must be at least 1, got 0":                     func(p *Comparison) { p.Seeds = 0 },
		`unknown policy "best": must be one of`:                func(p *Comparison) { p.Policies = []string{"best"} },
		`unknown push mode "hard"`:                             func(p *Comparison) { p.Pushes = []string{"hard"} },
		"checking scenario fig8c: duration: must be":           func(p *Comparison) { p.Scenario.Duration = 0 },
		`unknown layout "round": must be single or regio`:      func(p *Comparison) { p.Layout = "round" },
		"checking scenario fig8c: min_max_tokens: must be at ": func(p *Comparison) { p.Scenario.MaxNew = 0 },
	} {
		p := smallPlan(t)
		spoil(&p)
		if r, err := Run(t.Context(), p); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, %v, want %s", r, err, want)
		}
	}
}

func TestRunReturnsOnCancel(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	p := smallPlan(t)
	p.Scenario.Duration = 1000 * time.Hour
	p.Policies = append(p.Policies, "least-load")
	p.Scenario.Warmup = 0
	go stop()
	if _, err := Run(ctx, p); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// A seed base shifts the seeds: each seed has the same row in every comparison that contains it.
func TestSeedBase(t *testing.T) {
	p := smallPlan(t)
	p.Policies = []string{"skylb"}
	all := report(t, p)
	p.Seeds, p.SeedBase = 2, 1
	rest := report(t, p)
	if !reflect.DeepEqual(rest.Rows, all.Rows[1:]) {
		t.Errorf("the rows of seeds 2 and 3 are\n%+v, in a comparison of three seeds\n%+v", rest.Rows, all.Rows[1:])
	}
	if got := rest.seeds(); got != "seeds 2 to 3" {
		t.Errorf("the report is of %s", got)
	}
}
