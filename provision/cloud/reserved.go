package cloud

import (
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// commitment is one entry of regions[].reserved.
type commitment struct {
	region service.Region
	entry  service.Reservation
	unused int    // the number of its machines that no replica uses
	zone   string // of a reservation with an id, as are the fields below
	block  bool
	ends   time.Time // of its machines; zero = unlimited
	// localSSDs is the number of attached local SSDs, which those of its machines must equal.
	localSSDs int
}

// commitments are the entries of all regions, in the order of the file.
type commitments []*commitment

// newCommitments returns the entries of a service, less the machines that use them. A machine uses an entry
// of its type, preferably one of the same price, because two entries of one type may have different prices.
func newCommitments(spec *service.Spec, have []provision.Object) commitments {
	var all commitments
	for _, r := range spec.Regions {
		for _, held := range r.Reserved {
			all = append(all, &commitment{region: r.Name, entry: held, unused: held.Count})
		}
	}
	var others []provision.Object
	for _, o := range have {
		if o.TerminatedReason != "" || o.Offering == nil || o.Offering.Capacity != service.CapacityReserved {
			continue
		}
		at := slices.IndexFunc(all, func(c *commitment) bool {
			return c.unused > 0 && c.fits(o.Region, *o.Offering) && c.entry.Price == o.Offering.PricePerHour
		})
		if at < 0 {
			others = append(others, o)
			continue
		}
		all[at].unused--
	}
	for _, o := range others {
		all.use(o.Region, *o.Offering)
	}
	return all
}

// fits reports whether a reserved offering can use the entry.
func (c *commitment) fits(region service.Region, o provision.Offering) bool {
	return c.region == region && c.entry.Type == o.Type && c.entry.ID == o.Reservation
}

// unusedFor returns the first unused entry for a reserved offering; nil without one.
func (cs commitments) unusedFor(region service.Region, o provision.Offering) *commitment {
	for _, c := range cs {
		if c.unused > 0 && c.fits(region, o) {
			return c
		}
	}
	return nil
}

// use counts one more machine of a reserved offering.
func (cs commitments) use(region service.Region, o provision.Offering) {
	if c := cs.unusedFor(region, o); c != nil {
		c.unused--
	}
}
