package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
)

// offersOf runs `skyserve offers` and returns its document.
func (e *emulated) offersOf(code int, args ...string) (doc offerListing) {
	e.t.Helper()
	cmd := e.command(e.at(append([]string{"offers", "-o", "json"}, args...)...)...)
	out, err := cmd.Output()
	if got := cmd.ProcessState.ExitCode(); got != code {
		e.t.Fatalf("exit %d (%v), want %d\n%s", got, err, code, out)
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		e.t.Fatalf("%v: %s", err, out)
	}
	return doc
}

// The offers of both clouds have prices, quotas and the clouds' advice on spot capacity.
func TestOffersOfBothClouds(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	e.aws.Configure(func() {
		e.aws.QuotaLimits = map[string]float64{"L-DB2E81BA": 64, "L-3819A6DF": 8, "L-417A185B": 0, "L-7212CCBC": 0, "L-C4BD4855": 0, "L-1216C47A": 64, "L-34B43A08": 0}
		e.aws.SpotPrice = func(string, string) string { return "0.3612" }
		e.aws.SpotScore = func(zone string, _ []string) int { return map[string]int{"us-east-1a": 9}[zone] + 1 }
	})
	e.gce.SetObtainability("us-central1-a", "g2-standard-4", 0.8)
	doc := e.offersOf(exitOK, "--gpu", "L4", "--region", "aws/us-east-1", "--region", "gcp/us-central1", "--capacity", "spot")
	row := func(kind, zone string) offerRow {
		i := slices.IndexFunc(doc.Offers, func(r offerRow) bool { return r.Type == kind && r.Zone == zone })
		if i < 0 {
			t.Fatalf("no %s in %s: %+v", kind, zone, doc.Offers)
		}
		return doc.Offers[i]
	}
	a := row("g6.xlarge", "us-east-1a")
	if a.SpotScore == nil || *a.SpotScore != 10 || a.PricePerHour == nil || *a.PricePerHour != 0.3612 || *a.PriceFrom != "spot price in us-east-1a" || a.QuotaRemaining == nil || *a.QuotaRemaining != 2 {
		t.Errorf("got %+v", a)
	}
	g := row("g2-standard-4", "us-central1-a")
	if want := testcloud.FakeGCEPrice("us-central1", "g2-standard-4", true); g.SpotScore != nil || g.Advice == nil || !strings.Contains(*g.Advice, "obtainability 0.8") || g.PricePerHour == nil || *g.PricePerHour-want > 1e-6 {
		t.Errorf("got %+v", g)
	}
	for _, r := range doc.Offers {
		if r.GPU != "L4" || r.Capacity != "spot" {
			t.Errorf("not selected: %+v", r)
		}
	}
	e.aws.Configure(func() { e.aws.MaxScoreRequests = 1 })
	doc = e.offersOf(exitPartial, "--region", "aws/us-east-1", "--count", "3")
	if len(doc.Offers) == 0 || len(doc.Warnings) != 1 || !strings.Contains(doc.Warnings[0], "MaxConfigLimitExceeded") || !strings.Contains(doc.Warnings[0], "24 hours") {
		t.Errorf("above the limit of scores: %d offers, warnings %q", len(doc.Offers), doc.Warnings)
	}
	e.aws.Configure(func() { e.aws.DenialCode = func(_, _ string) string { return "ExpiredToken" } })
	doc = e.offersOf(exitPartial, "--gpu", "L4", "--region", "aws/us-east-1", "--region", "gcp/us-central1")
	if len(doc.Warnings) == 0 || slices.ContainsFunc(doc.Offers, func(r offerRow) bool { return r.Region.Cloud() != "gcp" }) {
		t.Errorf("without credentials of AWS: %+v", doc.Warnings)
	}
	e.skyserve(exitCredentials, e.at("offers", "--region", "aws/us-east-1")...)
	for _, wrong := range [][]string{{"--gpu", "T4"}, {"--capacity", "cheap"}, {"--count", "0"}, {"--region", "us"}, {"-o", "xml"}} {
		e.skyserve(exitUsage, e.at(append([]string{"offers"}, wrong...)...)...)
	}
}
