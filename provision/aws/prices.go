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

// errNoPriceList is a part of AWS that does not tell its prices.
var errNoPriceList = errors.New("AWS GovCloud has no price list to ask")

// maxPricePages bounds the pages of one answer: the catalogue's types fill one of 100
// products.
const maxPricePages = 20

// priceHome is the region whose price list is asked for the prices of a region: it is
// answered in few, and tells of all in the same part of AWS. Near ones are asked because
// accounts that are bound to a part of the world may not reach others. Empty = there is none.
func priceHome(region string) string {
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

// Prices are what the types of the catalogue cost on demand in a region by AWS's price
// list; see provision.Pricer. Spot prices come with Offerings, by zone.
func (p *Provider) Prices(ctx context.Context, name service.Region) ([]provision.Price, error) {
	r, err := p.region(name)
	if err != nil {
		return nil, err
	}
	prices, err := p.prices.Ask(ctx, r.name, p.cfg.Now(), r.listPrices)
	return slices.Clone(prices), explain(fmt.Sprintf("asking for the prices of %s", name), err)
}

// listPrices asks for the price list, page by page.
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
			return nil, fmt.Errorf("reading the price list: it has more than %d pages", maxPricePages)
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

// priceFilters ask for machines as they are launched here: Linux without a licence,
// shared hardware, on demand.
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
	bad     []error            // what could not be read
}

// add reads one product. What nobody asked for is passed over.
func (l *priceList) add(document string) {
	p, err := readProduct(document)
	if err != nil {
		l.bad = append(l.bad, err)
		return
	}
	if !p.is(l.region) {
		return
	}
	price, err := p.price()
	if have := l.perHour[p.kind()]; err == nil && have != 0 && have != price {
		err = fmt.Errorf("%s has two prices, %g and %g", p.kind(), have, price)
	}
	if err != nil {
		l.bad = append(l.bad, err)
		return
	}
	l.perHour[p.kind()] = price
}

// prices are those that were read, in the order of their types, and what is wrong with
// the others.
func (l *priceList) prices() ([]provision.Price, error) {
	var prices []provision.Price
	for name, price := range l.perHour {
		prices = append(prices, provision.Price{
			Type: name, Capacity: service.CapacityOnDemand, PerHour: price, From: "AWS price list, " + l.region,
		})
	}
	slices.SortFunc(prices, func(a, b provision.Price) int { return cmp.Compare(a.Type, b.Type) })
	switch {
	case len(l.bad) > 0:
		return prices, fmt.Errorf("reading the price list: %w", errors.Join(l.bad...))
	case len(prices) == 0:
		return nil, fmt.Errorf("reading the price list: it tells nothing of %s", l.region)
	}
	return prices, nil
}

// product is an entry of the price list, as far as it is read.
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
		return nil, fmt.Errorf("a product is not what a price list has: %w", err)
	}
	return &p, nil
}

func (p *product) kind() string { return p.Product.Attributes.InstanceType }

// is says whether a product is a machine of the catalogue in a region as it is launched
// here. A list that does not know of other markets leaves the market out.
func (p *product) is(region string) bool {
	a := p.Product.Attributes
	_, known := provision.MachineTypeOf(service.CloudAWS, a.InstanceType)
	return known && a.RegionCode == region && a.OperatingSystem == "Linux" && a.Tenancy == "Shared" &&
		a.PreInstalledSw == "NA" && a.CapacityStatus == "Used" && cmp.Or(a.MarketOption, "OnDemand") == "OnDemand"
}

// price is what an hour costs on demand, in USD. There is one price, and it holds from
// the first hour on.
func (p *product) price() (float64, error) {
	var all []priceDimension
	for _, term := range p.Terms.OnDemand {
		for _, d := range term.Dimensions {
			all = append(all, d)
		}
	}
	if len(all) != 1 {
		return 0, fmt.Errorf("%s has %d prices on demand, want 1", p.kind(), len(all))
	}
	price, err := all[0].usd()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", p.kind(), err)
	}
	return price, nil
}

// usd is the price in USD of an hour, whichever it is.
func (d priceDimension) usd() (float64, error) {
	if d.Unit != "Hrs" || d.BeginRange != "0" || d.EndRange != "Inf" {
		return 0, fmt.Errorf("the price is for %s from %q to %q, want Hrs from 0 to Inf", d.Unit, d.BeginRange, d.EndRange)
	}
	text, has := d.PerUnit["USD"]
	if !has {
		return 0, errors.New("it has no price in USD")
	}
	price, err := strconv.ParseFloat(text, 64)
	if err != nil || strings.Trim(text, "0123456789.") != "" || !provision.IsPrice(price) {
		return 0, fmt.Errorf("the price %q is not one of an hour", text)
	}
	return price, nil
}
