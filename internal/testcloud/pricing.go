package testcloud

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// ec2ListPrices are on-demand prices of instance types in the cheapest region, in USD per hour. They differ from
// the built-in list prices, so that tests can distinguish the two sources.
var ec2ListPrices = map[string]float64{
	"c7i.large": 0.0911, "g6.xlarge": 0.8211, "g6.4xlarge": 1.3411, "g6.12xlarge": 4.7011, "g6.48xlarge": 13.6011,
	"g5.xlarge": 1.0311, "g5.12xlarge": 5.8011, "g5.48xlarge": 16.7011, "g6e.xlarge": 1.9011, "g6e.12xlarge": 10.7011, "g6e.48xlarge": 30.7011, "p5en.48xlarge": 64.5011,
	"p4d.24xlarge": 22.5011, "p4de.24xlarge": 28.0011, "p5.4xlarge": 7.0011, "p5.48xlarge": 56.0011,
}

// priceFactor is the price factor of a region relative to the cheapest.
func priceFactor(region string) float64 {
	switch {
	case strings.HasPrefix(region, "us-west"):
		return 1.05
	case strings.HasPrefix(region, "eu") || strings.HasPrefix(region, "me"):
		return 1.1
	case strings.HasPrefix(region, "a"):
		return 1.25
	}
	return 1
}

// FakePrice is the on-demand price of an instance type in a region unless ListPrice returns another, in
// USD per hour; 0 = the type is unknown.
func FakePrice(region, instanceType string) float64 {
	price, err := strconv.ParseFloat(fakeListPrice(region, instanceType), 64)
	if err != nil {
		return 0
	}
	return price
}

// fakeListPrice is FakePrice as a list writes it.
func fakeListPrice(region, instanceType string) string {
	if ec2ListPrices[instanceType] == 0 {
		return ""
	}
	return fmt.Sprintf("%.10f", ec2ListPrices[instanceType]*priceFactor(region))
}

// productsRequest is a request for entries of the price list.
type productsRequest struct {
	ServiceCode string
	Filters     []struct{ Type, Field, Value string }
	MaxResults  int
	NextToken   string
}

// productsAnswer is a page of the price list, whose entries are JSON documents in strings.
type productsAnswer struct {
	FormatVersion string
	PriceList     []string
	NextToken     string `json:",omitempty"`
}

// priceListRegions are the regions with an endpoint of the price list.
var priceListRegions = []string{"us-east-1", "eu-central-1", "ap-south-1", "cn-northwest-1"}

// getProducts serves GetProducts. The caller holds mu.
func (a *AWS) getProducts(c awsCall) (any, error) {
	var requested productsRequest
	if err := json.Unmarshal(c.body, &requested); err != nil {
		return nil, badRequest("SerializationException", "%v", err)
	}
	if c.action != "GetProducts" || requested.ServiceCode != "AmazonEC2" || !slices.Contains(priceListRegions, c.region) {
		return nil, badRequest("InvalidParameterException", "%s of %s in %s is not supported", c.action, requested.ServiceCode, c.region)
	}
	var all []string
	for _, region := range slices.Sorted(maps.Keys(a.regions)) {
		for _, kind := range slices.Sorted(maps.Keys(ec2Types)) {
			all = append(all, a.productsFor(region, kind, requested)...)
		}
	}
	size := ""
	if requested.MaxResults > 0 {
		size = strconv.Itoa(requested.MaxResults)
	}
	part, next := paginate(a, all, requested.NextToken, size)
	return productsAnswer{"aws_v1", part, next}, nil
}

// productsFor returns the requested entries of an instance type in a region: in addition to the price of a
// machine, those of other systems, tenancies and markets.
func (a *AWS) productsFor(region, kind string, requested productsRequest) []string {
	price := fakeListPrice(region, kind)
	if a.ListPrice != nil {
		price = a.ListPrice(region, kind)
	}
	if price == "" {
		return nil
	}
	var documents []string
	for _, v := range []struct{ system, tenancy, software, status, market, price string }{
		{"Linux", "Shared", "NA", "Used", "OnDemand", price},
		{"Windows", "Shared", "NA", "Used", "OnDemand", "1" + price},
		{"Linux", "Dedicated", "NA", "Used", "OnDemand", "2" + price},
		{"Linux", "Shared", "SQL Std", "Used", "OnDemand", "3" + price},
		{"Linux", "Shared", "NA", "UnusedCapacityReservation", "OnDemand", price},
		{"Linux", "Shared", "NA", "AllocatedCapacityReservation", "OnDemand", "0.0000000000"},
		{"Linux", "Shared", "NA", "Used", "CapacityBlock", "0.0000000000"},
	} {
		attributes := map[string]string{
			"instanceType": kind, "regionCode": region, "operatingSystem": v.system, "tenancy": v.tenancy, "preInstalledSw": v.software,
			"capacitystatus": v.status, "marketoption": v.market, "servicecode": "AmazonEC2", "operation": "RunInstances",
		}
		if requested.wants(attributes) {
			documents = append(documents, productDocument(attributes, v.price))
		}
	}
	return documents
}

// wants reports whether a product matches all filters.
func (q productsRequest) wants(attributes map[string]string) bool {
	for _, f := range q.Filters {
		value := attributes[f.Field]
		switch {
		case f.Type == "ANY_OF" && slices.Contains(strings.Split(f.Value, ","), value):
		case f.Type == "TERM_MATCH" && f.Value == value:
		default:
			return false
		}
	}
	return true
}

// productDocument returns an entry in the format of the price list: a reserved term in addition to the
// on-demand price.
func productDocument(attributes map[string]string, price string) string {
	const sku = "FAKE1SKU"
	dimension := map[string]any{"FAKE1SKU.JRTCKXETXF.6YS6EN2CT7": map[string]any{
		"unit": "Hrs", "beginRange": "0", "endRange": "Inf", "rateCode": "FAKE1SKU.JRTCKXETXF.6YS6EN2CT7", "appliesTo": []string{},
		"description": "a machine", "pricePerUnit": map[string]string{"USD": price},
	}}
	term := map[string]any{"sku": sku, "offerTermCode": "JRTCKXETXF", "effectiveDate": "2026-11-01T00:00:00Z", "termAttributes": map[string]string{}, "priceDimensions": dimension}
	text, err := json.Marshal(map[string]any{
		"product": map[string]any{"productFamily": "Compute Instance", "attributes": attributes, "sku": sku}, "serviceCode": "AmazonEC2",
		"terms":   map[string]any{"OnDemand": map[string]any{sku + ".JRTCKXETXF": term}, "Reserved": map[string]any{sku + ".38NPMPTW36": term}},
		"version": "20261101000000", "publicationDate": "2026-11-01T00:00:00Z",
	})
	if err != nil {
		panic(fmt.Sprintf("testcloud: encoding a product: %v", err))
	}
	return string(text)
}
