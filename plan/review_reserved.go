package plan

import (
	"slices"
	"time"

	"skyserve/internal/service"
)

// ReservationState is what a cloud reports about a reservation that the service names by id.
type ReservationState struct {
	Region service.Region
	ID     string
	// State is the state as the cloud names it. Only an Active reservation can be used.
	State  string
	Active bool
	// Ends is the end of the reservation, MachinesEnd the time at which the cloud terminates its machines;
	// zero = none. Machines without such a time are billed on demand after Ends.
	Ends, MachinesEnd time.Time
}

// reservedCount returns the number of machines of a reservation that the plan can use until the end of its horizon: none
// if the reservation is not active, or if the cloud terminates its machines by then. If the state is unknown, all can be
// used.
func (r *review) reservedCount(region service.Region, reservation service.Reservation) int {
	f := r.reservationState(region, reservation)
	if f != nil && (!f.Active || r.endsInHorizon(f.MachinesEnd)) {
		return 0
	}
	return reservation.Count
}

// reservationState returns the state of a reservation in the cloud; nil if it is unknown.
func (r *review) reservationState(region service.Region, reservation service.Reservation) *ReservationState {
	at := slices.IndexFunc(r.options.Reservations, func(f ReservationState) bool {
		return reservation.ID != "" && f.Region == region && f.ID == reservation.ID
	})
	if at < 0 {
		return nil
	}
	return &r.options.Reservations[at]
}

func (r *review) endsInHorizon(at time.Time) bool {
	return !at.IsZero() && !at.After(r.at.Add(r.options.Horizon))
}

// reportReservationStates reports the reservations of a region that are not active, or end within the horizon.
func (r *review) reportReservationStates(region *service.RegionSpec) {
	for _, reservation := range region.Reserved {
		f := r.reservationState(region.Name, reservation)
		switch {
		case f == nil:
		case !f.Active:
			r.assume("%s: reservation %s is not active (%s): its %d x %s are not planned for", region.Name, reservation.ID, f.State, reservation.Count, reservation.Type)
		case r.endsInHorizon(f.MachinesEnd):
			r.assume("%s: the %d x %s of reservation %s end at %s: they are not planned for", region.Name, reservation.Count, reservation.Type, reservation.ID, f.MachinesEnd.UTC().Format(time.RFC3339))
		case r.endsInHorizon(f.Ends):
			r.assume("%s: reservation %s ends at %s: its machines are then billed on demand", region.Name, reservation.ID, f.Ends.UTC().Format(time.RFC3339))
		}
	}
}
