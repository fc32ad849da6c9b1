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

// Candidate is a record with what its checks say of it.
type Candidate struct {
	provision.Record
	Healthy bool
}

// Client is where a question comes from.
type Client struct {
	// Region is the region of the service that it is in or next to; empty = not known.
	Region service.Region
	// RTT is its round trip to regions, where it was stated.
	RTT map[service.Region]time.Duration
}

// Distances is what is known of how far regions are from each other.
type Distances struct {
	Routing provision.Routing
	// RTT is the round trip between two places, keyed "us-eu" (either order).
	RTT map[string]time.Duration
}

// Choose says which records a client is given: those of the one region that is
// best for it, in their order. What is withdrawn is given to nobody. What is not
// healthy is given only where nothing is, to everybody as if all were, since an
// answer that may work is better than none. Of equally good regions, such as for
// a client of which nothing is known, the first counts. These are the rules of
// Route 53 for latency and geoproximity records.
func Choose(all []Candidate, d Distances, c Client) []Candidate {
	given := slices.DeleteFunc(slices.Clone(all), func(r Candidate) bool { return r.Withdrawn })
	if healthy := slices.DeleteFunc(slices.Clone(given), func(r Candidate) bool { return !r.Healthy }); len(healthy) > 0 {
		given = healthy
	}
	if len(given) == 0 {
		return nil
	}
	best := slices.MinFunc(given, func(a, b Candidate) int { return cmp.Compare(d.to(c, a.Region), d.to(c, b.Region)) }).Region
	return slices.DeleteFunc(given, func(r Candidate) bool { return r.Region != best })
}

// to is how far a region is from a client, in seconds or kilometres; infinitely
// where that is not known.
func (d Distances) to(c Client, region service.Region) float64 {
	if d.Routing == provision.RoutingGeo {
		return apart(c.Region, region)
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
	return apart(c.Region, region) / kilometresASecond
}

// kilometresASecond turns a distance into a round trip: light in glass does
// 200,000 km in a second, there and back, on cables that are half as long again
// as the way is.
const kilometresASecond = 200_000 / 2 / 1.5

// apart is the kilometres between two regions; infinitely many where nobody knows
// where they are.
func apart(a, b service.Region) float64 {
	if a == b && a != "" {
		return 0
	}
	from, known := whereIs(a)
	to, also := whereIs(b)
	if !known || !also {
		return math.Inf(1)
	}
	return kilometres(from, to)
}

// networks finds out where an address is.
type networks []network

type network struct {
	prefix netip.Prefix
	client Client
}

// networksOf reads what service.yaml says of networks, the narrowest first.
func networksOf(clients []service.DNSClient) (networks, error) {
	var all networks
	for _, c := range clients {
		prefix, err := netip.ParsePrefix(c.Network)
		if err != nil {
			return nil, err
		}
		all = append(all, network{prefix, Client{Region: c.Region, RTT: c.RTT}})
	}
	slices.SortStableFunc(all, func(a, b network) int { return cmp.Compare(b.prefix.Bits(), a.prefix.Bits()) })
	return all, nil
}

// find is where the addresses of a prefix are: in the narrowest network that holds
// all of them. Nothing is known of others.
func (all networks) find(p netip.Prefix) Client {
	for _, n := range all {
		if n.prefix.Bits() <= p.Bits() && n.prefix.Contains(p.Addr()) {
			return n.client
		}
	}
	return Client{}
}
