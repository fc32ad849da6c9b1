package controller

import (
	"cmp"
	"hash/fnv"
	"slices"
	"time"

	"skyserve/internal/service"
)

// Fleet is what Assign decides upon.
type Fleet struct {
	Balancers []Balancer
	Replicas  []service.ControlledReplica
	// RTT is the round trip between two places, keyed "us-eu" (either order).
	RTT map[string]time.Duration
}

// Balancer is a balancer as the controller sees it.
type Balancer struct {
	ID     string
	Region service.Region
	Alive  bool
}

// Assign says which balancer owns each replica, by id; nil when no balancer
// lives, in which case nothing should change. A replica is its home's while that
// one lives, and else the nearest live balancer's (SkyLB section 4, failure recovery), so it
// comes back when its home does. Of balancers whose distance nobody stated those of its
// own cloud come first, where networks reach. Of equally near ones each replica has a
// favourite of its own: the replicas of a dead balancer spread over its
// neighbours, and none moves that does not have to.
func Assign(f Fleet) map[string]string {
	home := map[string]Balancer{}
	var alive []Balancer
	for _, b := range f.Balancers {
		home[b.ID] = b
		if b.Alive {
			alive = append(alive, b)
		}
	}
	if len(alive) == 0 {
		return nil
	}
	owners := make(map[string]string, len(f.Replicas))
	for _, r := range f.Replicas {
		if h, known := home[r.Home]; known && h.Alive {
			owners[r.ID] = h.ID
			continue
		}
		owners[r.ID] = f.nearest(r, cmp.Or(home[r.Home].Region, r.Region), alive)
	}
	return owners
}

// nearest picks the adopter of a replica among live balancers.
func (f Fleet) nearest(r service.ControlledReplica, from service.Region, alive []Balancer) string {
	best := slices.MinFunc(alive, func(a, b Balancer) int {
		return cmp.Or(
			cmp.Compare(f.distance(from, a.Region), f.distance(from, b.Region)),
			cmp.Compare(abroad(from, a.Region), abroad(from, b.Region)),
			cmp.Compare(affinity(r.ID, b.ID), affinity(r.ID, a.ID)),
			cmp.Compare(a.ID, b.ID),
		)
	})
	return best.ID
}

// farthest is the distance of a place whose round trip nobody stated.
const farthest = time.Duration(1<<63 - 1)

// distance is the round trip between two regions; 0 within one.
func (f Fleet) distance(a, b service.Region) time.Duration {
	if a == b {
		return 0
	}
	for _, pair := range []string{a.Place() + "-" + b.Place(), b.Place() + "-" + a.Place()} {
		if d, stated := f.RTT[pair]; stated {
			return d
		}
	}
	return farthest
}

// abroad is 1 where two regions are of different clouds, else 0.
func abroad(a, b service.Region) int {
	if a.Cloud() != b.Cloud() {
		return 1
	}
	return 0
}

// affinity is how much a replica favours a balancer (highest random weight).
func affinity(replica, balancer string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(replica + "\x00" + balancer))
	return mix(h.Sum64())
}

// mix spreads the bits of FNV, whose high ones barely depend on the last byte
// (the finalizer of MurmurHash3).
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
