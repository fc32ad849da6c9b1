package provision

import (
	"context"
	"slices"

	"skyserve/internal/service"
)

// Price is what a cloud itself says that a machine type costs in a region.
type Price struct {
	Type string `json:"type"`
	// Capacity is on demand or spot. What is reserved is the user's to price.
	Capacity service.CapacityType `json:"capacity"`
	// PerHour is in USD for the whole machine, less its disks; above 0.
	PerHour float64 `json:"per_hour"`
	// From says where the price is from, for people: AWS price list, us-west-2.
	From string `json:"from"`
}

// Pricer is a provider whose cloud tells its prices.
type Pricer interface {
	// Prices are those of the catalogue's types in a region, as far as the cloud tells
	// them; a type that it does not have there has none. Asking again within hours gives
	// the same answer. Beside an error are the prices that could be read; errors include
	// *CredentialsError. They are no reason to stop: list prices stand in.
	Prices(ctx context.Context, region service.Region) ([]Price, error)
}

// maxPrice bounds what an hour of a machine of the catalogue may cost, in USD: ten times
// the dearest. What is above it was misread.
const maxPrice = 1000

// IsPrice says whether a figure can be the price of an hour of a machine, in USD.
func IsPrice(usd float64) bool { return usd > 0 && usd <= maxPrice }

// Priced is offerings at what their cloud says of their types; the others keep their
// prices. What is reserved costs what is on demand until service.yaml says otherwise.
func (os Offerings) Priced(prices []Price) Offerings {
	priced := slices.Clone(os)
	for i, o := range priced {
		capacity := o.Capacity
		if capacity == service.CapacityReserved {
			capacity = service.CapacityOnDemand
		}
		at := slices.IndexFunc(prices, func(p Price) bool { return p.Type == o.Type && p.Capacity == capacity })
		if at >= 0 {
			priced[i].PricePerHour, priced[i].PriceFrom = prices[at].PerHour, prices[at].From
		}
	}
	return priced
}

// Prices asks the region's cloud; nothing where it does not tell prices.
func (p Places) Prices(ctx context.Context, region service.Region) ([]Price, error) {
	provider, err := p.of(region)
	if err != nil {
		return nil, err
	}
	if pricer, ok := provider.(Pricer); ok {
		return pricer.Prices(ctx, region)
	}
	return nil, nil
}
