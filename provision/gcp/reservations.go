package gcp

import (
	"context"
	"path"
	"strings"
	"time"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
	"skyserve/provision"
)

var _ provision.ReservationReader = (*Provider)(nil)

// Reservations implements provision.ReservationReader. A name does not contain its zone, so each zone of the
// region is read.
func (p *Provider) Reservations(ctx context.Context, region service.Region, ids []string) ([]provision.Reservation, error) {
	zones, err := p.listZones(ctx, region.ShortName())
	if err != nil {
		return nil, err
	}
	client, project, err := newClient(ctx, p, compute.NewReservationsRESTClient)
	if err != nil {
		return nil, wrapError(err, "reading reservations")
	}
	var found []provision.Reservation
	for _, id := range ids {
		owner, name := splitReservation(id, project)
		for _, zone := range zones {
			r, err := client.Get(ctx, &computepb.GetReservationRequest{Project: owner, Zone: zone, Reservation: name})
			if isMissing(err) {
				continue
			}
			if err != nil {
				return found, wrapError(err, "reading reservation %s in %s", id, zone)
			}
			found = append(found, reservationOf(id, owner, zone, region, r))
		}
	}
	return found, nil
}

// splitReservation returns the project and the name of a reservation: projects/P/reservations/R, or the name
// of one of the service's project.
func splitReservation(id, project string) (owner, name string) {
	if parts := strings.Split(id, "/"); len(parts) == 4 {
		return parts[1], parts[3]
	}
	return project, id
}

func reservationOf(id, owner, zone string, region service.Region, r *computepb.Reservation) provision.Reservation {
	held := r.GetSpecificReservation()
	out := provision.Reservation{
		ID: id, Region: region, Zone: zone, Owner: owner, Type: path.Base(held.GetInstanceProperties().GetMachineType()),
		State: r.GetStatus(), Active: r.GetStatus() == computepb.Reservation_READY.String(),
		Pending:   r.GetStatus() == computepb.Reservation_CREATING.String(),
		LocalSSDs: attachedSSDs(held.GetInstanceProperties()),
		Total:     int(held.GetCount()), Free: max(0, int(held.GetCount()-held.GetInUseCount())),
	}
	if ends, err := time.Parse(time.RFC3339, r.GetDeleteAtTime()); err == nil {
		out.Ends = ends
	}
	return out
}

// attachedSSDs returns the number of local SSDs that machines of a reservation must have attached.
func attachedSSDs(p *computepb.AllocationSpecificSKUAllocationReservedInstanceProperties) int {
	return max(0, len(p.GetLocalSsds())-catalogue.BundledLocalSSDs(path.Base(p.GetMachineType())))
}
