package aws

import (
	"encoding/json"
	"strings"
	"testing"

	"skyserve/provision"
)

// document is an entry of AWS's price list, without the parts that are not read.
const document = `{"product":{"productFamily":"Compute Instance","attributes":{"enhancedNetworkingSupported":"Yes","intelTurboAvailable":"Yes",
"memory":"16 GiB","vcpu":"4","gpu":"1","capacitystatus":"Used","locationType":"AWS Region","storage":"1 x 250 GB NVMe SSD","instanceFamily":"GPU instance",
"operatingSystem":"Linux","regionCode":"us-west-2","physicalProcessor":"AMD EPYC 7R13","clockSpeed":"2.6 GHz","ecu":"NA","networkPerformance":"Up to 10 Gigabit",
"servicename":"Amazon Elastic Compute Cloud","gpuMemory":"NA","vpcnetworkingsupport":"true","instanceType":"g6.xlarge","tenancy":"Shared",
"usagetype":"USW2-BoxUsage:g6.xlarge","normalizationSizeFactor":"8","servicecode":"AmazonEC2","licenseModel":"No License required","currentGeneration":"Yes",
"preInstalledSw":"NA","location":"US West (Oregon)","processorArchitecture":"64-bit","marketoption":"OnDemand","operation":"RunInstances","availabilityzone":"NA"},
"sku":"2257YY4K7BWZ4F46"},"serviceCode":"AmazonEC2","terms":{"OnDemand":{"2257YY4K7BWZ4F46.JRTCKXETXF":{"priceDimensions":{"2257YY4K7BWZ4F46.JRTCKXETXF.6YS6EN2CT7":
{"unit":"Hrs","endRange":"Inf","description":"$0.8048 per On Demand Linux g6.xlarge Instance Hour","appliesTo":[],"rateCode":"2257YY4K7BWZ4F46.JRTCKXETXF.6YS6EN2CT7",
"beginRange":"0","pricePerUnit":{"USD":"0.8048000000"}}},"sku":"2257YY4K7BWZ4F46","effectiveDate":"2026-10-01T00:00:00Z","offerTermCode":"JRTCKXETXF","termAttributes":{}}},
"Reserved":{"2257YY4K7BWZ4F46.38NPMPTW36":{"priceDimensions":{"2257YY4K7BWZ4F46.38NPMPTW36.2TG2D8R56U":{"unit":"Quantity","description":"Upfront Fee",
"pricePerUnit":{"USD":"8943"}}},"sku":"2257YY4K7BWZ4F46","termAttributes":{"LeaseContractLength":"3yr","PurchaseOption":"All Upfront"}}}},
"version":"20261001000000","publicationDate":"2026-10-01T00:00:00Z"}`

func TestProductPriceParsing(t *testing.T) {
	const price = `"pricePerUnit":{"USD":"0.8048000000"}`
	second := strings.Replace(document, `"OnDemand":{`, `"OnDemand":{"X.Y":{"priceDimensions":{"X.Y.Z":{"unit":"Hrs","beginRange":"0","endRange":"Inf","pricePerUnit":{"USD":"1"}}}},`, 1)
	for _, tt := range []struct {
		name, text string
		usd        float64 // 0 = none
		says       string
	}{
		{"valid", document, 0.8048, ""},
		{"list without markets", strings.Replace(document, `"marketoption":"OnDemand",`, "", 1), 0.8048, ""},
		{"another region", strings.Replace(document, `"us-west-2"`, `"us-west-1"`, 1), 0, ""},
		{"another type", strings.Replace(document, `"instanceType":"g6.xlarge"`, `"instanceType":"t3.nano"`, 1), 0, ""},
		{"another system", strings.Replace(document, `"operatingSystem":"Linux"`, `"operatingSystem":"Windows"`, 1), 0, ""},
		{"dedicated hardware", strings.Replace(document, `"tenancy":"Shared"`, `"tenancy":"Dedicated"`, 1), 0, ""},
		{"with paid software", strings.Replace(document, `"preInstalledSw":"NA"`, `"preInstalledSw":"SQL Web"`, 1), 0, ""},
		{"unused reservation", strings.Replace(document, `"capacitystatus":"Used"`, `"capacitystatus":"AllocatedCapacityReservation"`, 1), 0, ""},
		{"capacity block", strings.Replace(document, `"marketoption":"OnDemand"`, `"marketoption":"CapacityBlock"`, 1), 0, ""},
		{"two prices", second, 0, "g6.xlarge: number of on-demand prices must be 1, got 2"},
		{"no price", strings.Replace(document, `"OnDemand":{"2257`, `"Other":{"2257`, 1), 0, "g6.xlarge: number of on-demand prices must be 1, got 0"},
		{"another currency", strings.Replace(document, price, `"pricePerUnit":{"CNY":"5.8"}`, 1), 0, "g6.xlarge: no price in USD"},
		{"by the second", strings.Replace(document, `"unit":"Hrs"`, `"unit":"Second"`, 1), 0, "got per Second from"},
		{"from the hundredth hour on", strings.Replace(document, `"beginRange":"0"`, `"beginRange":"100"`, 1), 0, `from "100" to "Inf"`},
		{"nothing", strings.Replace(document, price, `"pricePerUnit":{"USD":"0.0000000000"}`, 1), 0, "invalid price per hour"},
		{"negative", strings.Replace(document, price, `"pricePerUnit":{"USD":"-0.8"}`, 1), 0, "invalid price per hour"},
		{"not a number", strings.Replace(document, price, `"pricePerUnit":{"USD":"NaN"}`, 1), 0, "invalid price per hour"},
		{"exponent notation", strings.Replace(document, price, `"pricePerUnit":{"USD":"8e-1"}`, 1), 0, "invalid price per hour"},
		{"above the maximum", strings.Replace(document, price, `"pricePerUnit":{"USD":"80480"}`, 1), 0, "invalid price per hour"},
		{"dropped connection", document[:400], 0, "parsing a product"},
		{"a number", "1", 0, "parsing a product"},
	} {
		l := priceList{region: "us-west-2", perHour: map[string]float64{}}
		l.add(tt.text)
		if l.perHour["g6.xlarge"] != tt.usd || (len(l.errs) > 0) != (tt.says != "") || len(l.errs) > 0 && !strings.Contains(l.errs[0].Error(), tt.says) {
			t.Errorf("%s: got %v, %v, want %g, %q", tt.name, l.perHour, l.errs, tt.usd, tt.says)
		}
	}
}

// A type with two prices is an error; a repeated product is not.
func TestDuplicateProducts(t *testing.T) {
	l := priceList{region: "us-west-2", perHour: map[string]float64{}}
	l.add(document)
	l.add(document)
	if prices, err := l.prices(); err != nil || len(prices) != 1 || prices[0].PerHour != 0.8048 {
		t.Errorf("got %+v, %v", prices, err)
	}
	l.add(strings.ReplaceAll(document, "0.8048", "0.9"))
	if _, err := l.prices(); err == nil || !strings.Contains(err.Error(), "g6.xlarge: price must be unique, got 0.8048 and 0.9") {
		t.Errorf("got %v", err)
	}
}

// From any input, only valid hourly prices of known types are read.
func FuzzPriceList(f *testing.F) {
	f.Add(document)
	f.Add(strings.Replace(document, "0.8048000000", "1e308", 1))
	f.Add(`{"terms":{"OnDemand":{"a":{"priceDimensions":{"b":null}}}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		l := priceList{region: "us-west-2", perHour: map[string]float64{}}
		l.add(text)
		prices, err := l.prices()
		if len(prices) > 1 || (len(prices) == 1) != (err == nil) {
			t.Errorf("%+v, %v", prices, err)
		}
		for _, p := range prices {
			if _, known := provision.MachineTypeOf("aws", p.Type); !known || !provision.IsValidPrice(p.PerHour) || !json.Valid([]byte(text)) {
				t.Errorf("got %+v", p)
			}
		}
	})
}
