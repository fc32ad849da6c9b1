package gcp

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"google.golang.org/api/cloudbilling/v1"

	"skyserve/internal/service"
	"skyserve/provision"
)

// sku is an entry of Cloud Billing's price list.
func sku(description, usage, unit, units string, nanos string) string {
	return `{"name":"services/6F81-5844-456A/skus/D18E-3563-415F","skuId":"D18E-3563-415F","description":"` + description + `","category":{"serviceDisplayName":"Compute Engine",
"resourceFamily":"Compute","resourceGroup":"CPU","usageType":"` + usage + `"},"serviceRegions":["us-central1","us-east1","us-west1"],"pricingInfo":[{"summary":"",
"pricingExpression":{"usageUnit":"` + unit + `","displayQuantity":1,"tieredRates":[{"startUsageAmount":0,"unitPrice":{"currencyCode":"USD","units":"` + units + `","nanos":` + nanos + `}}],
"usageUnitDescription":"hour","baseUnit":"s","baseUnitDescription":"second","baseUnitConversionFactor":3600},"currencyConversionRate":1,"effectiveTime":"2026-11-22T00:00:00Z"}],
"serviceProviderName":"Google","geoTaxonomy":{"type":"MULTI_REGIONAL","regions":["us-central1","us-east1","us-west1"]}}`
}

func readSKU(t testing.TB, text string) *cloudbilling.Sku {
	t.Helper()
	var s cloudbilling.Sku
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

// The sum of the published prices of parts in us-central1 is the published price of the machine type.
func TestMachinePriceIsSumOfParts(t *testing.T) {
	l := newPriceList()
	for _, text := range []string{
		sku("G2 Instance Core running in Americas", "OnDemand", "h", "0", "24988000"),
		sku("G2 Instance Ram running in Americas", "OnDemand", "GiBy.h", "0", "2927000"),
		sku("Nvidia L4 GPU running in Americas", "OnDemand", "h", "0", "560040000"),
		sku("A3 Instance Core running in Americas", "OnDemand", "h", "0", "25498000"),
		sku("A3 Instance Ram running in Americas", "OnDemand", "GiBy.h", "0", "2220300"),
		sku("Nvidia H100 80GB GPU running in Americas", "OnDemand", "h", "9", "796550569"),
		sku("E2 Instance Core running in Americas", "OnDemand", "h", "0", "21811590"),
		sku("E2 Instance Ram running in Americas", "OnDemand", "GiBy.h", "0", "2923530"),
		sku("Nvidia L4 GPU attached to Spot Preemptible VMs running in Americas", "Preemptible", "h", "0", "223000000"),
		sku("Commitment v1: Nvidia L4 GPU in Americas for 1 Year", "Commit1Yr", "h", "0", "350000000"),
		sku("A3 Ultra Instance Core running in Americas", "OnDemand", "h", "0", "1"),
		sku("A3Plus Instance Core running in Americas", "OnDemand", "h", "0", "1"),
		sku("Nvidia H100 80GB Plus GPU running in Americas", "OnDemand", "h", "1", "0"),
		sku("Nvidia H100 80GB GPU attached to DWS Defined Duration VMs running in Americas", "OnDemand", "h", "1", "0"),
		sku("Nvidia L4 GPU running in Americas", "Commit3Yr", "h", "0", "1"),
		sku("E2 Custom Instance Core running in Americas", "OnDemand", "h", "0", "1"),
		sku("Licensing Fee for E2 Instance Core running in Americas", "OnDemand", "h", "0", "1"),
	} {
		l.add(readSKU(t, text))
	}
	prices, err := l.regionPrices("us-east1")
	got := map[string]float64{}
	for _, p := range prices {
		got[p.Type+" "+string(p.Capacity)] = p.PerHour
	}
	for name, want := range map[string]float64{"g2-standard-4": 0.7068, "g2-standard-24": 2.0008, "g2-standard-96": 8.0031, "a3-highgpu-8g": 87.83, "e2-standard-2": 0.06701} {
		if math.Abs(got[name+" on_demand"]-want) > 1e-4*want {
			t.Errorf("%s: got %g, want %g", name, got[name+" on_demand"], want)
		}
	}
	if err != nil || len(got) != 9 { // for spot machines the list contains only the GPU
		t.Errorf("got %v, %v", got, err)
	}
}

// The price of a flex-start machine is the sum of the prices of its parts in Google's list; without one of them it is
// unknown.
func TestFlexStartPriceIsSumOfParts(t *testing.T) {
	l := newPriceList()
	for _, text := range []string{
		sku("DWS Defined Duration A2 Core running in Americas", "OnDemand", "h", "0", "20000000"),
		sku("DWS Defined Duration A2 Ram running in Americas", "OnDemand", "GiBy.h", "0", "2000000"),
		sku("Nvidia Tesla A100 GPU attached to DWS Defined Duration VMs running in Americas", "OnDemand", "h", "1", "500000000"),
		sku("Nvidia Tesla A100 80GB GPU attached to DWS Defined Duration VMs running in Americas", "OnDemand", "h", "9", "0"),
		sku("DWS Defined Duration A3 Core running in Americas", "OnDemand", "h", "0", "20000000"),
		sku("DWS Calendar Mode A2 Core running in Americas", "OnDemand", "h", "0", "1"),
	} {
		l.add(readSKU(t, text))
	}
	prices, err := l.regionPrices("us-central1")
	got := map[string]float64{}
	for _, p := range prices {
		got[p.Type+" "+string(p.Capacity)] = p.PerHour
	}
	if want := 12*0.02 + 85*0.002 + 1.5; err != nil || len(got) != 4 || math.Abs(got["a2-highgpu-1g flex_start"]-want) > 1e-9 {
		t.Errorf("got %v, %v, want %g for each GPU of A2 alone", got, err, want)
	}
}

func TestRateParsing(t *testing.T) {
	good := sku("E2 Instance Core running in Iowa", "OnDemand", "h", "1", "500000000")
	tier := `{"startUsageAmount":0,"unitPrice":{"currencyCode":"USD","units":"1","nanos":500000000}}`
	for _, tt := range []struct {
		name, text string
		usd        float64
		says       string
	}{
		{"valid", good, 1.5, ""},
		{"other letter case", strings.Replace(good, "E2 Instance Core", "E2 INSTANCES core", 1), 1.5, ""},
		{"spot by its name alone", strings.Replace(good, "E2 Instance", "Spot Preemptible E2 Instance", 1), 0, ""},
		{"from the hundredth hour on", strings.Replace(good, `"startUsageAmount":0`, `"startUsageAmount":100`, 1), 0, "rate must apply from the first hour"},
		{"two tiers", strings.Replace(good, tier, tier+","+tier, 1), 0, "number of rates per h must be 1"},
		{"no tier", strings.Replace(good, tier, "", 1), 0, "number of rates per h must be 1"},
		{"an empty tier", strings.Replace(good, tier, "null", 1), 0, "rate must apply from the first hour"},
		{"by the second", strings.Replace(good, `"usageUnit":"h"`, `"usageUnit":"s"`, 1), 0, "number of rates per h must be 1"},
		{"no price", strings.Replace(good, `"pricingInfo"`, `"other"`, 1), 0, ": no price"},
		{"another currency", strings.Replace(good, `"USD"`, `"EUR"`, 1), 0, `nanos of "EUR"`},
		{"negative", strings.Replace(good, `"units":"1"`, `"units":"-1"`, 1), 0, "invalid price per hour"},
		{"too many nanos", strings.Replace(good, "500000000", "1500000000", 1), 0, "invalid price per hour"},
		{"above the maximum", strings.Replace(good, `"units":"1"`, `"units":"1001"`, 1), 0, "invalid price per hour"},
	} {
		l := newPriceList()
		l.add(readSKU(t, tt.text))
		at := billedPart{"us-central1", "e2 core", service.CapacityOnDemand}
		bad := l.errs[at]
		if l.perHour[at] != tt.usd || (bad != nil) != (tt.says != "") || bad != nil && !strings.Contains(bad.Error(), tt.says) {
			t.Errorf("%s: got %v, %v, want %g, %q", tt.name, l.perHour, bad, tt.usd, tt.says)
		}
	}
}

// From any input, only valid hourly prices are read.
func FuzzPriceList(f *testing.F) {
	f.Add(sku("E2 Instance Core running in Iowa", "OnDemand", "h", "0", "1"), sku("E2 Instance Ram running in Iowa", "OnDemand", "GiBy.h", "1", "0"))
	f.Add(sku("Nvidia L4 GPU running in Iowa", "OnDemand", "h", "9223372036854775807", "999999999"), `{"pricingInfo":[null],"description":"Nvidia L4 GPU running in x","category":{"usageType":"OnDemand"}}`)
	f.Fuzz(func(t *testing.T, first, second string) {
		l := newPriceList()
		for _, text := range []string{first, second} {
			var s cloudbilling.Sku
			if json.Unmarshal([]byte(text), &s) == nil {
				l.add(&s)
			}
		}
		for at, price := range l.perHour {
			if !provision.IsValidPrice(price) {
				t.Errorf("%+v costs %g", at, price)
			}
		}
		prices, err := l.regionPrices("us-central1")
		if len(prices) == 0 && err == nil {
			t.Error("neither a price nor an error")
		}
		for _, p := range prices {
			if !provision.IsValidPrice(p.PerHour) {
				t.Errorf("got %+v", p)
			}
		}
	})
}
