package plan

import (
	"slices"
	"time"

	"skyserve/internal/service"
)

// ReservationFact is what a cloud reports about a reservation that the service names by id.
type ReservationFact struct {
	Region service.Region
	ID     string
	// State is the cloud's word; only an Active one can be used.
	State  string
	Active bool
	// Ends is the end of the reservation, MachinesEnd the time at which the cloud terminates its machines;
	// zero = none. Machines without such a time are billed on demand after Ends.
	Ends, MachinesEnd time.Time
}

// reservedCount returns the number of machines of a commitment that the plan can use until its horizon: none of
// a reservation that is not active, or whose machines end before. Without a fact, all can be used.
func (r *review) reservedCount(region service.Region, held service.Reservation) int {
	f := r.factOf(region, held)
	if f != nil && (!f.Active || r.endsInHorizon(f.MachinesEnd)) {
		return 0
	}
	return held.Count
}

// factOf returns the fact about a commitment; nil without one.
func (r *review) factOf(region service.Region, held service.Reservation) *ReservationFact {
	at := slices.IndexFunc(r.o.Reservations, func(f ReservationFact) bool { return held.ID != "" && f.Region == region && f.ID == held.ID })
	if at < 0 {
		return nil
	}
	return &r.o.Reservations[at]
}

func (r *review) endsInHorizon(at time.Time) bool {
	return !at.IsZero() && !at.After(r.at.Add(r.o.Horizon))
}

// reportEnds reports the commitments of a region that are not active, or end within the horizon.
func (r *review) reportEnds(region *service.RegionSpec) {
	for _, held := range region.Reserved {
		f := r.factOf(region.Name, held)
		switch {
		case f == nil:
		case !f.Active:
			r.assume("%s: reservation %s is not active (%s): its %d x %s are not planned for", region.Name, held.ID, f.State, held.Count, held.Type)
		case r.endsInHorizon(f.MachinesEnd):
			r.assume("%s: the %d x %s of reservation %s end at %s: they are not planned for", region.Name, held.Count, held.Type, held.ID, f.MachinesEnd.UTC().Format(time.RFC3339))
		case r.endsInHorizon(f.Ends):
			r.assume("%s: reservation %s ends at %s: its machines are then billed on demand", region.Name, held.ID, f.Ends.UTC().Format(time.RFC3339))
		}
	}
}
