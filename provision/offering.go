package provision

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"skyserve/internal/service"
)

// Offering is one way of having a machine: an instance type in a zone, paid for
// in one way (DESIGN's word; a cloud calls it a machine type or a SKU).
type Offering struct {
	// Type is what the cloud calls it: g6.xlarge, g2-standard-4.
	Type   string         `json:"type"`
	Region service.Region `json:"region"`
	// Zone is a zone of the region, us-east-1a; empty = the cloud chooses one.
	Zone     string               `json:"zone,omitempty"`
	Capacity service.CapacityType `json:"capacity"`
	// GPU and GPUs are what it has of them, L4 and 1; empty and 0 for a machine without.
	GPU  string `json:"gpu,omitempty"`
	GPUs int    `json:"gpus,omitempty"`
	// VCPUs is what quotas of some clouds count.
	VCPUs int `json:"vcpus"`
	// PricePerHour is in USD for the whole machine; 0 = not known.
	PricePerHour float64 `json:"price_per_hour"`
	// PriceFrom says where the price is from, for people.
	PriceFrom string `json:"price_from,omitempty"`
	// Reservation is the cloud's id of a capacity reservation to launch into; empty
	// = the cloud matches one that is open, if the capacity type is reserved.
	Reservation string `json:"reservation,omitempty"`
}

// String names an offering for people: spot g6.xlarge in us-east-1a.
func (o Offering) String() string {
	return fmt.Sprintf("%s %s in %s", o.Capacity, o.Type, cmp.Or(o.Zone, o.Region.Place()))
}

// Offerings is what a place offers, or the order in which it is tried.
type Offerings []Offering

// With are the offerings with these GPUs, in their order.
func (os Offerings) With(gpu string, count int) Offerings {
	var with Offerings
	for _, o := range os {
		if o.GPU == gpu && o.GPUs == count {
			with = append(with, o)
		}
	}
	return with
}

// InOrder sorts offerings as an operator asked for them: by the place of their
// capacity type in order (others are left out), then by price, the unknown last,
// then by type and zone. It is stable in nothing but its keys: equal input in any
// order gives equal output.
func (os Offerings) InOrder(order []service.CapacityType) Offerings {
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

// comparePrices puts a price that is not known after every one that is.
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

// exhaustedFor is how long an offering that had no capacity is passed over:
// capacity comes back within minutes, and asking is cheap, but each refusal
// costs a launch some seconds.
const exhaustedFor = 10 * time.Minute

// Exhausted remembers which offerings had no capacity, so that the next launch
// does not ask again at once. The zero value remembers nothing. It is for one
// goroutine; Apply guards its own.
type Exhausted struct {
	until map[exhaustedKey]time.Time
}

// exhaustedKey is what one refusal says of others: fields that are empty stand
// for all.
type exhaustedKey struct {
	cloud, region, zone string
	kind                string // instance type; empty = all
	gpu                 string // of every type with this GPU
	capacity            service.CapacityType
}

// Add remembers a refusal at a time.
func (e *Exhausted) Add(err *CapacityError, at time.Time) {
	if e.until == nil {
		e.until = map[exhaustedKey]time.Time{}
	}
	e.until[keyOf(err.Offering, err.Scope)] = at.Add(exhaustedFor)
}

// Has says whether an offering was refused, by itself or with others, and still counts.
func (e *Exhausted) Has(o Offering, at time.Time) bool {
	for _, scope := range []Scope{ScopeZone, ScopeRegion, ScopeQuota, ScopeCloud} {
		if until, ok := e.until[keyOf(o, scope)]; ok && at.Before(until) {
			return true
		}
	}
	return false
}

// keyOf is what a refusal of an offering at a scope speaks of.
func keyOf(o Offering, scope Scope) exhaustedKey {
	k := exhaustedKey{cloud: o.Region.Cloud(), capacity: o.Capacity}
	switch scope {
	case ScopeZone:
		k.region, k.zone, k.kind = o.Region.Place(), o.Zone, o.Type
	case ScopeRegion:
		k.region, k.kind = o.Region.Place(), o.Type
	case ScopeQuota:
		k.region, k.gpu = o.Region.Place(), cmp.Or(o.GPU, "none")
	case ScopeCloud:
		k.gpu = cmp.Or(o.GPU, "none")
	}
	return k
}
