package aws

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"skyserve/internal/service"
	"skyserve/provision"
)

var _ provision.BlockMarket = (*Provider)(nil)

// tagOffering is the tag of a bought block with the id of the offering that was bought.
const tagOffering = tagPrefix + "offering"

// codesOfGoneOffering are EC2's codes for an offering that it does not sell. EC2 documents no code that is
// specific to this action. These are its codes for unknown and for unusable ids.
var codesOfGoneOffering = map[string]bool{
	"InvalidCapacityBlockOfferingId.NotFound": true, "InvalidCapacityBlockOfferingId.Expired": true, "InvalidParameterValue": true,
}

// BlockOfferings implements provision.BlockMarket.
func (p *Provider) BlockOfferings(ctx context.Context, name service.Region, q provision.BlockQuery) ([]provision.BlockOffering, error) {
	r, err := p.region(name)
	if err != nil {
		return nil, err
	}
	in := &ec2.DescribeCapacityBlockOfferingsInput{
		InstanceType: aws.String(q.Type), InstanceCount: aws.Int32(int32(q.Count)), CapacityDurationHours: aws.Int32(int32(q.Days * 24)),
		StartDateRange: timeOrNil(q.From), EndDateRange: timeOrNil(q.To),
	}
	var found []provision.BlockOffering
	pages := ec2.NewDescribeCapacityBlockOfferingsPaginator(r.ec2, in)
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return found, wrapError(fmt.Sprintf("searching capacity blocks in %s", name), err)
		}
		for _, o := range page.CapacityBlockOfferings {
			b, err := blockOfferingOf(name, o)
			if err != nil {
				return found, err
			}
			found = append(found, b)
		}
	}
	return found, nil
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func blockOfferingOf(name service.Region, o ec2types.CapacityBlockOffering) (provision.BlockOffering, error) {
	price, err := strconv.ParseFloat(aws.ToString(o.UpfrontFee), 64)
	if err != nil || !(price > 0) {
		return provision.BlockOffering{}, fmt.Errorf("reading capacity block %s in %s: upfront fee must be a number above 0, got %q", aws.ToString(o.CapacityBlockOfferingId), name, aws.ToString(o.UpfrontFee))
	}
	return provision.BlockOffering{
		ID: aws.ToString(o.CapacityBlockOfferingId), Region: name, Zone: aws.ToString(o.AvailabilityZone), Type: aws.ToString(o.InstanceType),
		Count: int(aws.ToInt32(o.InstanceCount)), Starts: aws.ToTime(o.StartDate), Ends: aws.ToTime(o.EndDate),
		UpfrontPrice: price, Currency: aws.ToString(o.CurrencyCode),
	}, nil
}

// BuyBlock implements provision.BlockMarket. EC2 accepts no client token for this call. So the block is
// tagged with its offering, the call is never repeated, and after a failure the tag shows whether EC2
// executed it.
func (p *Provider) BuyBlock(ctx context.Context, name service.Region, id string) (v provision.Reservation, bought bool, err error) {
	r, err := p.region(name)
	if err != nil {
		return v, false, err
	}
	if v, found, err := r.blockOfOffering(ctx, id); found || err != nil {
		return v, false, wrapError(fmt.Sprintf("searching a block of offering %s in %s", id, name), err)
	}
	out, err := r.ec2.PurchaseCapacityBlock(ctx, &ec2.PurchaseCapacityBlockInput{
		CapacityBlockOfferingId: aws.String(id), InstancePlatform: ec2types.CapacityReservationInstancePlatformLinuxUnix,
		TagSpecifications: []ec2types.TagSpecification{{
			ResourceType: ec2types.ResourceTypeCapacityReservation, Tags: ec2Tags(map[string]string{tagOffering: id}),
		}},
	}, func(o *ec2.Options) { o.RetryMaxAttempts, o.Retryer = 1, aws.NopRetryer{} })
	switch {
	case err == nil && out.CapacityReservation != nil:
		return reservationOf(r.regionID(), *out.CapacityReservation), true, nil
	case codesOfGoneOffering[codeOf(err)]:
		return v, false, &provision.BlockGoneError{ID: id, Region: name, Err: plainError(err)}
	case credentialsError(err) != nil:
		return v, false, wrapError("", err)
	}
	v, found, listed := r.blockOfOffering(ctx, id)
	switch {
	case found:
		return v, true, nil
	case listed != nil:
		return v, false, fmt.Errorf("buying %s in %s: whether EC2 sold it is unknown; run the command again to find out: %w", id, name, plainError(err))
	}
	return v, false, fmt.Errorf("buying %s in %s: %w", id, name, plainError(err))
}

// BoughtBlock implements provision.BlockMarket.
func (p *Provider) BoughtBlock(ctx context.Context, name service.Region, id string) (v provision.Reservation, err error) {
	r, err := p.region(name)
	if err != nil {
		return v, err
	}
	v, found, err := r.blockOfOffering(ctx, id)
	switch {
	case err != nil:
		return v, wrapError(fmt.Sprintf("searching a block of offering %s in %s", id, name), err)
	case !found:
		return v, &provision.BlockGoneError{ID: id, Region: name}
	}
	return v, nil
}

// blockOfOffering returns the block that was bought as an offering; false without one, or if its payment
// failed.
func (r *region) blockOfOffering(ctx context.Context, id string) (v provision.Reservation, found bool, err error) {
	pages := ec2.NewDescribeCapacityReservationsPaginator(r.ec2, &ec2.DescribeCapacityReservationsInput{
		Filters: []ec2types.Filter{filter("tag:"+tagOffering, id)},
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return v, false, err
		}
		for _, c := range page.CapacityReservations {
			if fromEC2Tags(c.Tags)[tagOffering] == id && c.State != ec2types.CapacityReservationStatePaymentFailed {
				return reservationOf(r.regionID(), c), true, nil
			}
		}
	}
	return v, false, nil
}
