package provision

import (
	"context"
	"slices"

	"skyserve/internal/service"
)

// Price is a cloud's published price of a machine type in a region.
type Price struct {
	Type string `json:"type"`
	// Capacity is on demand, spot or flex-start. Clouds publish no price of reserved capacity.
	Capacity service.CapacityType `json:"capacity"`
	// PerHour is in USD for the whole machine without its disks; above 0.
	PerHour float64 `json:"per_hour"`
	// Source is the source of the price, for display: AWS price list, us-west-2.
	Source string `json:"from"`
}

// Pricer is a provider whose cloud publishes its prices.
type Pricer interface {
	// Prices returns the published prices of the catalogue's types in a region; none for a type that is
	// not sold there. Repeated calls within hours return the same prices. With an error it returns the
	// prices that could be read; errors include *CredentialsError. After an error, callers use the
	// built-in list prices.
	Prices(ctx context.Context, region service.Region) ([]Price, error)
}

// maxPrice is the maximum plausible price of a machine, in USD per hour: more than ten times the highest price of
// the catalogue. A higher number is a parsing error.
const maxPrice = 1000

// IsValidPrice reports whether a number is a plausible price of a machine, in USD per hour.
func IsValidPrice(usd float64) bool { return usd > 0 && usd <= maxPrice }

// WithPrices returns the offerings with the published prices of their types. An offering without a published
// price keeps its own. Reserved capacity gets the on-demand price; package cloud then sets that of
// regions[].reserved.
func (os Offerings) WithPrices(prices []Price) Offerings {
	priced := slices.Clone(os)
	for i, o := range priced {
		capacity := o.Capacity
		if capacity == service.CapacityReserved {
			capacity = service.CapacityOnDemand
		}
		at := slices.IndexFunc(prices, func(p Price) bool { return p.Type == o.Type && p.Capacity == capacity })
		if at >= 0 {
			priced[i].PricePerHour, priced[i].PriceSource = prices[at].PerHour, prices[at].Source
		}
	}
	return priced
}

// Prices calls the provider of the region's cloud; none where it publishes no prices.
func (p MultiCloud) Prices(ctx context.Context, region service.Region) ([]Price, error) {
	provider, err := p.provider(region)
	if err != nil {
		return nil, err
	}
	if pricer, ok := provider.(Pricer); ok {
		return pricer.Prices(ctx, region)
	}
	return nil, nil
}
