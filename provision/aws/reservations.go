package aws

import (
	"context"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"skyserve/internal/service"
	"skyserve/provision"
)

var _ provision.ReservationReader = (*Provider)(nil)

// Reservations implements provision.ReservationReader. It lists all reservations of the account and those
// shared with it: EC2 fails the whole request for one unknown id.
func (p *Provider) Reservations(ctx context.Context, name service.Region, ids []string) ([]provision.Reservation, error) {
	r, err := p.region(name)
	if err != nil {
		return nil, err
	}
	var found []provision.Reservation
	pages := ec2.NewDescribeCapacityReservationsPaginator(r.ec2, &ec2.DescribeCapacityReservationsInput{})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, wrapError(fmt.Sprintf("listing the capacity reservations of %s", name), err)
		}
		for _, c := range page.CapacityReservations {
			if slices.Contains(ids, aws.ToString(c.CapacityReservationId)) {
				found = append(found, reservationOf(name, c))
			}
		}
	}
	return found, nil
}

func reservationOf(name service.Region, c ec2types.CapacityReservation) provision.Reservation {
	return provision.Reservation{
		ID: aws.ToString(c.CapacityReservationId), Region: name, Type: aws.ToString(c.InstanceType), Zone: aws.ToString(c.AvailabilityZone),
		State: string(c.State), Active: c.State == ec2types.CapacityReservationStateActive,
		Total: int(aws.ToInt32(c.TotalInstanceCount)), Free: int(aws.ToInt32(c.AvailableInstanceCount)),
		Starts: aws.ToTime(c.StartDate), Ends: aws.ToTime(c.EndDate), Owner: aws.ToString(c.OwnerId),
		Block: c.ReservationType == ec2types.CapacityReservationTypeCapacityBlock, Pending: slices.Contains(pendingStates, c.State),
	}
}

// pendingStates are the states of a reservation that has not started yet: paid, or being paid.
var pendingStates = []ec2types.CapacityReservationState{
	ec2types.CapacityReservationStatePending, ec2types.CapacityReservationStatePaymentPending,
	ec2types.CapacityReservationStateScheduled, ec2types.CapacityReservationStateAssessing, ec2types.CapacityReservationStateDelayed,
}
