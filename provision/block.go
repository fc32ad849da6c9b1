package provision

import (
	"context"
	"fmt"
	"time"

	"skyserve/internal/service"
)

// BlockOffering is machines of one type in one zone for a fixed time, which a cloud sells for a price paid in
// advance: an offering of EC2 Capacity Blocks.
type BlockOffering struct {
	ID     string // cb-0123..., which the cloud accepts for a limited time
	Region service.Region
	Zone   string
	Type   string // the instance type, p5.48xlarge
	Count  int    // machines
	Starts time.Time
	Ends   time.Time
	// UpfrontPrice is the price of all machines for the whole time, in Currency (USD).
	UpfrontPrice float64
	Currency     string
}

// MachinePrice returns the price of one machine per hour; 0 for an offering without machines or time.
func (o BlockOffering) MachinePrice() float64 {
	hours := o.Ends.Sub(o.Starts).Hours() * float64(o.Count)
	if hours <= 0 {
		return 0
	}
	return o.UpfrontPrice / hours
}

// BlockQuery selects offerings of blocks.
type BlockQuery struct {
	Type  string
	Count int // machines
	// Days is the length of the block.
	Days int
	// From and To limit the start and the end; zero = unlimited.
	From, To time.Time
}

// BlockMarket is a provider whose cloud sells blocks.
type BlockMarket interface {
	// BlockOfferings returns the offerings in a region, in the cloud's order. Errors include
	// *CredentialsError.
	BlockOfferings(ctx context.Context, region service.Region, q BlockQuery) ([]BlockOffering, error)
	// BuyBlock buys an offering, which is billed at once and cannot be cancelled, and returns the
	// reservation. An offering that was bought before with BuyBlock is not bought again: bought is
	// false then. An offering that is not for sale is a *BlockGoneError. Errors include
	// *CredentialsError.
	BuyBlock(ctx context.Context, region service.Region, id string) (r Reservation, bought bool, err error)
	// BoughtBlock returns the reservation of an offering that was bought with BuyBlock; a *BlockGoneError
	// if none was.
	BoughtBlock(ctx context.Context, region service.Region, id string) (Reservation, error)
}

// BlockGoneError is an offering of a block that is not for sale: unknown, expired, or already sold.
type BlockGoneError struct {
	ID     string
	Region service.Region
	Err    error // the cloud's error; nil without one
}

// Error returns the offering and the cloud's error.
func (e *BlockGoneError) Error() string {
	text := fmt.Sprintf("offering %s is not for sale in %s: unknown, expired or already sold", e.ID, e.Region)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cloud's error.
func (e *BlockGoneError) Unwrap() error { return e.Err }

// Times at the end of machines whose end is known, with their reasons.
const (
	// blockShutdown is how long before a block's end EC2 starts to terminate its machines
	// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-using.html, November 2026).
	blockShutdown = 30 * time.Minute
	// ReplaceBeforeEnd is how long before its end a machine's replacement is launched: loading a large
	// model takes up to 20 minutes, and a first offering may have no capacity.
	ReplaceBeforeEnd = 30 * time.Minute
	// MinTimeToEnd is the minimum time that a new machine must be able to run: with less, it would be
	// replaced as soon as it has loaded its model.
	MinTimeToEnd = time.Hour
	// DrainBeforeEnd is how long before its end a machine receives no more requests, if another one
	// serves: most responses take less.
	DrainBeforeEnd = 5 * time.Minute
	// WarnBeforeEnd is how long before its end a reservation causes a warning: blocks for the next day are
	// often sold out.
	WarnBeforeEnd = 24 * time.Hour
)

// MachinesEnd returns when the cloud terminates the machines of a reservation; zero if it does not. Machines
// in other reservations than blocks outlive them, at the on-demand price.
func (r Reservation) MachinesEnd() time.Time {
	if !r.Block || r.Ends.IsZero() {
		return time.Time{}
	}
	return r.Ends.Add(-blockShutdown)
}

// AcceptsMachines reports whether machines may be launched into a reservation at a time: it is active, and
// they can run for MinTimeToEnd. A zero time skips the second condition.
func (r Reservation) AcceptsMachines(at time.Time) bool {
	end := r.MachinesEnd()
	return r.Active && (end.IsZero() || at.IsZero() || !at.Add(MinTimeToEnd).After(end))
}

// EndsBy reports whether the cloud terminates an offering's machine by a time.
func (o Offering) EndsBy(at time.Time) bool { return !o.Ends.IsZero() && !o.Ends.After(at) }
