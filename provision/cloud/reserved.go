package cloud

import (
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// reservedEntry is one entry of regions[].reserved: a capacity reservation, which the entry names by id, or other
// machines of a type that are paid in advance.
type reservedEntry struct {
	region      service.Region
	reservation service.Reservation
	unused      int // the number of its machines that no replica uses
	// zone and the fields below are those of a reservation that the cloud reports; zero for an entry without an id.
	// block is true for an EC2 Capacity Block. ends is the time at which the cloud terminates its machines; zero =
	// never.
	zone  string
	block bool
	ends  time.Time
	// localSSDs is the number of local SSDs that each of its machines must attach.
	localSSDs int
}

// reservedEntries are the entries of all regions, in the order of service.yaml.
type reservedEntries []*reservedEntry

// newReservedEntries returns the entries of a service, and subtracts the existing machines from their unused ones. A
// machine uses an entry of its type, preferably one with the same price, because two entries of one type may have
// different prices.
func newReservedEntries(spec *service.Spec, have []provision.Object) reservedEntries {
	var all reservedEntries
	for _, r := range spec.Regions {
		for _, entry := range r.Reserved {
			all = append(all, &reservedEntry{region: r.Name, reservation: entry, unused: entry.Count})
		}
	}
	var others []provision.Object
	for _, o := range have {
		if o.TerminatedReason != "" || o.Offering == nil || o.Offering.Capacity != service.CapacityReserved {
			continue
		}
		at := slices.IndexFunc(all, func(e *reservedEntry) bool {
			return e.unused > 0 && e.fits(o.Region, *o.Offering) && e.reservation.Price == o.Offering.PricePerHour
		})
		if at < 0 {
			others = append(others, o)
			continue
		}
		all[at].unused--
	}
	for _, o := range others {
		all.useMachine(o.Region, *o.Offering)
	}
	return all
}

// fits reports whether a machine of an offering's type can use the entry. The capacity type does not matter, because
// reserved offerings are derived from offerings of other capacity types too (withPricesAndReservations).
func (e *reservedEntry) fits(region service.Region, o provision.Offering) bool {
	return e.region == region && e.reservation.Type == o.Type && e.reservation.ID == o.Reservation
}

// unusedFor returns the first entry with unused machines that an offering fits; nil if there is none.
func (es reservedEntries) unusedFor(region service.Region, o provision.Offering) *reservedEntry {
	for _, e := range es {
		if e.unused > 0 && e.fits(region, o) {
			return e
		}
	}
	return nil
}

// useMachine subtracts a machine of a reserved offering from the unused ones.
func (es reservedEntries) useMachine(region service.Region, o provision.Offering) {
	if e := es.unusedFor(region, o); e != nil {
		e.unused--
	}
}
