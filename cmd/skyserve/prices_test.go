package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
)

// denyPrices keeps the caller from the price list of AWS.
func denyPrices(_, action string) string {
	if action == "pricing:GetProducts" {
		return "AccessDeniedException"
	}
	return ""
}

// onDemandOnly is a service of one balancer and one replica in a region each of AWS and
// Google Cloud.
var onDemandOnly = strings.NewReplacer("balancers: 2\n", "balancers: 1\n", "    capacity: [spot, on_demand]\n", "").Replace(twoClouds)

// What `up` shows is what the region's cloud asks, and whose word it is.
func TestUpShowsPricesOfTheRegions(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	up := append(e.upOf(onDemandOnly), "--dry-run")
	east, central := testcloud.FakePrice("us-east-1", "g6.xlarge"), testcloud.FakeGCEPrice("us-central1", "g2-standard-4", false)
	shown := e.skyserve(exitOK, up...)
	for _, want := range []string{
		fmt.Sprintf("us-east-1-0 aws/us-east-1 +$%.4f/h", east), fmt.Sprintf("us-central1-0 gcp/us-central1 +$%.4f/h", central),
		"prices are from: AWS price list, us-east-1; Google price list, us-central1",
	} {
		if !strings.Contains(strings.Join(strings.Fields(shown), " "), want) {
			t.Errorf("it does not say %q:\n%s", want, shown)
		}
	}
	if strings.Contains(shown, "list price") {
		t.Errorf("it shows list prices:\n%s", shown)
	}
	e.aws.Set(func() { e.aws.Deny = denyPrices })
	e.gce.Refuse("cloudbilling.services.skus.list", 403, "accessNotConfigured", "Cloud Billing API has not been used in project 1 before or it is disabled.")
	shown = e.skyserve(exitOK, up...)
	for _, want := range []string{
		"us-east-1-0 aws/us-east-1 +$0.8048/h", "us-central1-0 gcp/us-central1 +$0.7068/h", "prices are from: list price in us-central1; list price in us-east-1",
		"prices of aws/us-east-1 are not known, list prices stand in: reaching aws: pricing:GetProducts is not allowed",
		"prices of gcp/us-central1 are not known, list prices stand in:", "(enable it: gcloud services enable cloudbilling.googleapis.com)",
	} {
		if strings.Count(strings.Join(strings.Fields(shown), " "), want) != 1 {
			t.Errorf("it does not say %q once:\n%s", want, shown)
		}
	}
	var document struct {
		Changes []struct {
			ID        string
			PriceFrom *string `json:"price_from"`
		}
	}
	if err := json.Unmarshal([]byte(e.skyserve(exitOK, append(slices.Clone(up), "-o", "json")...)), &document); err != nil {
		t.Fatal(err)
	}
	for _, c := range document.Changes {
		if c.PriceFrom == nil || (*c.PriceFrom == "list price in us-east-1") != slices.Contains([]string{"us-east-1-0", "lb-us-east-1-0"}, c.ID) {
			t.Errorf("%+v", c)
		}
	}
}

// `plan` reckons with what `up` shows; it says why it does not, and needs no cloud.
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
		if err := json.Unmarshal([]byte(e.skyserve(exitOK, append([]string{"plan", file, "-o", "json"}, args...)...)), &document); err != nil {
			t.Fatal(err)
		}
		for _, c := range document.Changes {
			cost += c.Cost
		}
		return cost, strings.Join(document.Assumed, "\n")
	}
	told := testcloud.FakePrice("us-east-1", "g6.xlarge") + testcloud.FakeGCEPrice("us-central1", "g2-standard-4", false)
	if cost, said := planned(e.at()...); fmt.Sprintf("%.4f", cost) != fmt.Sprintf("%.4f", told) || !strings.Contains(said, "(Google price list, us-central1, on demand)") || strings.Contains(said, "not known") {
		t.Errorf("with prices: %g, want %g, and it says\n%s", cost, told, said)
	}
	if cost, said := planned(append(e.at(), "--list-prices")...); fmt.Sprintf("%.4f", cost) != "1.5116" || !strings.Contains(said, "(g6.xlarge in us-east-1, on demand) in every region") {
		t.Errorf("by the list: %g, and it says\n%s", cost, said)
	}
	e.aws.Set(func() { e.aws.Deny = denyPrices })
	if cost, said := planned(e.at()...); fmt.Sprintf("%.4f", cost) != fmt.Sprintf("%.4f", 0.8048+testcloud.FakeGCEPrice("us-central1", "g2-standard-4", false)) || !strings.Contains(said, "pricing:GetProducts is not allowed") {
		t.Errorf("refused: %g, and it says\n%s", cost, said)
	}
	e.aws.Set(func() { e.aws.Deny = func(_, _ string) string { return "ExpiredToken" } })
	if cost, said := planned(e.at()...); cost < 1.5 || !strings.Contains(said, "prices of aws/us-east-1 are not known, list prices stand in: ") {
		t.Errorf("to whom AWS tells nothing: %g, and it says\n%s", cost, said)
	}
}

// `doctor` says whether prices can be asked for, which nothing hangs on.
func TestDoctorLooksAtPrices(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	doctor := e.at("doctor", e.upOf(onDemandOnly)[1])
	e.aws.Set(func() {
		e.aws.Quotas = map[string]float64{"L-DB2E81BA": 64, "L-3819A6DF": 64, "L-417A185B": 0, "L-7212CCBC": 0, "L-C4BD4855": 0, "L-1216C47A": 64, "L-34B43A08": 0}
	})
	out := strings.Join(strings.Fields(e.skyserve(exitOK, doctor...)), " ")
	for _, want := range []string{"ok aws/us-east-1 prices: its cloud tells 9", "ok gcp/us-central1 prices: its cloud tells 26"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	e.aws.Set(func() { e.aws.Deny = denyPrices })
	out = strings.Join(strings.Fields(e.skyserve(exitOK, doctor...)), " ")
	if want := "ok aws/us-east-1 prices are not known, list prices stand in: reaching aws: pricing:GetProducts is not allowed"; !strings.Contains(out, want) || !strings.Contains(out, "hint: allow pricing:GetProducts for the caller in an IAM policy") {
		t.Errorf("it does not say %q:\n%s", want, out)
	}
}
