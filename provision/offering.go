package provision

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
)

// Offering is one way to rent a machine: an instance type (Google: machine type) in a zone, with a capacity
// type.
type Offering struct {
	// Type is the cloud's name: g6.xlarge, g2-standard-4.
	Type   string         `json:"type"`
	Region service.Region `json:"region"`
	// Zone is an availability zone of the region, us-east-1a; empty = the cloud selects one.
	Zone     string               `json:"zone,omitempty"`
	Capacity service.CapacityType `json:"capacity"`
	// GPU and GPUs are the model and number of its GPUs, L4 and 1; empty and 0 for a machine without GPUs.
	GPU  string `json:"gpu,omitempty"`
	GPUs int    `json:"gpus,omitempty"`
	// VCPUs counts against the quotas of some clouds.
	VCPUs int `json:"vcpus"`
	// LocalSSDs is the number of local SSDs to attach, besides those that the type has in any case.
	LocalSSDs int `json:"local_ssds,omitempty"`
	// PricePerHour is in USD for the whole machine with these local SSDs; 0 = unknown.
	PricePerHour float64 `json:"price_per_hour"`
	// PriceSource is the source of the price, for display.
	PriceSource string `json:"price_from,omitempty"`
	// Reservation is the cloud's id of a capacity reservation to launch into; empty = the cloud selects
	// an open one, if the capacity type is reserved.
	Reservation string `json:"reservation,omitempty"`
	// Block is true if the reservation is an EC2 Capacity Block.
	Block bool `json:"block,omitempty"`
	// Ends is when the cloud terminates the machine; zero = unlimited, or unknown before the launch.
	Ends time.Time `json:"ends,omitzero"`
}

// String formats an offering for display: spot g6.xlarge in us-east-1a.
func (o Offering) String() string {
	return fmt.Sprintf("%s %s in %s", o.Capacity, o.Type, cmp.Or(o.Zone, o.Region.ShortName()))
}

// WithLocalSSDs returns the offering with a number of local SSDs and their list price, if its type takes that number.
// The price of a reservation is the user's, and its own local SSDs are attached.
func (o Offering) WithLocalSSDs(n int) Offering {
	if n == 0 || o.Reservation != "" || !catalogue.TakesLocalSSDs(o.Region.Cloud(), o.Type, n) {
		return o
	}
	o.LocalSSDs = n
	if o.PricePerHour > 0 && o.PriceSource != PriceOfUser {
		o.PricePerHour += float64(n) * catalogue.LocalSSDPerHour
		o.PriceSource += ", with local SSDs"
	}
	return o
}

// PriceOfUser is the Offering.PriceSource of a price of service.yaml, which includes everything.
const PriceOfUser = "service.yaml"

// Offerings is a list of offerings, sometimes in the order of launch attempts.
type Offerings []Offering

// WithGPU returns the offerings with these GPUs, in their order.
func (os Offerings) WithGPU(gpu string, count int) Offerings {
	var with Offerings
	for _, o := range os {
		if o.GPU == gpu && o.GPUs == count {
			with = append(with, o)
		}
	}
	return with
}

// SortedByCapacity returns the offerings of some capacity types, those that the argument order contains. They are
// sorted by the position of their capacity type there, then by price with unknown prices last, then by type, zone
// and reservation. The result does not depend on the order of the input.
func (os Offerings) SortedByCapacity(order []service.CapacityType) Offerings {
	var in Offerings
	for _, o := range os {
		if slices.Contains(order, o.Capacity) {
			in = append(in, o)
		}
	}
	slices.SortFunc(in, func(a, b Offering) int {
		return cmp.Or(
			cmp.Compare(slices.Index(order, a.Capacity), slices.Index(order, b.Capacity)),
			comparePrices(a.PricePerHour, b.PricePerHour),
			cmp.Compare(a.Type, b.Type), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Reservation, b.Reservation),
		)
	})
	return in
}

// comparePrices sorts an unknown price after every known one.
func comparePrices(a, b float64) int {
	switch {
	case a == b:
		return 0
	case a == 0:
		return 1
	case b == 0:
		return -1
	}
	return cmp.Compare(a, b)
}

// exhaustedFor is how long an offering without capacity is skipped. Capacity often returns within
// minutes, but each unsuccessful attempt delays a launch by some seconds.
const exhaustedFor = 10 * time.Minute

// ExhaustedOfferings records which offerings had no capacity, so that the next launch skips them. The
// zero value is empty. It is not safe for concurrent use; Apply serializes its own calls.
type ExhaustedOfferings struct {
	// Spot also records each lack of spot capacity in a zone, and remembers it longer than an offering is
	// skipped; nil = not recorded.
	Spot  *SpotHistory
	until map[exhaustedKey]time.Time
}

// exhaustedKey identifies the offerings that one capacity error covers: empty fields match all.
type exhaustedKey struct {
	cloud, region, zone string
	instanceType        string
	gpu                 string
	capacity            service.CapacityType
	reservation         string // the capacity reservation to launch into
}

// Add records a capacity error that occurred at a time.
func (e *ExhaustedOfferings) Add(err *CapacityError, at time.Time) {
	if e.until == nil {
		e.until = map[exhaustedKey]time.Time{}
	}
	e.until[exhaustedKeyFor(err.Offering, err.Scope)] = at.Add(CapacityBackoff.Delay(1, ""))
	if err.Scope == ScopeZone { // a quota is not a lack of capacity in the zone
		e.Spot.Add(err.Offering, at)
	}
}

// Covers reports whether a recorded capacity error that has not expired covers an offering.
func (e *ExhaustedOfferings) Covers(o Offering, at time.Time) bool {
	for _, scope := range []CapacityScope{ScopeZone, ScopeRegion, ScopeQuota, ScopeCloud} {
		if until, ok := e.until[exhaustedKeyFor(o, scope)]; ok && at.Before(until) {
			return true
		}
	}
	return false
}

// exhaustedKeyFor returns the key of a capacity error of an offering with a scope.
func exhaustedKeyFor(o Offering, scope CapacityScope) exhaustedKey {
	k := exhaustedKey{cloud: o.Region.Cloud(), capacity: o.Capacity}
	switch scope {
	case ScopeZone:
		k.region, k.zone, k.instanceType, k.reservation = o.Region.ShortName(), o.Zone, o.Type, o.Reservation
	case ScopeRegion:
		k.region, k.instanceType = o.Region.ShortName(), o.Type
	case ScopeQuota:
		k.region, k.gpu = o.Region.ShortName(), cmp.Or(o.GPU, "none")
	case ScopeCloud:
		k.gpu = cmp.Or(o.GPU, "none")
	}
	return k
}
