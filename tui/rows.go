package tui

import (
	"cmp"
	"slices"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// sortKey is a figure that replicas can be ordered by.
type sortKey int

// The sort keys, in the order that the sort key cycles through.
const (
	byName sortKey = iota
	byState
	byModel
	byGPU
	byPending
	byRunning
	byOutstanding
	byKV
	byHit
	byTokens
	byCost
	byAge
	sortKeys // how many there are
)

// sortWords names the keys on the screen.
var sortWords = [sortKeys]string{"replica", "state", "model", "GPU", "pending", "running", "outstanding", "KV", "hit rate", "tok/s", "cost", "age"}

// sortOrder is a key and whether its usual direction is turned round. Words
// usually rise; figures usually fall, so that what is busy stands on top.
type sortOrder struct {
	key     sortKey
	reverse bool
}

// descending reports whether the greatest figure comes first.
func (o sortOrder) descending() bool { return (o.key >= byPending) != o.reverse }

// pick orders by key; picking the key in use turns it round.
func (o sortOrder) pick(key sortKey) sortOrder {
	return sortOrder{key: key, reverse: key == o.key && !o.reverse}
}

// stateRank orders states by how much they ask for attention.
var stateRank = map[service.ReplicaState]int{
	service.StateFailed: 0, service.StateInterrupted: 1, service.StateNotReady: 2,
	service.StatePending: 3, service.StateProvisioning: 4, service.StateStarting: 5,
	service.StateShuttingDown: 6, service.StateDraining: 7, service.StateDonated: 8, service.StateReady: 9,
}

// figure is the value of a numeric key; known is false where nobody reported it.
func (k sortKey) figure(of row, prices prices) (v float64, known bool) {
	r := of.replica
	switch k {
	case byCost:
		return prices.of(of)
	case byPending:
		return valueOf(r.Pending)
	case byRunning:
		return valueOf(r.Running)
	case byOutstanding:
		return float64(r.Outstanding), true
	case byKV:
		return valueOf(r.KV)
	case byHit:
		return valueOf(r.PrefixHitRate)
	case byTokens:
		return valueOf(r.OutputTokensPerSecond)
	case byAge:
		return valueOf(r.AgeMillis)
	}
	return 0, false
}

// valueOf takes a figure out of its pointer.
func valueOf[T int | int64 | float64](p *T) (float64, bool) {
	if p == nil {
		return 0, false
	}
	return float64(*p), true
}

// compareWords orders two replicas by a key that is a word.
func (k sortKey) compareWords(a, b *telemetry.ReplicaSnapshot) int {
	switch k {
	case byState:
		return cmp.Compare(stateRank[a.State], stateRank[b.State])
	case byModel:
		return compareNatural(a.Model, b.Model)
	case byGPU:
		return compareNatural(a.GPU, b.GPU)
	}
	return compareNatural(a.ID, b.ID)
}

// compare orders two replicas; what is unknown comes last in either direction,
// and ties go by id.
func (o sortOrder) compare(a, b row, prices prices) int {
	var c int
	if o.key >= byPending {
		x, knownX := o.key.figure(a, prices)
		y, knownY := o.key.figure(b, prices)
		if knownX != knownY {
			if knownX {
				return -1
			}
			return 1
		}
		c = cmp.Compare(x, y)
	} else {
		c = o.key.compareWords(a.replica, b.replica)
	}
	if o.descending() {
		c = -c
	}
	if c == 0 {
		c = compareNatural(a.replica.ID, b.replica.ID)
	}
	return c
}

// row is a replica with the region it belongs to.
type row struct {
	region  *telemetry.RegionSnapshot
	replica *telemetry.ReplicaSnapshot
	index   int // of the replica in its region
}

// key names a row across snapshots.
func (r row) key() rowKey { return rowKey{r.region.Name, r.replica.ID} }

// rowKey is what stays the same about a replica.
type rowKey struct {
	region service.Region
	id     string
}

// selectRows lists the replicas that a screen shows, by region, filtered and
// in order; costs are by prices.
func selectRows(regions []*telemetry.RegionSnapshot, focus service.Region, filter string, order sortOrder, prices prices) []row {
	f := parseFilter(filter)
	var rows []row
	for _, region := range focused(regions, focus) {
		first := len(rows)
		for i := range region.Replicas {
			if r := &region.Replicas[i]; len(f) == 0 || f.matches(r.ID, string(region.Name), string(r.State), r.Model, r.GPU, r.Reason) {
				rows = append(rows, row{region, r, i})
			}
		}
		slices.SortStableFunc(rows[first:], func(a, b row) int { return order.compare(a, b, prices) })
	}
	return rows
}
