package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// errUnusableReservations is returned for a plan that launches replicas while a reservation of the service
// cannot be used: they would be billed at another price.
var errUnusableReservations = errors.New("some reservations cannot be used as configured")

// unusable returns the failed checks of reservations.
func (v quotaView) unusable() []provision.CheckResult {
	return slices.DeleteFunc(slices.Clone(v.reservations), func(r provision.CheckResult) bool { return r.OK })
}

// printReservations prints the reservations that cannot be used, or need attention, and the next step for each.
func (v quotaView) printReservations(w io.Writer) {
	for _, r := range v.reservations {
		if r.OK && !r.Warning {
			continue
		}
		fmt.Fprintf(w, "  %s: %s\n", r.Where, r.Message)
		if r.Hint != "" {
			fmt.Fprintf(w, "    %s\n", r.Hint)
		}
	}
	if len(v.unusable()) > 0 {
		fmt.Fprintln(w, "  the replicas use other capacity instead, at the prices above")
	}
}

// findReservations checks the reservations that a service names by id; none without an id.
func (o *doctorOptions) findReservations(ctx context.Context, spec *service.Spec, places provision.MultiCloud) ([]provision.CheckResult, error) {
	named := namedReservations(spec)
	if len(named) == 0 {
		return nil, nil
	}
	var regions []service.Region
	for _, r := range cloud.Regions(spec) {
		if named[r] {
			regions = append(regions, r)
		}
	}
	offers, _, unknown := deploy.PricedOfferings(ctx, places, regions)
	reported := deploy.ReadReservations(ctx, places, spec, named)
	for r, err := range unknown {
		reported.Unknown[r] = err
	}
	have, err := places.List(ctx, spec.Name)
	if err != nil {
		return uncheckedReservations(spec.Name, err), nil
	}
	return cloud.CheckReservations(spec, reported, offers, have, time.Now()), nil
}

// namedReservations returns the regions of a service that name reservations by id.
func namedReservations(spec *service.Spec) map[service.Region]bool {
	named := map[service.Region]bool{}
	for _, r := range spec.Regions {
		if len(cloud.ReservationIDs(r)) > 0 {
			named[r.Name] = true
		}
	}
	return named
}

// readNamedReservations reads the reservations that a service names by id.
func readNamedReservations(ctx context.Context, spec *service.Spec, places provision.MultiCloud) cloud.Reservations {
	return deploy.ReadReservations(ctx, places, spec, namedReservations(spec))
}

// uncheckedReservations is the failed check of a service whose machines cannot be listed.
func uncheckedReservations(name string, err error) []provision.CheckResult {
	return []provision.CheckResult{{Where: name, Message: "reservations: " + err.Error()}}
}
