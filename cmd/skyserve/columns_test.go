package main

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"skyserve/forecast"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/sim"
	"skyserve/internal/telemetry"
	"skyserve/lbd/batch/job"
	"skyserve/plan"
	"skyserve/provision"
)

// narrowTerminal is a terminal with 80 columns.
type narrowTerminal struct{ strings.Builder }

func (*narrowTerminal) Columns() int { return 80 }

// The tables of all commands that list things fit into 80 columns, and name the things in full.
func TestTablesFitInto80Columns(t *testing.T) {
	offer := &provision.Offering{Type: "g6.xlarge", Region: "aws/ap-northeast-1", Zone: "ap-northeast-1a", Capacity: service.CapacitySpot, PricePerHour: 0.4321}
	machines := []deploy.MachineStatus{
		{ID: "ap-northeast-1-0", State: service.StateReady, Model: "meta-llama/Llama-3.1-8B-Instruct", GPU: "L4", Balancer: "lb-ap-northeast-1-0", URL: "http://203.0.113.171:8000", Offering: offer},
		{ID: "ap-northeast-1-10", State: service.StateProvisioning, Model: "meta-llama/Llama-3.1-8B-Instruct", GPU: "L4", Reason: "no spot capacity of g6.xlarge in ap-northeast-1a, -1c", Offering: offer},
	}
	balancers := []deploy.MachineStatus{{ID: "lb-ap-northeast-1-0", State: service.StateReady, Endpoint: "https://203.0.113.170:8443", Offering: offer}}
	status := &deploy.ServiceStatus{Regions: []deploy.RegionStatus{{Name: "aws/ap-northeast-1", Balancers: balancers, Replicas: machines}}}
	var listed []listedReplica
	for _, m := range machines {
		listed = append(listed, listedReplica{"aws/ap-northeast-1", m})
	}
	now := time.Date(2026, 11, 27, 3, 0, 0, 0, time.UTC)
	proposal := changedPlan()
	lists := map[string]list{
		"status": machineTable(status), "replica list": replicaTable(listed, now), "plan": planTable(proposal), "batch list": batchTable([]job.Batch{{ID: "batch_019c3f2a1b47rt5pk2m9wq3z", Status: "in_progress", RequestCounts: job.Counts{Total: 50000, Completed: 12345, Failed: 12}, Endpoint: "/v1/chat/completions"}}),
		"offers": longOffers().table(), "offers blocks": blockTable([]blockRow{{ID: "cb-0123456789abcdef0", GPU: "H100", GPUs: 8, Type: "p5.48xlarge", Count: 4, Region: "aws/ap-northeast-1", Zone: "ap-northeast-1a", Starts: now, Ends: now.AddDate(0, 0, 14), Hours: 336, Upfront: 123456.78, PerGPUHour: 3.21, PerHour: 25.68, Currency: "USD"}}),
		"forecast": forecastTable([]forecastedSeries{longForecast(now)}), "config": settingsTable([]shownSetting{{"service", "chat-production-eu", "file", "SKYSERVE_SERVICE", "--service", "The service that commands without a name select, if several exist."}}, "/home/operator/.config/skyserve/config.yaml"),
		"usage":    usageTable([]usageLine{{Key: "sk-...wxyz", Model: "meta-llama/Llama-3.1-8B-Instruct", Region: "aws/ap-northeast-1", Usage: telemetry.Usage{Requests: 1234567, PromptTokens: 12345678901, CachedTokens: 9876543210, OutputTokens: 1234567890, PricedRequests: 1234567, Cost: service.NanoUSDOf(12345.67)}}}, []string{"key", "model", "region"}),
		"gc":       (&orphans{objects: []provision.Object{{Service: "chat-production", Region: "aws/ap-northeast-1", Kind: provision.KindReplica, ID: "ap-northeast-1-10", Handle: "i-0123456789abcdef0", CostPerHour: 0.8048, Started: now}}}).table(),
		"sim list": tableOfScenarios(sim.Scenarios(), listedFleets()), "connect": operatorTable([]operatorRow{{Name: "anna@laptop.example.com", Role: "operator", Fingerprint: strings.Repeat("ab", 32), ExpiresAt: now, Self: true}}),
	}
	for _, name := range listVerbs(newRoot(), "") {
		l, sampled := lists[name]
		if !sampled && name != "events" {
			t.Errorf("no sample of %s", name)
			continue
		}
		var out narrowTerminal
		if err := (outputFormat{kind: outputText}).write(&out, nil, l); err != nil {
			t.Fatal(err)
		}
		checkColumns(t, name, out.String())
		if !slices.Contains([]string{"status", "replica list", "batch list", "offers blocks", "config", "sim list", "connect"}, name) {
			continue // their rows have several names
		}
		for _, row := range l.rows {
			if !strings.Contains(out.String(), row.name) {
				t.Errorf("%s does not contain %s:\n%s", name, row.name, out.String())
			}
		}
	}
	var out narrowTerminal
	if err := proposal.WriteTable(printable.NewWriter(&out)); err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(out.String(), "\n\n")
	checkColumns(t, "plan", table)
	out.Reset()
	u := &usageReport{Quotas: []telemetry.Quota{{Key: "sk-...wxyz", Tenant: "research-department", Unit: "requests", Period: "month", Limit: 12345678901, Used: 1234567890, Remaining: 11111111011, ResetsAt: now}}}
	if err := u.writeTable(&out, outputFormat{kind: outputText}, nil, nil); err != nil {
		t.Fatal(err)
	}
	checkColumns(t, "quotas of usage", out.String())
}

// listVerbs returns the commands that print lists, as people write them.
func listVerbs(cmd *cobra.Command, prefix string) (verbs []string) {
	for _, c := range cmd.Commands() {
		name := strings.TrimSpace(prefix + " " + c.Name())
		if c.LocalFlags().Lookup("no-headers") != nil {
			verbs = append(verbs, name)
		}
		verbs = append(verbs, listVerbs(c, name)...)
	}
	return verbs
}

// changedPlan returns a plan with one change.
func changedPlan() plan.Proposal {
	half := 0.83
	return plan.Proposal{Changes: []plan.ReplicaChange{{Model: "meta-llama/Llama-3.1-8B-Instruct", Region: "aws/ap-northeast-1", GPU: "H100", Current: 12, Delta: -2, Planned: 10, PlannedPeakTPS: 123456, CapacityTPS: 150000, Utilisation: &half}}}
}

// longOffers returns offers with long names.
func longOffers() *offerListing {
	price, from, left, advice := 12.3456, "AWS price list", 12.0, "interrupted more than 20 % of the time"
	row := offerRow{GPU: "L40S", GPUs: 8, Type: "g6e.48xlarge", Region: "aws/ap-northeast-1", Zone: "ap-northeast-1a", Capacity: service.CapacityOnDemand, PricePerHour: &price, PriceFrom: &from, QuotaRemaining: &left, Advice: &advice}
	google := row
	google.GPU, google.Type, google.Region, google.Zone = "H100", "a3-highgpu-8g", "gcp/northamerica-northeast1", "northamerica-northeast1-a"
	return &offerListing{Offers: []offerRow{row, google}}
}

// longForecast returns a forecast of a series with a long name.
func longForecast(now time.Time) forecastedSeries {
	return forecastedSeries{
		KeyedSeries: forecast.KeyedSeries{
			SeriesKey: forecast.SeriesKey{Region: "aws/ap-northeast-1", Model: "meta-llama/Llama-3.1-8B-Instruct", Tier: "IW-F"},
			Series:    forecast.Series{Unit: forecast.PromptTokens, Start: now.Unix() / 60, Step: 5 * time.Minute, Values: []float64{1e6}},
		},
		forecasts: []forecast.Forecast{{Forecaster: "seasonal-naive", Mean: []float64{3e7}, Lo90: []float64{2e7}, Hi90: []float64{4e7}}}, names: []string{"auto"},
	}
}

// The events that --watch prints later stay in the columns of the first ones, and messages are readable at 80 columns.
// Pipes and -o wide have all of them.
func TestEventsFitInto80Columns(t *testing.T) {
	first := telemetry.Event{ID: "1", At: eventNoon, Actor: "operator:anna@laptop.example.com", Kind: telemetry.EventScaleFromZero, Region: "aws/ap-northeast-1", Object: "ap-northeast-1-10", Message: "launched ap-northeast-1-10 on spot g6.xlarge in ap-northeast-1a", Reason: "KV memory 82 % used, above 70 %; replicas before: 2"}
	later := telemetry.Event{ID: "2", At: eventNoon.Add(time.Hour), Actor: "cloud", Kind: telemetry.EventDeath, Region: "aws/us-east-1", Object: "us-0", Message: "us-0 ended"}
	show := func(w io.Writer, kind string) {
		p := &eventPrinter{out: w, errOut: io.Discard, format: outputFormat{kind: kind}, shown: map[string]bool{}, zone: time.UTC}
		for _, e := range []telemetry.Event{first, later} {
			if err := p.printReport(&telemetry.EventReport{Complete: true, Events: []telemetry.Event{e}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var terminal narrowTerminal
	show(&terminal, outputText)
	want := `TIME                 ACTOR                      MESSAGE
2026-11-24 12:00:00  operator:anna@laptop.exa…  launched ap-northeast-1-10 on s…
2026-11-24 13:00:00  cloud                      us-0 ended
`
	checkColumns(t, "events", terminal.String())
	if got := terminal.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	var wide narrowTerminal
	var pipe strings.Builder
	show(&wide, outputWide)
	show(&pipe, outputText)
	for _, text := range []string{wide.String(), pipe.String()} {
		for _, e := range []telemetry.Event{first, later} {
			if !strings.Contains(text, e.Message) || !strings.Contains(text, e.Reason) || !strings.Contains(text, string(e.Region)+" ") {
				t.Errorf("%s is not whole in\n%s", e.ID, text)
			}
		}
	}
}

// checkColumns checks that no line has more than 80 columns.
func checkColumns(t *testing.T, name, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%s has %d columns:\n%s", name, n, text)
			return
		}
	}
}
