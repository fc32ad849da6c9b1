package provision

import (
	"context"
	"time"

	"skyserve/internal/service"
)

// Reservation is a capacity reservation that a cloud reports: machines of one type in one zone, paid whether
// used or not.
type Reservation struct {
	// ID is the id by which the service names it: cr-0123..., my-reservation, or projects/P/reservations/R.
	ID     string         `json:"id"`
	Region service.Region `json:"region"`
	Type   string         `json:"type"` // the instance type, p5.48xlarge
	Zone   string         `json:"zone"`
	// State is the state as the cloud names it. Machines can be launched only in an active reservation.
	State  string `json:"state"`
	Active bool   `json:"active"`
	// Pending is true in a state that leads to an active reservation, such as scheduled.
	Pending bool `json:"pending,omitempty"`
	// Block is true for an EC2 Capacity Block: its machines are launched with a market type of their own,
	// and terminated before its end.
	Block bool `json:"block,omitempty"`
	// Total and Free are numbers of machines. Free does not include those in use, by this service or others.
	Total int `json:"total"`
	Free  int `json:"free"`
	// LocalSSDs is the number of local SSDs of each machine, besides those that the type has in any case.
	LocalSSDs int `json:"local_ssds,omitempty"`
	// Starts and Ends limit the reservation; zero = unknown or unlimited.
	Starts time.Time `json:"starts,omitzero"`
	Ends   time.Time `json:"ends,omitzero"`
	// Owner is the account or project that pays for it; empty = unknown.
	Owner string `json:"owner,omitempty"`
}

// ReservationReader is a provider whose cloud reports capacity reservations.
type ReservationReader interface {
	// Reservations returns the reservations of a region with these ids. One that the account cannot see is
	// omitted. Errors include *CredentialsError.
	Reservations(ctx context.Context, region service.Region, ids []string) ([]Reservation, error)
}

// Reservations calls the provider of the region's cloud; none where it reports no reservations.
func (p MultiCloud) Reservations(ctx context.Context, region service.Region, ids []string) ([]Reservation, error) {
	provider, err := p.provider(region)
	if err != nil {
		return nil, err
	}
	if reader, ok := provider.(ReservationReader); ok {
		return reader.Reservations(ctx, region, ids)
	}
	return nil, nil
}
