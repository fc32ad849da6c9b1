package gcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/api/cloudbilling/v1"
	"google.golang.org/api/option"

	"skyserve/internal/service"
	"skyserve/provision"
)

// priceFields selects the fields to read of tens of thousands of SKUs. They are a fifth of the full
// response.
const priceFields = "nextPageToken,skus(description,category/usageType,serviceRegions,pricingInfo/pricingExpression(usageUnit,tieredRates))"

// The price list has about ten pages of priceSKUs entries.
const (
	priceSKUs     = 5000
	maxPricePages = 100
)

// Prices returns the prices of the catalogue's types in a region, on demand, spot and flex-start, from Cloud
// Billing's price list; see provision.Pricer. The list contains prices of parts, not of machine types: the
// price of a type is the sum of its vCPUs, memory and GPUs. The list is read once for all regions.
func (p *Provider) Prices(ctx context.Context, region service.Region) ([]provision.Price, error) {
	list, err := p.prices.Get(ctx, "", time.Now(), p.readPrices)
	if err != nil {
		return nil, explainPrices(err)
	}
	return list.regionPrices(region.ShortName())
}

// readPrices reads the list, page by page.
func (p *Provider) readPrices(ctx context.Context) (*priceList, error) {
	s, err := p.openSession(ctx)
	if err != nil {
		return nil, err
	}
	transport := s.transport
	if p.cfg.MachinesOnly { // a machine of an earlier version does not have this scope: only reading prices fails there
		if transport, _, err = p.signedTransport(s.unsigned, billingScope); err != nil {
			return nil, err
		}
	}
	hc := &http.Client{Transport: contextTransport{ctx, transport}}
	client, err := cloudbilling.NewService(ctx, option.WithEndpoint(s.billing+"/"), option.WithHTTPClient(hc))
	if err != nil {
		return nil, err
	}
	list := newPriceList()
	call := client.Services.Skus.List(priceService).PageSize(priceSKUs).CurrencyCode("USD").Fields(priceFields)
	pages := 0
	err = call.Pages(ctx, func(page *cloudbilling.ListSkusResponse) error {
		if pages++; pages > maxPricePages {
			return fmt.Errorf("more than %d pages", maxPricePages)
		}
		for _, sku := range page.Skus {
			list.add(sku)
		}
		return nil
	})
	return list, err
}

// explainPrices wraps an error of reading the list, with a hint where the next step is known.
func explainPrices(err error) error {
	const doing = "reading the price list of Cloud Billing"
	r, rejected := refusalOf(err)
	denied := callerError(err)
	switch {
	case rejected && (r.code == codeDisabledAPI || strings.Contains(r.message, "has not been used in project") || strings.Contains(r.message, "quota project")):
		denied = &provision.CredentialsError{
			Cloud: service.CloudGCP, Code: r.code, Err: err, Action: "the Cloud Billing API", Hint: "enable it: gcloud services enable cloudbilling.googleapis.com",
		}
		if strings.Contains(r.message, "quota project") {
			denied.Hint = "set a quota project: gcloud auth application-default set-quota-project PROJECT"
		}
	case rejected && denied == nil && r.status == http.StatusForbidden, denied != nil && denied.Action != "":
		denied = &provision.CredentialsError{
			Cloud: service.CloudGCP, Code: r.code, Err: err, Action: "the Cloud Billing API", Hint: "grant the scope cloud-billing.readonly and enable the API: gcloud services enable cloudbilling.googleapis.com",
		}
	}
	if denied != nil {
		return fmt.Errorf("%s: %w", doing, denied)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// billedPart is a part of a machine that is billed per hour.
type billedPart struct {
	region string
	// what is the part: a core or a GiB of RAM of a machine family, or a GPU: "g2 core", "a3 ram", "l4".
	what     string
	capacity service.CapacityType
}

// priceList contains the prices of parts, in USD per hour.
type priceList struct {
	perHour map[billedPart]float64
	errs    map[billedPart]error // the errors of parts with an invalid price
}

func newPriceList() *priceList { return &priceList{map[billedPart]float64{}, map[billedPart]error{}} }

// add reads a SKU; other SKUs than those of catalogue machines are skipped.
func (l *priceList) add(sku *cloudbilling.Sku) {
	what, capacity, ok := partOf(sku)
	if !ok {
		return
	}
	price, err := hourlyPrice(sku, what)
	for _, region := range sku.ServiceRegions {
		at := billedPart{region, what, capacity}
		if have, known := l.perHour[at]; err == nil && known && have != price {
			l.errs[at] = fmt.Errorf("%s in %s: price must be unique, got %g and %g", what, region, have, price)
		}
		if err != nil {
			l.errs[at] = err
			continue
		}
		l.perHour[at] = price
	}
}

// partOf returns the machine part of a SKU, and the capacity type that its price is for; ok is false for other
// SKUs.
func partOf(sku *cloudbilling.Sku) (what string, capacity service.CapacityType, ok bool) {
	var model string
	if m := describesMachine().FindStringSubmatch(sku.Description); m != nil {
		what, model = strings.ToLower(m[2]+" "+m[3]), m[1]
	} else if m := describesGPU().FindStringSubmatch(sku.Description); m != nil {
		what, model = strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(m[1]), " 80gb"), " 141gb"), m[2] // an A100 with 80 GB is another part
	}
	usage := usageOnDemand
	switch strings.ToLower(model) {
	case "":
		capacity = service.CapacityOnDemand
	case flexMachine, flexGPU:
		capacity = service.CapacityFlexStart
	default:
		capacity, usage = service.CapacitySpot, usageSpot
	}
	return what, capacity, what != "" && sku.Category != nil && sku.Category.UsageType == usage
}

// hourlyPrice returns the price per hour of a part from its SKU, in USD. A SKU must have exactly one price,
// which applies from the first hour.
func hourlyPrice(sku *cloudbilling.Sku, what string) (float64, error) {
	unit := unitHour
	if strings.HasSuffix(what, " ram") {
		unit = unitGiBHour
	}
	if len(sku.PricingInfo) == 0 {
		return 0, fmt.Errorf("%q: no price", sku.Description)
	}
	newest := sku.PricingInfo[len(sku.PricingInfo)-1]
	if newest == nil || newest.PricingExpression == nil || newest.PricingExpression.UsageUnit != unit || len(newest.PricingExpression.TieredRates) != 1 {
		return 0, fmt.Errorf("%q: number of rates per %s must be 1", sku.Description, unit)
	}
	price, err := rateUSD(newest.PricingExpression.TieredRates[0])
	if err != nil {
		return 0, fmt.Errorf("%q: %w", sku.Description, err)
	}
	return price, nil
}

// rateUSD returns a rate in USD.
func rateUSD(rate *cloudbilling.TierRate) (float64, error) {
	if rate == nil || rate.UnitPrice == nil || rate.StartUsageAmount != 0 {
		return 0, errors.New("rate must apply from the first hour")
	}
	m := rate.UnitPrice
	price := float64(m.Units) + float64(m.Nanos)/1e9
	if m.CurrencyCode != "USD" || m.Units < 0 || m.Nanos < 0 || m.Nanos >= 1e9 || !provision.IsValidPrice(price) {
		return 0, fmt.Errorf("invalid price per hour: %d units and %d nanos of %q", m.Units, m.Nanos, m.CurrencyCode)
	}
	return price, nil
}

// regionPrices returns the prices of a region, sorted by type and capacity, for the types whose parts all
// have a price. With an error it returns the prices that could be read.
func (l *priceList) regionPrices(region string) ([]provision.Price, error) {
	var prices []provision.Price
	var errs []error
	for _, t := range provision.MachineTypes(service.CloudGCP) {
		for _, capacity := range []service.CapacityType{service.CapacityOnDemand, service.CapacitySpot, service.CapacityFlexStart} {
			price, err := l.typePrice(t, region, capacity)
			switch {
			case err != nil:
				if !slices.ContainsFunc(errs, func(e error) bool { return e.Error() == err.Error() }) {
					errs = append(errs, err)
				}
			case provision.IsValidPrice(price):
				prices = append(prices, provision.Price{Type: t.Type, Capacity: capacity, PerHour: price, Source: "Google price list, " + region})
			}
		}
	}
	switch {
	case len(errs) > 0:
		return prices, fmt.Errorf("reading the price list of Cloud Billing for %s: %w", region, errors.Join(errs...))
	case len(prices) == 0:
		return nil, fmt.Errorf("reading the price list of Cloud Billing: no prices for %s", region)
	}
	return prices, nil
}

// typePrice returns the sum of the prices of a type's parts; 0 if one of them has no price in the region.
func (l *priceList) typePrice(t provision.MachineType, region string, capacity service.CapacityType) (float64, error) {
	family, model, _ := strings.Cut(t.Type, "-")
	if strings.HasPrefix(model, "ultragpu") && family == "a3" {
		family += "ultra"
	}
	sum := 0.0
	for _, p := range []struct {
		what  string
		count int
	}{{family + " core", t.VCPUs}, {family + " ram", t.MemoryGiB}, {strings.ToLower(t.GPU), t.GPUs}} {
		at := billedPart{region, p.what, capacity}
		if p.count == 0 {
			continue
		}
		if err := l.errs[at]; err != nil {
			return 0, err
		}
		each, known := l.perHour[at]
		if !known {
			return 0, nil
		}
		sum += each * float64(p.count)
	}
	return sum, nil
}
