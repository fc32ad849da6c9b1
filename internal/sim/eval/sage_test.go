package eval

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"skyserve/internal/sim"
	"skyserve/internal/testkit"
	"skyserve/plan"
)

// sagePlan returns a short, light scenario with a cheap forecaster. Tests of the default forecaster use
// shippedForecaster.
func sagePlan(t testing.TB, name string, strategies ...string) SageComparison {
	t.Helper()
	found, err := FindSageScenarios(name)
	if err != nil {
		t.Fatal(err)
	}
	return SageComparison{
		Scenario: found[0], Strategies: strategies, Seeds: 1, Paper: true,
		Settings: SageSettings{Load: 0.25, Duration: time.Hour, VMs: 4, Forecaster: "moving-average"},
	}
}

// shippedForecaster makes a plan use the default forecaster of services.
func shippedForecaster(p SageComparison) SageComparison {
	p.Settings.Forecaster = ""
	return p
}

func runSage(t testing.TB, p SageComparison) *SageReport {
	t.Helper()
	r, err := RunSage(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Regions and tiers add up to their model, and VMs to the closed pool.
func TestSageReportAddsUp(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "it computes, which takes minutes with the detector on")
	p := sagePlan(t, "sage-day", plan.StrategyNames()...)
	p.Seeds = 2
	r := runSage(t, p)
	if n := len(p.Strategies); len(r.Rows) != 2*n || len(r.Summary) != n {
		t.Fatalf("%d rows, %d in the summary", len(r.Rows), len(r.Summary))
	}
	for _, row := range r.Rows {
		all, hours := 0, 0.0
		for _, m := range row.Models {
			var use SageUse
			for _, region := range m.Regions {
				use.addUse(&region.SageUse)
			}
			if use != m.SageUse {
				t.Errorf("%s, seed %d, %s: %+v, its regions %+v", row.Strategy, row.Seed, m.Model, m.SageUse, use)
			}
			hours += use.InstanceHours + use.DonatedInstanceHours
			for k := range m.Tiers {
				requests := 0
				for _, region := range m.Regions {
					requests += region.Tiers[k].Requests
				}
				if requests != m.Tiers[k].Requests {
					t.Errorf("%s: %d requests, its regions %d", m.Model, m.Tiers[k].Requests, requests)
				}
				all += requests
			}
		}
		if all != row.Requests || row.Completed > row.Requests {
			t.Errorf("%s: %d requests, its models %d", row.Strategy, row.Requests, all)
		}
		if math.Abs(hours-48) > 1e-9 {
			t.Errorf("%s: %g hours of 48 VMs in an hour", row.Strategy, hours)
		}
	}
	a, b := r.Rows[2].Models[0].InstanceHours, r.Rows[3].Models[0].InstanceHours
	if got := r.Summary[1].Models[0]; math.Abs(got.Mean.InstanceHours-(a+b)/2) > 1e-9 || got.Spread == nil {
		t.Errorf("the mean of %g and %g is %+v", a, b, got.Mean)
	}
}

// Deferred requests that wait at the end are owed: their replica-hours count for the day that they arrived in, so
// that a strategy that leaves work to the next day saves nothing by it.
func TestSageCountsOwedHours(t *testing.T) {
	row := func(waiting int64) SageRow {
		run := &sageRun{strategy: "auto", seed: 1, fleet: &sim.FleetScenario{Models: []sim.FleetModel{{Name: "m", GPUs: 8}}, Regions: []string{"us"}}}
		result := &sim.FleetResult{Tiers: make([]sim.TierResult, 3), Endpoints: []sim.EndpointResult{{WaitingTokens: waiting}}}
		result.Endpoints[0].Hours[sim.VMReady] = 10
		return sageRow(run, result, []float64{500})
	}
	r := &SageReport{Rows: []SageRow{row(0), row(3_600_000)}}
	r.Rows[1].Strategy = "lt-ua"
	r.Summary = summariseSage(r.Rows)
	if m := r.Rows[1].Models[0]; m.OwedInstanceHours != 2 || m.OwedGPUHours != 16 || m.InstanceHours != 10 {
		t.Errorf("3.6 million tokens at 500 a second need 2 hours, got %+v", m.SageUse)
	}
	if got := r.notes()[1]; !strings.Contains(got, "12.0 instance-hours in total, 2.0 of them owed (+20.0%; GPU-hours +20.0%)") {
		t.Errorf("got %s", got)
	}
}

// The same plan yields the same bytes, regardless of the number of workers.
func TestSageIsReproducible(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "it computes, which takes minutes with the detector on")
	text := func(workers int) string {
		p := shippedForecaster(sagePlan(t, "sage-day", "reactive", "auto"))
		p.Workers = workers
		var b bytes.Buffer
		if err := json.NewEncoder(&b).Encode(runSage(t, p)); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if one, two := text(1), text(2); one != two {
		t.Errorf("other bytes: %.2000s\n%.2000s", one, two)
	}
}

// When donated VMs do not suffice, a strategy takes those of other models and then new ones, up to the
// existing and spare VMs.
func TestSageScarceUsesSpareVMs(t *testing.T) {
	testkit.Slow(t)
	p := sagePlan(t, "sage-scarce", "reactive")
	p.Settings = SageSettings{VMs: 2, Spare: 3, Duration: time.Hour, Load: 0.3}
	row := runSage(t, p).Rows[0]
	launched, hours := 0, 0.0
	for _, m := range row.Models {
		launched += m.Launched
		hours += m.InstanceHours + m.DonatedInstanceHours
	}
	if maximum := 9; launched == 0 || launched > maximum || hours <= 24 || hours > float64(24+launched) {
		t.Errorf("%d launched of %d, %g hours of 24 VMs and those", launched, maximum, hours)
	}
}

func TestSageTables(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "it computes, which takes minutes with the detector on")
	for _, c := range []struct{ name, want string }{
		{"sage-scarce", `MODEL +STRATEGY .+ STARTS +REDEPLOYED +NEW VMS`},
		{"sage-a100", `lt-ua: .+; GPU-hours [-+][\d.]+%, paper -28.2%\)`},
		{"sage-day", `llama2-70b +lt-ua +[\d.]+ \(277.5\) +[\d.]+ +[-+][\d.]+% \(-23.4%\)`},
		{"sage-silo", `bloom-176b +unified +[\d.]+ \(148\) +[\d.]+ +[-+][\d.]+% \(-25.7%\)`},
		{"sage-tiers", `pf +[\d.]+ \(0.9\) +[\d.]+ \(12.1\)`},
	} {
		p := sagePlan(t, c.name)
		if c.name == "sage-silo" {
			p.Settings.VMs = 10
		}
		r := runSage(t, p)
		var table, html bytes.Buffer
		if err := r.WriteTable(&table); err != nil {
			t.Fatal(err)
		}
		if !matches(c.want, table.String()) {
			t.Errorf("want %s in\n%s", c.want, table.String())
		}
		if err := WriteSageHTML(&html, []*SageReport{r}); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"<title>skyserve sim " + c.name + "</title>", "<path class=\"strategy c0\" d=\"M0 ", "</html>"} {
			if !strings.Contains(html.String(), want) {
				t.Errorf("%s: the page has no %q", c.name, want)
			}
		}
	}
}

// Without a response by the strategy a burst lasts until the load drops; with one it ends earlier.
func TestSageBurst(t *testing.T) {
	testkit.Slow(t)
	p := sagePlan(t, "sage-burst", "reactive", "lt-i")
	p.Settings = SageSettings{Load: 0.5, Duration: 100 * time.Minute}
	r := runSage(t, p)
	reactive, immediate := r.Rows[0].Burst, r.Rows[1].Burst
	if !reactive.RecoveredInBurst || immediate.RecoveredInBurst || reactive.RecoverySeconds == nil || *reactive.RecoverySeconds > 900 {
		t.Errorf("reactive: %+v, lt-i: %+v", reactive, immediate)
	}
	if reactive.PeakUtilisation >= 1 || immediate.PeakUtilisation < recoveredBelow {
		t.Errorf("peaks of %g and %g", reactive.PeakUtilisation, immediate.PeakUtilisation)
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil || !matches(`lt-i +\d+% +.+ +0 of 1 `, table.String()) {
		t.Errorf("%v: %s", err, table.String())
	}
}

func TestSageRejectsInvalidInput(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(*SageComparison)
	}{
		{`unknown strategy "lt-x": must be one of reactive, lt-i`, func(p *SageComparison) { p.Strategies = []string{"lt-x"} }},
		{"seeds: must be at least 1, got 0", func(p *SageComparison) { p.Seeds = 0 }},
		{`unknown forecaster "x"`, func(p *SageComparison) { p.Settings.Forecaster = "x" }},
		{"the run ends 24h0m0s after the week", func(p *SageComparison) { p.Settings.Day, p.Settings.Duration = 7, 48*time.Hour }},
		{"max: must be at least min, 2, got 1", func(p *SageComparison) { p.Settings.Max = 1 }},
		{"--trace: not supported by sage-tiers, which defines its own load", func(p *SageComparison) {
			p.Scenario = SageScenarios()[4]
			p.Trace = &SageTrace{}
		}},
		{"week.csv: must have at most the 4 models of sage-day, got 5", func(p *SageComparison) {
			p.Trace = &SageTrace{Name: "week.csv", Models: []string{"a", "b", "c", "d", "e"}, minutes: make([][2][]float64, 5)}
		}},
	} {
		p := sagePlan(t, "sage-day", "reactive")
		c.change(&p)
		if _, err := RunSage(context.Background(), p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	var o SageSettings
	for _, c := range []struct{ key, value, want string }{
		{"load", "0", "must be greater than 0 and at most 100"},
		{"late", "0.6", "must be greater than 0 and at most 0.5"},
		{"vms", "x", "must be an integer from 1 to 200"},
		{"day", "monday", `must be one of mon, tue, wed, thu, fri, sat, sun, got "monday"`},
		{"duration", "5m", "must be a duration of at least 1h"},
		{"forecaster", "x", `unknown forecaster "x"`},
		{"lod", "1", "unknown setting \"lod\": must be one of day, deferred"},
	} {
		if err := o.Set(c.key, c.value); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%s: got %v, want %q", c.key, c.value, err, c.want)
		}
	}
	for _, c := range [][2]string{{"load", "2"}, {"deferred", "0.5"}, {"vms", "8"}, {"spare", "4"}, {"min", "3"}, {"max", "9"}, {"day", "sun"}, {"duration", "2h"}, {"forecaster", "auto"}, {"epsilon", "0.8"}, {"peak", "p90"}, {"horizon", "70m"}, {"late", "0.1"}} {
		if err := o.Set(c[0], c[1]); err != nil {
			t.Error(err)
		}
	}
	if want := (SageSettings{2, 0.5, 8, 4, 3, 9, 7, 2 * time.Hour, 0.1, "auto", 0.8, "p90", 70 * time.Minute, 0}); o != want {
		t.Errorf("got %+v, want %+v", o, want)
	}
	if _, err := FindSageScenarios("sage-dya"); err == nil || !strings.Contains(err.Error(), "must be one of sage-day, sage-week") {
		t.Errorf("got %v", err)
	}
	if all, err := FindSageScenarios("sage"); err != nil || len(all) != 10 || IsSageName("./sage.yaml") || !IsSageName("sage-x") {
		t.Errorf("%d scenarios, %v", len(all), err)
	}
}

// traceText is a day and an hour of two models: 100 tokens per second, and 10 of deferred work; model y
// has load only in its first two minutes.
func traceText() string {
	var b strings.Builder
	b.WriteString("minute,model,tier,prompt_tokens,exact\n")
	for i := range 25 * 60 {
		fmt.Fprintf(&b, "%d,x,IW,60000,1\n%d,x,NIW,6000,0\n", i, i)
	}
	b.WriteString("0,y,IW,100,1\n3,y,IW,0,1\n0,y,NIW,0,1\n")
	return b.String()
}

func TestSageTrace(t *testing.T) {
	trace, err := ReadSageTrace("week.csv", strings.NewReader(traceText()))
	if err != nil {
		t.Fatal(err)
	}
	if y := trace.minutes[1][0]; len(y) != 4 || y[2] != 100 || y[3] != 0 {
		t.Errorf("a missing minute must repeat the one before: got %v", y)
	}
	mix := "day_nov2024,tenant,tier,requests_in_sample\n5,prod-eastus,IW,3\n5,prod-westus3,IW,1\n5,prod-northcentralus,IW,4\n5,prod-japanwest,IW,9\n5,prod-eastus,NIW,1\n"
	if err := trace.ReadMix("mix.csv", strings.NewReader(mix), sim.SageFleet().Regions); err != nil {
		t.Fatal(err)
	}
	p := sagePlan(t, "sage-day", "lt-u")
	p.Settings = SageSettings{Day: 2, Duration: time.Hour}
	p.Trace = trace
	r := runSage(t, p)
	if len(r.Constants.Models) != 2 || r.Constants.Trace != "week.csv" {
		t.Fatalf("%+v", r.Constants)
	}
	x := r.Rows[0].Models[0]
	tokens := 0.0
	for i, want := range []float64{3, 4, 1} {
		n := float64(x.Regions[i].Tiers[0].Requests + x.Regions[i].Tiers[1].Requests)
		tokens += n * sim.SageFleet().Models[0].Lengths.Prompt.Mean()
		if share := n / float64(x.Tiers[0].Requests+x.Tiers[1].Requests); math.Abs(share-want/8) > 0.05 {
			t.Errorf("%s has %.2f of the requests, want %.2f", x.Regions[i].Region, share, want/8)
		}
	}
	if math.Abs(tokens/3.6e6-1) > 0.1 {
		t.Errorf("%g tokens, want about 3.6e6", tokens)
	}
	if x.Regions[1].Tiers[2].Requests != 0 || x.Regions[0].Tiers[2].Requests == 0 {
		t.Error("deferred work is not in the mix's regions")
	}
	p.Settings.Day = 3
	if _, err := RunSage(context.Background(), p); err == nil || err.Error() != "week.csv: ends after 1500 minutes, but the run needs 2940" {
		t.Errorf("got %v", err)
	}
}

func TestSageTraceErrors(t *testing.T) {
	const head = "minute,model,tier,prompt_tokens\n"
	for _, c := range []struct{ text, want string }{
		{"", "reading f.csv:1: header: EOF"},
		{"minute,model,tier\n", "reading f.csv:1: must have the columns minute, model, tier, prompt_tokens, got minute, model, tier"},
		{"minute,model,tier,tier,prompt_tokens\n", `reading f.csv:1: duplicate column "tier": rename or remove one`},
		{head, "reading f.csv: no rows"},
		{head + "x,a,IW,1\n", `reading f.csv:2: minute: must be an integer from 0 to 527039, got "x"`},
		{head + "0,a,IW,1\n-1,a,IW,1\n", `reading f.csv:3: minute: must be an integer from 0`},
		{head + "0,a,IW-F,1\n", `reading f.csv:2: tier: must be IW or NIW, got "IW-F"`},
		{head + "0,a,IW,NaN\n", `reading f.csv:2: prompt_tokens: must be a number from 0 to 1e+10, got "NaN"`},
		{head + "0,a\n", "wrong number of fields"},
	} {
		if _, err := ReadSageTrace("f.csv", strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %q", c.text, err, c.want)
		}
	}
	const mix = "tenant,tier,requests_in_sample\n"
	for _, c := range []struct{ text, want string }{
		{mix + "a-eastus,IW,1\n", "must contain requests of both tiers in the regions eastus, centralus, westus, got 1 and 0"},
		{mix + "a-eastus,X,1\n", `reading m.csv:2: tier: must be IW or NIW, got "X"`},
		{mix + "a-eastus,IW,-1\n", `reading m.csv:2: requests_in_sample: must be at least 0, got "-1"`},
	} {
		if err := new(SageTrace).ReadMix("m.csv", strings.NewReader(c.text), sim.SageFleet().Regions); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %q", c.text, err, c.want)
		}
	}
}

// Any file yields a trace or an error.
func FuzzSageTrace(f *testing.F) {
	f.Add("minute,model,tier,prompt_tokens\n0,a,IW,1\n7,a,NIW,2.5\n")
	f.Add("tier,model,minute,prompt_tokens\nIW,,0,0\n")
	f.Add("\x1f\x8b")
	f.Fuzz(func(t *testing.T, text string) {
		trace, err := ReadSageTrace("f.csv", strings.NewReader(text))
		if err != nil {
			return
		}
		if len(trace.Models) == 0 || len(trace.Models) != len(trace.minutes) {
			t.Fatalf("models %v, series of %d", trace.Models, len(trace.minutes))
		}
		for _, model := range trace.minutes {
			for _, series := range model {
				for _, v := range series {
					if !(v >= 0 && v <= maxMinuteTokens) {
						t.Fatalf("a minute of %g tokens", v)
					}
				}
			}
		}
	})
}

// matches reports whether a line of text starts with a match of pattern.
func matches(pattern, text string) bool {
	return regexp.MustCompile(`(?m)^` + pattern).MatchString(text)
}
