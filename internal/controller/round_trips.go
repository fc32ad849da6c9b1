package controller

import (
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// roundTrips returns the round-trip times between regions that balancers measured. If a pair was measured several
// times, the shortest time counts. The snapshot's own balancer has no round-trip time. Neither has a balancer that has
// never reported; its state is unreachable.
func roundTrips(snapshots []*telemetry.Snapshot) map[plan.RegionPair]time.Duration {
	out := map[plan.RegionPair]time.Duration{}
	for _, s := range snapshots {
		var own service.Region
		for _, region := range s.Regions {
			for _, b := range region.Balancers {
				if b.RTTMillis == nil && b.State != service.StateUnreachable {
					own = region.Name
				}
			}
		}
		for _, region := range s.Regions {
			for _, b := range region.Balancers {
				if b.RTTMillis == nil || own == "" || region.Name == own {
					continue
				}
				pair, rtt := plan.NewRegionPair(own, region.Name), time.Duration(*b.RTTMillis*float64(time.Millisecond))
				if old, known := out[pair]; !known || rtt < old {
					out[pair] = rtt
				}
			}
		}
	}
	return out
}
