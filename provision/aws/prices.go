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

// maxPricePages is the maximum number of pages of one response. The products of the catalogue's types fit
// on one page of 100.
const maxPricePages = 20

// pricingRegion returns the region of the price list API for the prices of a region; empty if there is
// none. The API exists in few regions, and each covers its whole AWS partition. pricingRegion selects a
// near one, because an AWS account that is restricted to a geography may have no access to others.
func pricingRegion(region string) string {
	switch partitionOf(region) {
	case partitionChina:
		return pricesChina
	case partitionGovCloud:
		return ""
	}
	area, _, _ := strings.Cut(region, "-")
	return cmp.Or(pricesNear[area], pricesOther)
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
		ServiceCode: aws.String(priceService), FormatVersion: aws.String(priceFormat), Filters: r.priceFilters(), MaxResults: aws.Int32(100),
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

// priceFilters selects the products that skyserve launches: Linux without a paid licence, shared
// hardware, on demand.
func (r *region) priceFilters() []pricingtypes.Filter {
	var filters []pricingtypes.Filter
	match := func(kind pricingtypes.FilterType, field, value string) {
		filters = append(filters, pricingtypes.Filter{Type: kind, Field: aws.String(field), Value: aws.String(value)})
	}
	match(pricingtypes.FilterTypeAnyOf, "instanceType", strings.Join(catalogueTypes(), ","))
	match(pricingtypes.FilterTypeTermMatch, "regionCode", r.name)
	match(pricingtypes.FilterTypeTermMatch, "operatingSystem", priceSystem)
	match(pricingtypes.FilterTypeTermMatch, "tenancy", priceTenancy)
	match(pricingtypes.FilterTypeTermMatch, "preInstalledSw", priceSoftware)
	match(pricingtypes.FilterTypeTermMatch, "capacitystatus", priceStatus)
	match(pricingtypes.FilterTypeTermMatch, "marketoption", priceMarket)
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
		err = fmt.Errorf("%s: price must be unique, got %g and %g", p.instanceType(), have, price)
	}
	if err != nil {
		l.errs = append(l.errs, err)
		return
	}
	l.perHour[p.instanceType()] = price
}

// prices returns the prices that could be read, sorted by type, and an error for the others.
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

// product is an entry of the price list, with the fields that this package reads.
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

// matches reports whether a product is a machine of the catalogue in a region, with the properties that
// skyserve launches. Some price lists contain on-demand products only and omit the market option.
func (p *product) matches(region string) bool {
	a := p.Product.Attributes
	_, known := provision.MachineTypeOf(service.CloudAWS, a.InstanceType)
	return known && a.RegionCode == region && a.OperatingSystem == priceSystem && a.Tenancy == priceTenancy &&
		a.PreInstalledSw == priceSoftware && a.CapacityStatus == priceStatus && cmp.Or(a.MarketOption, priceMarket) == priceMarket
}

// price returns the on-demand price per hour, in USD. A product must have exactly one price, which applies
// from the first hour.
func (p *product) price() (float64, error) {
	var all []priceDimension
	for _, term := range p.Terms.OnDemand {
		for _, d := range term.Dimensions {
			all = append(all, d)
		}
	}
	if len(all) != 1 {
		return 0, fmt.Errorf("%s: number of on-demand prices must be 1, got %d", p.instanceType(), len(all))
	}
	price, err := all[0].hourlyUSD()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", p.instanceType(), err)
	}
	return price, nil
}

// hourlyUSD returns the price per hour in USD.
func (d priceDimension) hourlyUSD() (float64, error) {
	if d.Unit != priceUnit || d.BeginRange != "0" || d.EndRange != "Inf" {
		return 0, fmt.Errorf("price must be per %s from 0 to Inf, got per %s from %q to %q", priceUnit, d.Unit, d.BeginRange, d.EndRange)
	}
	text, ok := d.PerUnit["USD"]
	if !ok {
		return 0, errors.New("no price in USD")
	}
	price, err := strconv.ParseFloat(text, 64)
	if err != nil || strings.Trim(text, "0123456789.") != "" || !provision.IsValidPrice(price) {
		return 0, fmt.Errorf("invalid price per hour: %q", text)
	}
	return price, nil
}
