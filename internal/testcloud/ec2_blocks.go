package testcloud

import (
	"slices"
	"strconv"
	"time"
)

// The published rules of Capacity Blocks
// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeCapacityBlockOfferings.html and
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-using.html, November 2026): a block lasts
// 1 to 14 days, or whole weeks up to 182 days, and has up to 64 instances, which EC2 terminates 30 minutes
// before the end.
const (
	ec2BlockMarket    = "capacity-block"
	ec2BlockDays      = 14
	ec2BlockMaxDays   = 182
	ec2BlockInstances = 64
	ec2BlockShutdown  = 30 * time.Minute
)

// BlockOffering is an offering of a Capacity Block of the emulated AWS.
type BlockOffering struct {
	ID, Zone, Type string
	Count          int
	Starts, Ends   time.Time
	Fee            string // such as 4000.00
	// Expires is when the offering is no longer sold; zero = at its start.
	Expires time.Time
	// PaymentFails makes the state of a bought block payment-failed.
	PaymentFails bool

	sold bool
}

// PutBlockOffering adds an offering of a Capacity Block to a region.
func (a *AWS) PutBlockOffering(region string, o BlockOffering) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.regions[region].blocks = append(a.regions[region].blocks, &o)
}

// BlockPurchases returns the number of Capacity Blocks that were bought in a region.
func (a *AWS) BlockPurchases(region string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, o := range a.regions[region].blocks {
		if o.sold {
			n++
		}
	}
	return n
}

// sells reports whether an offering can be bought now.
func (r *ec2Region) sells(o *BlockOffering) bool {
	until := o.Expires
	if until.IsZero() {
		until = o.Starts
	}
	return !o.sold && r.aws.now().Before(until)
}

type ec2BlockOfferingItem struct {
	ID       string `xml:"capacityBlockOfferingId"`
	Type     string `xml:"instanceType"`
	Zone     string `xml:"availabilityZone"`
	Count    int    `xml:"instanceCount"`
	Start    string `xml:"startDate"`
	End      string `xml:"endDate"`
	Hours    int    `xml:"capacityBlockDurationHours"`
	Fee      string `xml:"upfrontFee"`
	Currency string `xml:"currencyCode"`
	Tenancy  string `xml:"tenancy"`
}

type blockOfferingsAnswer struct {
	Offerings []ec2BlockOfferingItem `xml:"capacityBlockOfferingSet>item"`
	Next      string                 `xml:"nextToken,omitempty"`
}

// ec2Time formats a time as EC2 does.
func ec2Time(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// describeBlockOfferings serves DescribeCapacityBlockOfferings.
func (r *ec2Region) describeBlockOfferings(f awsForm) (any, error) {
	hours, count := f.number("CapacityDurationHours"), f.number("InstanceCount")
	days := hours / 24
	switch {
	case hours < 24 || hours%24 != 0 || days > ec2BlockMaxDays || days > ec2BlockDays && days%7 != 0:
		return nil, badRequest("InvalidParameterValue", "The value %d for CapacityDurationHours is not valid.", hours)
	case f.get("InstanceType") == "" || count < 1 || count > ec2BlockInstances:
		return nil, badRequest("InvalidParameterValue", "InstanceType and an InstanceCount of 1 to %d are required.", ec2BlockInstances)
	}
	from, fromErr := parseEC2Time(f.get("StartDateRange"))
	to, toErr := parseEC2Time(f.get("EndDateRange"))
	if fromErr != nil || toErr != nil {
		return nil, badRequest("InvalidParameterValue", "A date is not valid.")
	}
	items := []ec2BlockOfferingItem{}
	for _, o := range r.blocks {
		length := int(o.Ends.Sub(o.Starts).Hours())
		fits := o.Type == f.get("InstanceType") && o.Count == count && length == hours
		if !fits || !r.sells(o) || o.Starts.Before(from) || !to.IsZero() && o.Ends.After(to) {
			continue
		}
		items = append(items, ec2BlockOfferingItem{
			ID: o.ID, Type: o.Type, Zone: o.Zone, Count: o.Count, Start: ec2Time(o.Starts), End: ec2Time(o.Ends), Hours: length,
			Fee: o.Fee, Currency: "USD", Tenancy: "default",
		})
	}
	part, next := paginate(r.aws, items, f.get("NextToken"), f.get("MaxResults"))
	return blockOfferingsAnswer{part, next}, nil
}

// parseEC2Time parses a date of a request; zero if it is empty.
func parseEC2Time(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	return time.Parse(time.RFC3339, text)
}

type purchaseAnswer struct {
	Reservation ec2ReservationItem `xml:"capacityReservation"`
}

// purchaseBlock serves PurchaseCapacityBlock. Like EC2 it has no client token: each call with an offering that
// is sold buys it. The payment completes later.
func (r *ec2Region) purchaseBlock(f awsForm) (any, error) {
	id := f.get("CapacityBlockOfferingId")
	at := slices.IndexFunc(r.blocks, func(o *BlockOffering) bool { return o.ID == id })
	if at < 0 || !r.sells(r.blocks[at]) {
		return nil, badRequest("InvalidParameterValue", "The Capacity Block offering '%s' does not exist or is no longer available.", id)
	}
	if f.get("InstancePlatform") == "" {
		return nil, badRequest("MissingParameter", "The request must contain the parameter InstancePlatform")
	}
	for _, spec := range f.items("TagSpecification") {
		if spec.get("ResourceType") != "capacity-reservation" {
			return nil, badRequest("InvalidParameterValue", "'%s' is not a valid taggable resource type for this operation.", spec.get("ResourceType"))
		}
	}
	o := r.blocks[at]
	o.sold = true
	c := &ec2Reservation{
		id: r.aws.nextID("cr"), zone: o.Zone, kind: o.Type, count: o.Count, block: true, starts: o.Starts, ends: o.Ends,
		state: "payment-pending", paying: true, tags: f.tagsFor("capacity-reservation"),
	}
	if o.PaymentFails {
		c.failedState = "payment-failed"
	}
	r.reserved = append(r.reserved, c)
	answer := purchaseAnswer{r.reservationItem(c)}
	c.paying = false
	return answer, nil
}

// stateAt returns the state of a reservation: that of a block follows from its payment and the clock.
func (c *ec2Reservation) stateAt(now time.Time) string {
	switch {
	case c.block && c.paying:
		return "payment-pending"
	case c.block && c.failedState != "":
		return c.failedState
	case c.block && now.Before(c.starts):
		return "scheduled"
	case !c.ends.IsZero() && !now.Before(c.ends):
		return "expired"
	case c.block || c.state == "":
		return ec2ReservationActive
	}
	return c.state
}

// checkBlockLaunch rejects a launch whose market does not match its reservation, or into a block that does not
// accept instances now.
func (r *ec2Region) checkBlockLaunch(i *ec2Instance, target string) error {
	at := slices.IndexFunc(r.reserved, func(c *ec2Reservation) bool { return target != "" && c.id == target })
	isBlock := at >= 0 && r.reserved[at].block
	switch {
	case i.market == ec2BlockMarket && !isBlock:
		return badRequest("InvalidParameterValue", "The market type capacity-block requires a Capacity Block reservation as the target.")
	case isBlock && i.market != ec2BlockMarket:
		return badRequest("InvalidParameterValue", "The reservation '%s' is a Capacity Block: the market type must be capacity-block.", target)
	case !isBlock:
		return nil
	}
	c, now := r.reserved[at], r.aws.now()
	if c.stateAt(now) != ec2ReservationActive || !now.Before(c.ends.Add(-ec2BlockShutdown)) {
		return badRequest("InvalidCapacityReservationState", "The Capacity Block '%s' is in the state %s and accepts no instances.", target, c.stateAt(now))
	}
	return nil
}

// endBlocks terminates the instances of blocks that end soon. EC2's reason code is not documented.
func (r *ec2Region) endBlocks() {
	for _, i := range r.instances {
		at := slices.IndexFunc(r.reserved, func(c *ec2Reservation) bool { return c.block && c.id == i.reservation })
		if at >= 0 && !r.aws.now().Before(r.reserved[at].ends.Add(-ec2BlockShutdown)) {
			r.terminate(i, "Server.ScheduledStop", "The Capacity Block ends at "+strconv.Quote(ec2Time(r.reserved[at].ends)))
		}
	}
}
