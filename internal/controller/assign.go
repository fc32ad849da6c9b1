package controller

import (
	"cmp"
	"hash/fnv"
	"slices"
	"time"

	"skyserve/internal/service"
)

// AssignInput is the input of Assign.
type AssignInput struct {
	Balancers []BalancerHealth
	Replicas  []service.ControlledReplica
	// RTT is the round trip between two regions, with keys such as "us-eu" (in either order).
	RTT map[string]time.Duration
	// Owners is the current assignment, by replica; nil = none.
	Owners map[string]string
}

// BalancerHealth is a balancer with its health.
type BalancerHealth struct {
	ID     string
	Region service.Region
	Alive  bool
	// New means that it has never responded: it may still be booting.
	New bool
}

// Assign returns the balancer of each replica, by ID; nil when no balancer is alive, in which case
// nothing should change. A replica is assigned to its primary balancer while that balancer is alive,
// otherwise to the nearest live balancer (SkyLB section 4, failure recovery). The replica moves
// back when its primary balancer recovers. A new balancer gets no replica of a live balancer until the
// new one has responded. Among balancers at equal or unknown distance, those in the same cloud are
// preferred, because the cloud's network connects them. Among equally near balancers each replica has
// its own order of preference. Therefore the replicas of a dead balancer are spread over its
// neighbours, and no replica moves unnecessarily.
func Assign(in AssignInput) map[string]string {
	byID := map[string]BalancerHealth{}
	var alive []BalancerHealth
	for _, b := range in.Balancers {
		byID[b.ID] = b
		if b.Alive {
			alive = append(alive, b)
		}
	}
	if len(alive) == 0 {
		return nil
	}
	if responding := slices.DeleteFunc(slices.Clone(alive), func(b BalancerHealth) bool { return b.New }); len(responding) > 0 {
		alive = responding
	}
	owners := make(map[string]string, len(in.Replicas))
	for _, r := range in.Replicas {
		primary, owner := byID[r.Primary], byID[in.Owners[r.ID]]
		if mayBeBooting := primary.New && owner.Alive && owner.ID != primary.ID; primary.Alive && !mayBeBooting {
			owners[r.ID] = primary.ID
			continue
		}
		owners[r.ID] = in.nearest(r, cmp.Or(byID[r.Primary].Region, r.Region), alive)
	}
	return owners
}

// nearest returns the live balancer that adopts a replica.
func (in AssignInput) nearest(r service.ControlledReplica, from service.Region, alive []BalancerHealth) string {
	best := slices.MinFunc(alive, func(a, b BalancerHealth) int {
		return cmp.Or(
			cmp.Compare(in.distance(from, a.Region), in.distance(from, b.Region)),
			cmp.Compare(cloudDistance(from, a.Region), cloudDistance(from, b.Region)),
			cmp.Compare(affinity(r.ID, b.ID), affinity(r.ID, a.ID)),
			cmp.Compare(a.ID, b.ID),
		)
	})
	return best.ID
}

// unknownDistance is the distance between regions without a known round trip.
const unknownDistance = time.Duration(1<<63 - 1)

// distance returns the round trip between two regions; 0 within one.
func (in AssignInput) distance(a, b service.Region) time.Duration {
	if a == b {
		return 0
	}
	for _, pair := range []string{a.ShortName() + "-" + b.ShortName(), b.ShortName() + "-" + a.ShortName()} {
		if d, stated := in.RTT[pair]; stated {
			return d
		}
	}
	return unknownDistance
}

// cloudDistance returns 1 for regions in different clouds, otherwise 0.
func cloudDistance(a, b service.Region) int {
	if a.Cloud() != b.Cloud() {
		return 1
	}
	return 0
}

// affinity returns the preference of a replica for a balancer (highest random weight).
func affinity(replica, balancer string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(replica + "\x00" + balancer))
	return mix(h.Sum64())
}

// mix is the finalizer of MurmurHash3. It distributes the bits of FNV, whose high bits barely depend
// on the last byte.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
