package dns

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Candidate is a record with its health.
type Candidate struct {
	provision.DNSRecord
	Healthy bool
}

// ClientLocation is the location of a client.
type ClientLocation struct {
	// Region is the service's region that the client is in or next to; empty = unknown.
	Region service.Region
	// RTT is its round trip time to regions, where it is configured.
	RTT map[service.Region]time.Duration
}

// Distances are the known distances between regions.
type Distances struct {
	Routing provision.DNSRouting
	// RTT is the round trip time between two places, keyed "us-eu" (either order).
	RTT map[string]time.Duration
}

// Choose returns the records for a client: those of the region that is best for it, in their order.
// Withdrawn records are never returned. Unhealthy records are returned only when all are unhealthy,
// since an answer that may work is better than none. Among equally good regions, such as for a client
// with an unknown location, the first one is returned. These are the rules of Route 53 for latency and
// geoproximity records.
func Choose(all []Candidate, d Distances, c ClientLocation) []Candidate {
	given := slices.DeleteFunc(slices.Clone(all), func(r Candidate) bool { return r.Withdrawn })
	if healthy := slices.DeleteFunc(slices.Clone(given), func(r Candidate) bool { return !r.Healthy }); len(healthy) > 0 {
		given = healthy
	}
	if len(given) == 0 {
		return nil
	}
	best := slices.MinFunc(given, func(a, b Candidate) int { return cmp.Compare(d.distanceTo(c, a.Region), d.distanceTo(c, b.Region)) }).Region
	return slices.DeleteFunc(given, func(r Candidate) bool { return r.Region != best })
}

// distanceTo returns the distance of a region from a client, in seconds or kilometres; infinite where it is
// unknown.
func (d Distances) distanceTo(c ClientLocation, region service.Region) float64 {
	if d.Routing == provision.RoutingGeo {
		return distanceKm(c.Region, region)
	}
	if rtt, stated := c.RTT[region]; stated {
		return rtt.Seconds()
	}
	if c.Region == region && region != "" {
		return 0
	}
	for _, pair := range []string{c.Region.Place() + "-" + region.Place(), region.Place() + "-" + c.Region.Place()} {
		if rtt, stated := d.RTT[pair]; stated {
			return rtt.Seconds()
		}
	}
	return distanceKm(c.Region, region) / kilometresASecond
}

// kilometresASecond converts a distance to a round trip time: light in glass travels 200,000 km per
// second, there and back, on cables that are half as long again as the direct distance.
const kilometresASecond = 200_000 / 2 / 1.5

// distanceKm returns the kilometres between two regions; infinite where a location is unknown.
func distanceKm(a, b service.Region) float64 {
	if a == b && a != "" {
		return 0
	}
	from, known := locateRegion(a)
	to, also := locateRegion(b)
	if !known || !also {
		return math.Inf(1)
	}
	return kilometres(from, to)
}

// networks maps addresses to locations.
type networks []network

type network struct {
	prefix netip.Prefix
	client ClientLocation
}

// networksOf reads the networks of service.yaml, the narrowest first.
func networksOf(clients []service.DNSClient) (networks, error) {
	var all networks
	for _, c := range clients {
		prefix, err := netip.ParsePrefix(c.Network)
		if err != nil {
			return nil, err
		}
		all = append(all, network{prefix, ClientLocation{Region: c.Region, RTT: c.RTT}})
	}
	slices.SortStableFunc(all, func(a, b network) int { return cmp.Compare(b.prefix.Bits(), a.prefix.Bits()) })
	return all, nil
}

// locate returns the location of the addresses of a prefix: that of the narrowest network that contains
// all of them; empty for others.
func (all networks) locate(p netip.Prefix) ClientLocation {
	for _, n := range all {
		if n.prefix.Bits() <= p.Bits() && n.prefix.Contains(p.Addr()) {
			return n.client
		}
	}
	return ClientLocation{}
}
