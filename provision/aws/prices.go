package aws

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	pricingtypes "github.com/aws/aws-sdk-go-v2/service/pricing/types"

	"skyserve/internal/service"
	"skyserve/provision"
)

// errNoPriceList reports a partition of AWS without a price list.
var errNoPriceList = errors.New("AWS GovCloud has no price list")

// maxPricePages is the maximum number of pages of one answer: the catalogue's types fill one of 100
// products.
const maxPricePages = 20

// pricingRegion returns the region whose price list API to query for the prices of a region: the API exists
// in few regions, and each covers its whole partition. A near one is selected because accounts that are
// restricted to a geography may not reach others. Empty = there is none.
func pricingRegion(region string) string {
	switch partitionOf(region) {
	case "aws-cn":
		return "cn-northwest-1"
	case "aws-us-gov":
		return ""
	}
	area, _, _ := strings.Cut(region, "-")
	switch area {
	case "eu", "il", "me", "af":
		return "eu-central-1"
	case "ap":
		return "ap-south-1"
	}
	return "us-east-1"
}

// Prices returns the on-demand prices of the catalogue's types in a region, from AWS's price list; see
// provision.Pricer. Spot prices come with Offerings, by zone.
func (p *Provider) Prices(ctx context.Context, name service.Region) ([]provision.Price, error) {
	r, err := p.region(name)
	if err != nil {
		return nil, err
	}
	prices, err := p.prices.Get(ctx, r.name, p.cfg.Now(), r.listPrices)
	return slices.Clone(prices), wrapError(fmt.Sprintf("reading the prices of %s", name), err)
}

// listPrices reads the price list, page by page.
func (r *region) listPrices(ctx context.Context) ([]provision.Price, error) {
	if r.pricing == nil {
		return nil, errNoPriceList
	}
	pages := pricing.NewGetProductsPaginator(r.pricing, &pricing.GetProductsInput{
		ServiceCode: aws.String("AmazonEC2"), FormatVersion: aws.String("aws_v1"), Filters: r.priceFilters(), MaxResults: aws.Int32(100),
	})
	list := priceList{region: r.name, perHour: map[string]float64{}}
	for n := 0; pages.HasMorePages(); n++ {
		if n == maxPricePages {
			return nil, fmt.Errorf("reading the price list: more than %d pages", maxPricePages)
		}
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, document := range page.PriceList {
			list.add(document)
		}
	}
	return list.prices()
}

// priceFilters select machines as skyserve launches them: Linux without a licence, shared hardware, on
// demand.
func (r *region) priceFilters() []pricingtypes.Filter {
	var filters []pricingtypes.Filter
	match := func(kind pricingtypes.FilterType, field, value string) {
		filters = append(filters, pricingtypes.Filter{Type: kind, Field: aws.String(field), Value: aws.String(value)})
	}
	match(pricingtypes.FilterTypeAnyOf, "instanceType", strings.Join(catalogueTypes(), ","))
	match(pricingtypes.FilterTypeTermMatch, "regionCode", r.name)
	match(pricingtypes.FilterTypeTermMatch, "operatingSystem", "Linux")
	match(pricingtypes.FilterTypeTermMatch, "tenancy", "Shared")
	match(pricingtypes.FilterTypeTermMatch, "preInstalledSw", "NA")
	match(pricingtypes.FilterTypeTermMatch, "capacitystatus", "Used")
	match(pricingtypes.FilterTypeTermMatch, "marketoption", "OnDemand")
	return filters
}

// priceList collects the prices of a region.
type priceList struct {
	region  string
	perHour map[string]float64 // by type
	errs    []error            // products that could not be parsed
}

// add reads one product. Products that do not match are skipped.
func (l *priceList) add(document string) {
	p, err := readProduct(document)
	if err != nil {
		l.errs = append(l.errs, err)
		return
	}
	if !p.matches(l.region) {
		return
	}
	price, err := p.price()
	if have := l.perHour[p.instanceType()]; err == nil && have != 0 && have != price {
		err = fmt.Errorf("%s: found two prices, %g and %g", p.instanceType(), have, price)
	}
	if err != nil {
		l.errs = append(l.errs, err)
		return
	}
	l.perHour[p.instanceType()] = price
}

// prices returns the prices that were read, sorted by type, with an error about the others.
func (l *priceList) prices() ([]provision.Price, error) {
	var prices []provision.Price
	for name, price := range l.perHour {
		prices = append(prices, provision.Price{
			Type: name, Capacity: service.CapacityOnDemand, PerHour: price, Source: "AWS price list, " + l.region,
		})
	}
	slices.SortFunc(prices, func(a, b provision.Price) int { return cmp.Compare(a.Type, b.Type) })
	switch {
	case len(l.errs) > 0:
		return prices, fmt.Errorf("reading the price list: %w", errors.Join(l.errs...))
	case len(prices) == 0:
		return nil, fmt.Errorf("reading the price list: no prices for %s", l.region)
	}
	return prices, nil
}

// product is an entry of the price list, reduced to the fields that are read.
type product struct {
	Product struct {
		Attributes struct {
			InstanceType    string `json:"instanceType"`
			RegionCode      string `json:"regionCode"`
			OperatingSystem string `json:"operatingSystem"`
			Tenancy         string `json:"tenancy"`
			PreInstalledSw  string `json:"preInstalledSw"`
			CapacityStatus  string `json:"capacitystatus"`
			MarketOption    string `json:"marketoption"`
		} `json:"attributes"`
	} `json:"product"`
	Terms struct {
		OnDemand map[string]struct {
			Dimensions map[string]priceDimension `json:"priceDimensions"`
		} `json:"OnDemand"`
	} `json:"terms"`
}

// priceDimension is one price of a term.
type priceDimension struct {
	Unit       string            `json:"unit"`
	BeginRange string            `json:"beginRange"`
	EndRange   string            `json:"endRange"`
	PerUnit    map[string]string `json:"pricePerUnit"` // by currency
}

func readProduct(document string) (*product, error) {
	var p product
	if err := json.Unmarshal([]byte(document), &p); err != nil {
		return nil, fmt.Errorf("parsing a product: %w", err)
	}
	return &p, nil
}

func (p *product) instanceType() string { return p.Product.Attributes.InstanceType }

// matches reports whether a product is a machine of the catalogue in a region as skyserve launches it. A
// list without other markets omits the market option.
func (p *product) matches(region string) bool {
	a := p.Product.Attributes
	_, known := provision.MachineTypeOf(service.CloudAWS, a.InstanceType)
	return known && a.RegionCode == region && a.OperatingSystem == "Linux" && a.Tenancy == "Shared" &&
		a.PreInstalledSw == "NA" && a.CapacityStatus == "Used" && cmp.Or(a.MarketOption, "OnDemand") == "OnDemand"
}

// price returns the on-demand price per hour, in USD. There must be exactly one price, from the first
// hour on.
func (p *product) price() (float64, error) {
	var all []priceDimension
	for _, term := range p.Terms.OnDemand {
		for _, d := range term.Dimensions {
			all = append(all, d)
		}
	}
	if len(all) != 1 {
		return 0, fmt.Errorf("%s: must have 1 on-demand price, found %d", p.instanceType(), len(all))
	}
	price, err := all[0].hourlyUSD()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", p.instanceType(), err)
	}
	return price, nil
}

// hourlyUSD returns the price per hour in USD.
func (d priceDimension) hourlyUSD() (float64, error) {
	if d.Unit != "Hrs" || d.BeginRange != "0" || d.EndRange != "Inf" {
		return 0, fmt.Errorf("the price must be for Hrs from 0 to Inf, found %s from %q to %q", d.Unit, d.BeginRange, d.EndRange)
	}
	text, has := d.PerUnit["USD"]
	if !has {
		return 0, errors.New("no price in USD")
	}
	price, err := strconv.ParseFloat(text, 64)
	if err != nil || strings.Trim(text, "0123456789.") != "" || !provision.IsValidPrice(price) {
		return 0, fmt.Errorf("%q is not a valid price per hour", text)
	}
	return price, nil
}
