package gcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/api/cloudbilling/v1"
	"google.golang.org/api/option"

	"skyserve/internal/service"
	"skyserve/provision"
)

// priceService is Compute Engine in the catalogue of Cloud Billing.
const priceService = "services/6F81-5844-456A"

// priceFields are what is read of tens of thousands of SKUs: a fifth of the whole.
const priceFields = "nextPageToken,skus(description,category/usageType,serviceRegions,pricingInfo/pricingExpression(usageUnit,tieredRates))"

// The catalogue has some ten pages of the size that is asked for.
const (
	priceSKUs     = 5000
	maxPricePages = 100
)

// Prices are what the types of the catalogue cost in a region, on demand and as spot
// machines, by the price list of Cloud Billing; see provision.Pricer. It has no machine
// types but their parts: a type costs what its vCPUs, its memory and its GPUs cost. The
// list is read once for all regions.
func (p *Provider) Prices(ctx context.Context, region service.Region) ([]provision.Price, error) {
	list, err := p.prices.Ask(ctx, "", time.Now(), p.readPrices)
	if err != nil {
		return nil, explainPrices(err)
	}
	return list.of(region.Place())
}

// readPrices reads the list, page by page.
func (p *Provider) readPrices(ctx context.Context) (*priceList, error) {
	s, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	carrier := s.carrier
	if p.cfg.MachinesOnly { // a machine that was made without this scope is to lack prices alone
		if carrier, _, err = p.signed(s.plain, billingScope); err != nil {
			return nil, err
		}
	}
	hc := &http.Client{Transport: within{ctx, carrier}}
	client, err := cloudbilling.NewService(ctx, option.WithEndpoint(s.billing+"/"), option.WithHTTPClient(hc))
	if err != nil {
		return nil, err
	}
	list := newPriceList()
	call := client.Services.Skus.List(priceService).PageSize(priceSKUs).CurrencyCode("USD").Fields(priceFields)
	pages := 0
	err = call.Pages(ctx, func(page *cloudbilling.ListSkusResponse) error {
		if pages++; pages > maxPricePages {
			return fmt.Errorf("it has more than %d pages", maxPricePages)
		}
		for _, sku := range page.Skus {
			list.add(sku)
		}
		return nil
	})
	return list, err
}

// explainPrices says why the list cannot be read, and what would let it be.
func explainPrices(err error) error {
	const doing = "reading the price list of Cloud Billing"
	r, refused := refusalOf(err)
	denied := deniedBy(err)
	switch {
	case refused && (r.code == "accessNotConfigured" || strings.Contains(r.message, "has not been used in project") || strings.Contains(r.message, "quota project")):
		denied = &provision.CredentialsError{
			Cloud: service.CloudGCP, Code: r.code, Err: err, Action: "the Cloud Billing API", Hint: "enable it: gcloud services enable cloudbilling.googleapis.com",
		}
		if strings.Contains(r.message, "quota project") {
			denied.Hint = "name the project that asks: gcloud auth application-default set-quota-project"
		}
	case refused && denied == nil && r.status == http.StatusForbidden, denied != nil && denied.Action != "":
		denied = &provision.CredentialsError{
			Cloud: service.CloudGCP, Code: r.code, Err: err, Action: "the Cloud Billing API", Hint: "its scope cloud-billing.readonly, and the API enabled in the project, are all it takes",
		}
	}
	if denied != nil {
		return fmt.Errorf("%s: %w", doing, denied)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// part is a part of machines that is billed by the hour.
type part struct {
	region string
	// what is a core or a GiB of RAM of a family, or a GPU: "g2 core", "a3 ram", "l4".
	what string
	spot bool
}

// priceList is what parts cost, in USD an hour.
type priceList struct {
	perHour map[part]float64
	bad     map[part]error // parts whose price could not be read
}

func newPriceList() *priceList { return &priceList{map[part]float64{}, map[part]error{}} }

// add reads a SKU; those of other things are passed over.
func (l *priceList) add(sku *cloudbilling.Sku) {
	what, spot, ours := partOf(sku)
	if !ours {
		return
	}
	price, err := hourly(sku, what)
	for _, region := range sku.ServiceRegions {
		at := part{region, what, spot}
		if have, known := l.perHour[at]; err == nil && known && have != price {
			l.bad[at] = fmt.Errorf("%s has two prices in %s, %g and %g", what, region, have, price)
		}
		if err != nil {
			l.bad[at] = err
			continue
		}
		l.perHour[at] = price
	}
}

// The descriptions of the SKUs that machines of the catalogue are made of. Commitments,
// reservations, custom machines and families with longer names have others.
var (
	describesMachine = regexp.MustCompile(`(?i)^(spot preemptible )?(e2|g2|a2|a3) instances? (core|ram) running in `)
	describesGPU     = regexp.MustCompile(`(?i)^nvidia (?:tesla )?(l4|a100|h100(?: 80gb)?) gpu (attached to spot preemptible vms )?running in `)
)

// partOf is what a SKU is a part of machines of, and whether as spot machines.
func partOf(sku *cloudbilling.Sku) (what string, spot, ours bool) {
	if m := describesMachine.FindStringSubmatch(sku.Description); m != nil {
		what, spot = strings.ToLower(m[2]+" "+m[3]), m[1] != ""
	} else if m := describesGPU.FindStringSubmatch(sku.Description); m != nil {
		what, spot = strings.TrimSuffix(strings.ToLower(m[1]), " 80gb"), m[2] != "" // an A100 of 80 GB is another part
	}
	usage := "OnDemand"
	if spot {
		usage = "Preemptible"
	}
	return what, spot, what != "" && sku.Category != nil && sku.Category.UsageType == usage
}

// hourly is what an hour of a part costs by its SKU, in USD. There is one price, which
// holds from the first hour on.
func hourly(sku *cloudbilling.Sku, what string) (float64, error) {
	unit := "h"
	if strings.HasSuffix(what, " ram") {
		unit = "GiBy.h"
	}
	if len(sku.PricingInfo) == 0 {
		return 0, fmt.Errorf("%q has no price", sku.Description)
	}
	newest := sku.PricingInfo[len(sku.PricingInfo)-1]
	if newest == nil || newest.PricingExpression == nil || newest.PricingExpression.UsageUnit != unit || len(newest.PricingExpression.TieredRates) != 1 {
		return 0, fmt.Errorf("%q is not priced by one rate for %s", sku.Description, unit)
	}
	price, err := usd(newest.PricingExpression.TieredRates[0])
	if err != nil {
		return 0, fmt.Errorf("%q: %w", sku.Description, err)
	}
	return price, nil
}

// usd is a rate in USD.
func usd(rate *cloudbilling.TierRate) (float64, error) {
	if rate == nil || rate.UnitPrice == nil || rate.StartUsageAmount != 0 {
		return 0, errors.New("its rate does not hold from the first hour on")
	}
	m := rate.UnitPrice
	price := float64(m.Units) + float64(m.Nanos)/1e9
	if m.CurrencyCode != "USD" || m.Units < 0 || m.Nanos < 0 || m.Nanos >= 1e9 || !provision.IsPrice(price) {
		return 0, fmt.Errorf("%d units and %d nanos of %q are not a price of an hour", m.Units, m.Nanos, m.CurrencyCode)
	}
	return price, nil
}

// of are the prices of a region, in the order of type and capacity, of those types of
// which all parts have one. Beside an error are those that could be read.
func (l *priceList) of(region string) ([]provision.Price, error) {
	var prices []provision.Price
	var bad []error
	for _, t := range provision.MachineTypes(service.CloudGCP) {
		for _, capacity := range []service.CapacityType{service.CapacityOnDemand, service.CapacitySpot} {
			price, err := l.price(t, region, capacity == service.CapacitySpot)
			switch {
			case err != nil:
				if !slices.ContainsFunc(bad, func(b error) bool { return b.Error() == err.Error() }) {
					bad = append(bad, err)
				}
			case provision.IsPrice(price):
				prices = append(prices, provision.Price{Type: t.Type, Capacity: capacity, PerHour: price, From: "Google price list, " + region})
			}
		}
	}
	switch {
	case len(bad) > 0:
		return prices, fmt.Errorf("reading the price list of Cloud Billing for %s: %w", region, errors.Join(bad...))
	case len(prices) == 0:
		return nil, fmt.Errorf("reading the price list of Cloud Billing: it tells nothing of %s", region)
	}
	return prices, nil
}

// price is the sum of the parts of a type; 0 where the region does not have one of them.
func (l *priceList) price(t provision.MachineType, region string, spot bool) (float64, error) {
	family, _, _ := strings.Cut(t.Type, "-")
	sum := 0.0
	for _, p := range []struct {
		what  string
		count int
	}{{family + " core", t.VCPUs}, {family + " ram", t.MemoryGiB}, {strings.ToLower(t.GPU), t.GPUs}} {
		at := part{region, p.what, spot}
		if p.count == 0 {
			continue
		}
		if err := l.bad[at]; err != nil {
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
