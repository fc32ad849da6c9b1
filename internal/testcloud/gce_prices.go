package testcloud

import (
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
)

// GCESKU is an entry of Google's price list.
type GCESKU struct {
	Description string
	Usage       string // OnDemand, Preemptible, Commit1Yr
	Unit        string // h, GiBy.h
	Regions     []string
	// Nanos is its price in billionths of Currency, USD where that is empty.
	Nanos    int64
	Currency string
}

// gceRates are the prices per hour of machine parts in the cheapest regions, in billionths of a dollar;
// spot machines cost two fifths. The figures are fictitious.
var gceRates = []struct {
	core, ram, gpu string // prefixes of descriptions
	rate           int64
}{
	{core: "E2", rate: 24_000_000},
	{ram: "E2", rate: 3_000_000},
	{core: "G2", rate: 26_000_000},
	{ram: "G2", rate: 3_100_000},
	{core: "A2", rate: 33_000_000},
	{ram: "A2", rate: 4_400_000},
	{core: "A3", rate: 27_000_000},
	{ram: "A3", rate: 2_600_000},
	{gpu: "Nvidia L4", rate: 570_000_000},
	{gpu: "Nvidia Tesla A100", rate: 3_100_000_000},
	{gpu: "Nvidia H100 80GB", rate: 9_900_000_000},
	{core: "A3Ultra", rate: 28_000_000},
	{ram: "A3Ultra", rate: 2_700_000},
	{gpu: "H200 141GB", rate: 8_900_000_000},
	{core: "A3Plus", rate: 1_000_000},
	{ram: "G2 Custom", rate: 1_000_000},
	{gpu: "Nvidia Tesla A100 80GB", rate: 1_000_000},
	{gpu: "Nvidia H100 80GB Plus", rate: 1_000_000},
	{gpu: "Nvidia L4 Virtual Workstation", rate: 1_000_000},
}

// gceSKUs returns the default price list.
func gceSKUs() []GCESKU {
	var all []GCESKU
	for _, region := range slices.Sorted(maps.Keys(gceZones)) {
		for _, r := range gceRates {
			price := int64(float64(r.rate) * priceFactor(strings.Replace(region, "europe", "eu", 1)))
			var onDemand, spot string
			unit := "h"
			switch {
			case r.core != "":
				onDemand = r.core + " Instance Core"
			case r.ram != "":
				onDemand, unit = r.ram+" Instance Ram", "GiBy.h"
			default:
				onDemand, spot = r.gpu+" GPU", r.gpu+" GPU attached to Spot Preemptible VMs"
			}
			if spot == "" {
				spot = "Spot Preemptible " + onDemand
			}
			in := []string{region}
			all = append(all,
				GCESKU{Description: onDemand + " running in " + region, Usage: "OnDemand", Unit: unit, Regions: in, Nanos: price},
				GCESKU{Description: spot + " running in " + region, Usage: "Preemptible", Unit: unit, Regions: in, Nanos: price * 2 / 5},
				GCESKU{Description: "Commitment v1: " + onDemand + " in " + region + " for 1 Year", Usage: "Commit1Yr", Unit: unit, Regions: in, Nanos: price / 2},
			)
			if flex := flexStartSKU(onDemand); flex != "" {
				all = append(all, GCESKU{Description: flex + " running in " + region, Usage: "OnDemand", Unit: unit, Regions: in, Nanos: price * 3 / 5})
			}
		}
	}
	return all
}

// flexStartSKU returns the description of a part's flex-start price, of which A2 and A3 machines have one; empty for
// others. Public scripts that read Google's list have these forms (November 2026).
func flexStartSKU(onDemand string) string {
	switch {
	case strings.HasPrefix(onDemand, "G2"), strings.HasPrefix(onDemand, "E2"), strings.HasPrefix(onDemand, "Nvidia L4"):
		return ""
	case strings.HasSuffix(onDemand, " GPU"):
		return onDemand + " attached to DWS Defined Duration VMs"
	}
	return "DWS Defined Duration " + strings.Replace(onDemand, " Instance", "", 1)
}

// EditPriceList replaces the price list with the result of edit.
func (g *GCE) EditPriceList(edit func([]GCESKU) []GCESKU) {
	g.withLock(func() { g.skus = edit(g.skus) })
}

// FakeGCEPrice returns the price of a machine type in a region by the default price list, in USD per
// hour; 0 = unknown.
func FakeGCEPrice(region, machineType string, spot bool) float64 {
	m, known := gceMachines[machineType]
	if _, exists := gceZones[region]; !known || !exists {
		return 0
	}
	family, _, _ := strings.Cut(strings.ToUpper(machineType), "-")
	if m.accelerator == gceH200 {
		family = "A3Ultra"
	}
	gpus := map[string]string{"nvidia-l4": "Nvidia L4 GPU", gceA100: "Nvidia Tesla A100 GPU", gceH100: "Nvidia H100 80GB GPU", gceH200: "H200 141GB GPU"}
	sum := 0.0
	for _, sku := range gceSKUs() {
		if sku.Regions[0] != region || sku.Usage != map[bool]string{false: "OnDemand", true: "Preemptible"}[spot] {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(sku.Description, "Spot Preemptible "), " running in ")
		switch strings.TrimSuffix(name, " attached to Spot Preemptible VMs") {
		case family + " Instance Core":
			sum += float64(m.cpus) * float64(sku.Nanos) / 1e9
		case family + " Instance Ram":
			sum += float64(m.memoryMB) / 1024 * float64(sku.Nanos) / 1e9
		case gpus[m.accelerator]:
			sum += float64(m.accelerators) * float64(sku.Nanos) / 1e9
		}
	}
	return sum
}

// listSKUs returns the price list of Compute Engine.
func (g *GCE) listSKUs(r *http.Request) (any, *gceError) {
	if service := path.Base(path.Dir(r.URL.Path)); service != "6F81-5844-456A" {
		return nil, newGCEError(http.StatusNotFound, "notFound", "The service %s was not found", service)
	}
	size := g.pageSize
	if n, err := strconv.Atoi(r.FormValue("pageSize")); err == nil && n > 0 && (size == 0 || n < size) {
		size = n
	}
	page, next, fail := gcePage(r, g.skus, size)
	skus := []map[string]any{}
	for _, s := range page {
		skus = append(skus, s.document())
	}
	return map[string]any{"skus": skus, "nextPageToken": next}, fail
}

// document returns an entry in the format of Cloud Billing, in which 64-bit integers are strings.
func (s GCESKU) document() map[string]any {
	currency := s.Currency
	if currency == "" {
		currency = "USD"
	}
	rate := map[string]any{"startUsageAmount": 0, "unitPrice": map[string]any{"currencyCode": currency, "units": fmt.Sprint(s.Nanos / 1e9), "nanos": s.Nanos % 1e9}}
	return map[string]any{
		"description": s.Description, "serviceRegions": s.Regions, "category": map[string]any{"usageType": s.Usage},
		"pricingInfo": []any{map[string]any{"pricingExpression": map[string]any{"usageUnit": s.Unit, "tieredRates": []any{rate}}}},
	}
}
