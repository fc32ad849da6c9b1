package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
)

// denyPrices denies access to the AWS price list.
func denyPrices(_, action string) string {
	if action == "pricing:GetProducts" {
		return "AccessDeniedException"
	}
	return ""
}

// onDemandOnly is a service with one balancer and one replica in one region each of AWS and Google
// Cloud.
var onDemandOnly = strings.NewReplacer("balancers: 2\n", "balancers: 1\n", "    capacity: [spot, on_demand]\n", "").Replace(twoClouds)

// `up` shows the prices of the region's cloud and their source.
func TestUpShowsPricesOfTheRegions(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	up := append(e.upOf(onDemandOnly), "--dry-run")
	east, central := testcloud.FakePrice("us-east-1", "g6.xlarge"), testcloud.FakeGCEPrice("us-central1", "g2-standard-4", false)
	shown := e.skyserve(exitOK, up...)
	for _, want := range []string{
		fmt.Sprintf("us-east-1-0 aws/us-east-1 +$%.4f/h", east), fmt.Sprintf("us-central1-0 gcp/us-central1 +$%.4f/h", central),
		"price source: AWS price list, us-east-1; Google price list, us-central1",
	} {
		if !strings.Contains(strings.Join(strings.Fields(shown), " "), want) {
			t.Errorf("no %q in\n%s", want, shown)
		}
	}
	if strings.Contains(shown, "list price") {
		t.Errorf("it shows list prices:\n%s", shown)
	}
	e.aws.Configure(func() { e.aws.DenialCode = denyPrices })
	e.gce.FailCalls("cloudbilling.services.skus.list", 403, "accessNotConfigured", "Cloud Billing API has not been used in project 1 before or it is disabled.")
	shown = e.skyserve(exitOK, up...)
	for _, want := range []string{
		"us-east-1-0 aws/us-east-1 +$0.8048/h", "us-central1-0 gcp/us-central1 +$0.7068/h", "price source: list price in us-central1; list price in us-east-1",
		"prices of aws/us-east-1 are unknown, using built-in list prices: calling aws: permission denied for pricing:GetProducts",
		"prices of gcp/us-central1 are unknown, using built-in list prices:", "(enable it: gcloud services enable cloudbilling.googleapis.com)",
	} {
		if strings.Count(strings.Join(strings.Fields(shown), " "), want) != 1 {
			t.Errorf("%q is not exactly once in\n%s", want, shown)
		}
	}
	var document struct {
		Changes []struct {
			ID        string
			PriceFrom *string `json:"price_from"`
		}
	}
	e.document(&document, append(slices.Clone(up), "-o", "json")...)
	for _, c := range document.Changes {
		if c.PriceFrom == nil || (*c.PriceFrom == "list price in us-east-1") != slices.Contains([]string{"us-east-1-0", "lb-us-east-1-0"}, c.ID) {
			t.Errorf("%+v", c)
		}
	}
}

// `plan` uses the prices that `up` shows. Without access to the cloud it uses list prices and reports
// why.
func TestPlanAndUpSeeTheSamePrices(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	file := e.upOf(onDemandOnly)[1]
	planned := func(args ...string) (cost float64, assumed string) {
		t.Helper()
		var document struct {
			Changes []struct {
				Region string
				Cost   float64 `json:"cost_change_per_hour"`
			}
			Assumed []string
		}
		e.document(&document, append([]string{"plan", file, "-o", "json"}, args...)...)
		for _, c := range document.Changes {
			cost += c.Cost
		}
		return cost, strings.Join(document.Assumed, "\n")
	}
	sum := testcloud.FakePrice("us-east-1", "g6.xlarge") + testcloud.FakeGCEPrice("us-central1", "g2-standard-4", false)
	if cost, output := planned(e.at()...); fmt.Sprintf("%.4f", cost) != fmt.Sprintf("%.4f", sum) || !strings.Contains(output, "(Google price list, us-central1, on demand)") || strings.Contains(output, "not known") {
		t.Errorf("with prices: %g, want %g, output\n%s", cost, sum, output)
	}
	if cost, output := planned(append(e.at(), "--builtin-prices")...); fmt.Sprintf("%.4f", cost) != "1.5116" || !strings.Contains(output, "(g6.xlarge in us-east-1, on demand) in every region") {
		t.Errorf("with list prices: %g, output\n%s", cost, output)
	}
	e.aws.Configure(func() { e.aws.DenialCode = denyPrices })
	if cost, output := planned(e.at()...); fmt.Sprintf("%.4f", cost) != fmt.Sprintf("%.4f", 0.8048+testcloud.FakeGCEPrice("us-central1", "g2-standard-4", false)) || !strings.Contains(output, "permission denied for pricing:GetProducts") {
		t.Errorf("denied: %g, output\n%s", cost, output)
	}
	e.aws.Configure(func() { e.aws.DenialCode = func(_, _ string) string { return "ExpiredToken" } })
	if cost, output := planned(e.at()...); cost < 1.5 || !strings.Contains(output, "prices of aws/us-east-1 are unknown, using built-in list prices: ") {
		t.Errorf("without access to AWS prices: %g, output\n%s", cost, output)
	}
}

// `doctor` reports whether prices are available; missing prices are not a failure.
func TestDoctorReportsPrices(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	doctor := e.at("doctor", e.upOf(onDemandOnly)[1])
	e.aws.Configure(func() {
		e.aws.QuotaLimits = map[string]float64{"L-DB2E81BA": 64, "L-3819A6DF": 64, "L-417A185B": 0, "L-7212CCBC": 0, "L-C4BD4855": 0, "L-1216C47A": 64, "L-34B43A08": 0}
	})
	out := strings.Join(strings.Fields(e.skyserve(exitOK, doctor...)), " ")
	for _, want := range []string{"ok aws/us-east-1 prices: 16 found", "ok gcp/us-central1 prices: 37 found"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	e.aws.Configure(func() { e.aws.DenialCode = denyPrices })
	out = strings.Join(strings.Fields(e.skyserve(exitOK, doctor...)), " ")
	if want := "ok aws/us-east-1 prices are unknown, using built-in list prices: calling aws: permission denied for pricing:GetProducts"; !strings.Contains(out, want) || !strings.Contains(out, "hint: allow pricing:GetProducts for the caller in an IAM policy") {
		t.Errorf("no %q in\n%s", want, out)
	}
}
