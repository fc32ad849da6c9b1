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
	// Region is the service's region nearest to the client; empty = unknown.
	Region service.Region
	// RTT contains the configured round trip times from the client to regions.
	RTT map[service.Region]time.Duration
}

// Distances are the known distances between regions.
type Distances struct {
	Routing provision.DNSRouting
	// RTT contains the configured round trip times between two places, by "us-eu" or "eu-us".
	RTT map[string]time.Duration
}

// Choose returns the records for a client: those of the nearest region, in their order. It never returns
// withdrawn records. It returns unhealthy records only when all records are unhealthy, because an address
// that may work is better than none. If several regions are equally near, or the client's location is
// unknown, it selects the first region. These are the rules of Route 53 for latency and geoproximity
// records.
func Choose(all []Candidate, d Distances, c ClientLocation) []Candidate {
	eligible := slices.DeleteFunc(slices.Clone(all), func(r Candidate) bool { return r.Withdrawn })
	if healthy := slices.DeleteFunc(slices.Clone(eligible), func(r Candidate) bool { return !r.Healthy }); len(healthy) > 0 {
		eligible = healthy
	}
	if len(eligible) == 0 {
		return nil
	}
	nearest := slices.MinFunc(eligible, func(a, b Candidate) int { return cmp.Compare(d.distanceTo(c, a.Region), d.distanceTo(c, b.Region)) }).Region
	return slices.DeleteFunc(eligible, func(r Candidate) bool { return r.Region != nearest })
}

// distanceTo returns the distance of a region from a client, in seconds (latency) or kilometres (geo);
// infinite if it is unknown.
func (d Distances) distanceTo(c ClientLocation, region service.Region) float64 {
	if d.Routing == provision.RoutingGeo {
		return distanceKm(c.Region, region)
	}
	if rtt, ok := c.RTT[region]; ok {
		return rtt.Seconds()
	}
	if c.Region == region && region != "" {
		return 0
	}
	for _, pair := range []string{c.Region.ShortName() + "-" + region.ShortName(), region.ShortName() + "-" + c.Region.ShortName()} {
		if rtt, ok := d.RTT[pair]; ok {
			return rtt.Seconds()
		}
	}
	return distanceKm(c.Region, region) / kilometresASecond
}

// kilometresASecond converts a distance to a round trip time. Light in glass travels 200,000 km per second,
// a round trip is twice the distance, and cables are 1.5 times as long as the direct distance.
const kilometresASecond = 200_000 / 2 / 1.5

// distanceKm returns the kilometres between two regions; infinite if a location is unknown.
func distanceKm(a, b service.Region) float64 {
	if a == b && a != "" {
		return 0
	}
	from, fromOK := locateRegion(a)
	to, toOK := locateRegion(b)
	if !fromOK || !toOK {
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

// networksOf converts the client networks of service.yaml, the longest prefix first.
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

// locate returns the location of the smallest configured network that contains the whole prefix; empty if no
// network does.
func (all networks) locate(p netip.Prefix) ClientLocation {
	for _, n := range all {
		if n.prefix.Bits() <= p.Bits() && n.prefix.Contains(p.Addr()) {
			return n.client
		}
	}
	return ClientLocation{}
}
