package deploy

import (
	"context"
	"sync"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// ReadReservations reads the reservations that a service names by id in some regions, concurrently. Failures
// are in Unknown.
func ReadReservations(ctx context.Context, p provision.Provider, spec *service.Spec, regions map[service.Region]bool) cloud.Reservations {
	all := cloud.Reservations{ByRegion: map[service.Region][]provision.Reservation{}, Unknown: map[service.Region]error{}}
	reader, ok := p.(provision.ReservationReader)
	if !ok || spec == nil {
		return all
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, r := range spec.Regions {
		ids := cloud.ReservationIDs(r)
		if len(ids) == 0 || !regions[r.Name] {
			continue
		}
		wg.Go(func() {
			found, err := reader.Reservations(ctx, r.Name, ids)
			mu.Lock()
			defer mu.Unlock()
			if all.ByRegion[r.Name] = found; err != nil {
				all.Unknown[r.Name] = err
			}
		})
	}
	wg.Wait()
	return all
}

// queryReservations reads the reservations of regions. A region that fails has none: its replicas use the
// next offering.
func (dp *Deployer) queryReservations(ctx context.Context, regions []service.Region) {
	due := map[service.Region]bool{}
	for _, r := range regions {
		due[r] = true
	}
	read := ReadReservations(ctx, dp.Provider, dp.Spec, due)
	if dp.reservations.ByRegion == nil {
		dp.reservations = cloud.Reservations{ByRegion: map[service.Region][]provision.Reservation{}, Unknown: map[service.Region]error{}}
	}
	for r := range due {
		delete(dp.reservations.Unknown, r)
		dp.reservations.ByRegion[r] = read.ByRegion[r]
		if err := read.Unknown[r]; err != nil {
			dp.reservations.Unknown[r] = err
		}
	}
}

// CheckReservations checks the reservations that the service names by id, as last read, with the existing
// objects.
func (dp *Deployer) CheckReservations(have []provision.Object) []provision.CheckResult {
	return cloud.CheckReservations(dp.Spec, dp.reservations, dp.offers, have, dp.clock()())
}
