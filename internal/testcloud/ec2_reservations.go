package testcloud

import (
	"slices"
	"time"
)

// ec2ReservationActive is the state in which a reservation's capacity can be used. The states, and the fields
// of the answer, are those of
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CapacityReservation.html (November 2026).
const ec2ReservationActive = "active"

// Reservation is a capacity reservation of the emulated AWS.
type Reservation struct {
	ID, Zone, Type string
	Count          int
	Open           bool   // any matching instance uses it; false = only instances that request it by id
	State          string // empty = active
	Owner          string // the AWS account that pays for it; empty = AWSAccount
	Starts, Ends   time.Time
	Block          bool // a Capacity Block: its state follows from Starts, Ends and the clock, unless State is set
}

// PutReservation adds a capacity reservation to a region, or replaces the one with its id.
func (a *AWS) PutReservation(region string, v Reservation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.regions[region]
	c := &ec2Reservation{
		id: v.ID, zone: v.Zone, kind: v.Type, count: v.Count, open: v.Open, state: v.State, owner: v.Owner, starts: v.Starts, ends: v.Ends, block: v.Block,
	}
	if v.Block {
		c.failedState = v.State
	}
	r.reserved = append(slices.DeleteFunc(r.reserved, func(o *ec2Reservation) bool { return o.id == v.ID }), c)
}

type ec2ReservationItem struct {
	ID        string `xml:"capacityReservationId"`
	Owner     string `xml:"ownerId"`
	Type      string `xml:"instanceType"`
	Platform  string `xml:"instancePlatform"`
	Zone      string `xml:"availabilityZone"`
	Total     int    `xml:"totalInstanceCount"`
	Available int    `xml:"availableInstanceCount"`
	State     string `xml:"state"`
	Criteria  string `xml:"instanceMatchCriteria"`
	EndType   string `xml:"endDateType"`
	Start     string `xml:"startDate,omitempty"`
	End       string `xml:"endDate,omitempty"`
	Kind      string `xml:"reservationType"`

	Tags []awsTag `xml:"tagSet>item,omitempty"`
}

type reservationsAnswer struct {
	Reservations []ec2ReservationItem `xml:"capacityReservationSet>item"`
	Next         string               `xml:"nextToken,omitempty"`
}

// reservationItem returns a reservation on the wire.
func (r *ec2Region) reservationItem(c *ec2Reservation) ec2ReservationItem {
	item := ec2ReservationItem{
		ID: c.id, Owner: c.owner, Type: c.kind, Platform: "Linux/UNIX", Zone: c.zone, Total: c.count, Available: max(0, c.count-r.reservedCount(c.id)),
		State: c.stateAt(r.aws.now()), Criteria: "targeted", EndType: "unlimited", Kind: "default", Tags: c.tags.xmlTags(),
	}
	if item.Owner == "" {
		item.Owner = AWSAccount
	}
	if c.open {
		item.Criteria = "open"
	}
	if c.block {
		item.Kind = ec2BlockMarket
	}
	if !c.starts.IsZero() {
		item.Start = ec2Time(c.starts)
	}
	if !c.ends.IsZero() {
		item.EndType, item.End = "limited", ec2Time(c.ends)
	}
	return item
}

// describeReservations serves DescribeCapacityReservations: those of the account and those shared with it. One
// unknown id fails the request.
func (r *ec2Region) describeReservations(f awsForm) (any, error) {
	var all []ec2ReservationItem
	ids := f.list("CapacityReservationId")
	for _, c := range r.reserved {
		ok, err := f.matches(c.tags.addTo(attributes{"instance-type": c.kind, "availability-zone": c.zone, "state": c.stateAt(r.aws.now())}))
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, r.reservationItem(c))
		}
	}
	if len(ids) > 0 {
		byID := map[string]ec2ReservationItem{}
		for _, item := range all {
			byID[item.ID] = item
		}
		all = nil
		for _, id := range ids {
			item, known := byID[id]
			if !known {
				return nil, badRequest("InvalidCapacityReservationId.NotFound", "The capacity reservation ID '%s' does not exist", id)
			}
			all = append(all, item)
		}
	}
	part, next := paginate(r.aws, all, f.get("NextToken"), f.get("MaxResults"))
	return reservationsAnswer{part, next}, nil
}
