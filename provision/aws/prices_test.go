package aws_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/aws"
)

// The price list contains the price of every catalogue type in a region; other systems, hardware and
// markets are ignored, and the list is read once.
func TestPrices(t *testing.T) {
	faults := &testcloud.Faults{}
	cloud := newCloud(faults)
	cloud.PageSize = 2
	p := open(t, cloud)
	for range 2 {
		got, err := p.Prices(t.Context(), west)
		var want []provision.Price
		for _, m := range provision.MachineTypes(service.CloudAWS) {
			price := testcloud.FakePrice("us-west-2", m.Type)
			if price == m.OnDemand || price == 0 {
				t.Fatalf("the fake's price of %s is %g, the list's %g: they must differ", m.Type, price, m.OnDemand)
			}
			want = append(want, provision.Price{Type: m.Type, Capacity: service.CapacityOnDemand, PerHour: price, Source: "AWS price list, us-west-2"})
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	if pages := faults.CallCounts()["pricing:GetProducts"]; pages != 8 {
		t.Errorf("requested %d pages of 16 products, two per page", pages)
	}
}

// A denied, throttled or invalid list is an error with the reason; the valid prices are returned.
func TestPriceListErrors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*testcloud.AWS)
		faults *testcloud.Faults
		priced int
		says   string
	}{
		{name: "throttled for a while", faults: unpricedFor(3, testcloud.Throttled), priced: 16},
		{name: "throttled", faults: unpricedFor(1000, testcloud.Throttled), says: "pricing:GetProducts: ThrottlingException: Rate exceeded"},
		{name: "internal error", faults: unpricedFor(1000, testcloud.InternalError), says: "pricing:GetProducts: InternalError"},
		{name: "lost response", faults: unpricedFor(2, testcloud.ResponseLost), priced: 16},
		{name: "one invalid price", change: setPrice("g6.xlarge", "about a dollar"), priced: 15, says: `g6.xlarge: invalid price per hour: "about a dollar"`},
		{name: "one price of zero", change: setPrice("p5.48xlarge", "0.0000000000"), priced: 15, says: `p5.48xlarge: invalid price per hour: "0.0000000000"`},
		{name: "one type without a price", change: setPrice("p5.48xlarge", ""), priced: 15},
		{name: "no prices", change: func(c *testcloud.AWS) { c.ListPrice = func(_, _ string) string { return "" } }, says: "no prices for us-east-1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cloud := newCloud(tt.faults)
			if tt.change != nil {
				tt.change(cloud)
			}
			got, err := open(t, cloud).Prices(t.Context(), east)
			var throttled *provision.ThrottledError
			if errors.As(err, &throttled) != (tt.name == "throttled") {
				t.Errorf("got %T", err)
			}
			if len(got) != tt.priced || (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %d prices, %v, want %d and %q", len(got), err, tt.priced, tt.says)
			}
		})
	}
}

// unpricedFor makes the first calls for prices fail.
func unpricedFor(calls int, o testcloud.Outcome) *testcloud.Faults {
	return &testcloud.Faults{DecideOutcome: func(c testcloud.Call) testcloud.Outcome {
		if c.Action != "pricing:GetProducts" || calls == 0 {
			return testcloud.Served
		}
		calls--
		return o
	}}
}

func setPrice(kind, price string) func(*testcloud.AWS) {
	return func(c *testcloud.AWS) {
		c.ListPrice = func(region, asked string) string {
			if asked == kind {
				return price
			}
			return fmt.Sprintf("%.10f", testcloud.FakePrice(region, asked))
		}
	}
}

// Without the permission, the error names it, and offerings have the built-in list prices.
func TestPricesWithoutPermission(t *testing.T) {
	cloud := newCloud(nil)
	cloud.DenialCode = func(_, action string) string {
		if action == "pricing:GetProducts" {
			return "AccessDeniedException"
		}
		return ""
	}
	p := open(t, cloud)
	_, err := p.Prices(t.Context(), east)
	var refused *provision.CredentialsError
	if !errors.As(err, &refused) || refused.Action != "pricing:GetProducts" || !strings.Contains(refused.Hint, "pricing:GetProducts") {
		t.Errorf("got %v", err)
	}
	if offers, err := p.Offerings(t.Context(), east); err != nil || len(offers) == 0 {
		t.Errorf("offerings: %d, %v", len(offers), err)
	}
}

// The price list exists in few regions: each AWS partition has its own, except GovCloud.
func TestPricingRegions(t *testing.T) {
	for region, want := range map[string]string{
		"us-east-1": "us-east-1", "us-west-2": "us-east-1", "ca-central-1": "us-east-1", "sa-east-1": "us-east-1",
		"eu-west-1": "eu-central-1", "me-south-1": "eu-central-1", "af-south-1": "eu-central-1", "il-central-1": "eu-central-1",
		"ap-northeast-1": "ap-south-1", "cn-north-1": "cn-northwest-1", "us-gov-west-1": "",
	} {
		asked := ""
		cloud := testcloud.NewAWS(&testcloud.Faults{DecideOutcome: func(c testcloud.Call) testcloud.Outcome {
			asked = c.Region
			return testcloud.Served
		}}, region)
		p, err := aws.New(t.Context(), config(cloud, region))
		if err != nil {
			t.Fatal(err)
		}
		prices, err := p.Prices(t.Context(), service.Region("aws/"+region))
		if asked != want || (err != nil) != (want == "") || (len(prices) == 16) != (want != "") {
			t.Errorf("%s: asked %q, got %d prices, %v, want %q", region, asked, len(prices), err, want)
		}
		if want == "" && !strings.Contains(err.Error(), "GovCloud has no price list") {
			t.Errorf("%s: %v", region, err)
		}
	}
}
