package tui

import (
	"cmp"
	"slices"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// sortKey is a column that replicas can be sorted by.
type sortKey int

// The sort keys, in the order in which the key z selects them.
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
	sortKeys // the number of sort keys
)

// sortWords are the names of the sort keys in the help.
var sortWords = [sortKeys]string{"replica", "state", "model", "GPU", "pending", "running", "outstanding", "KV", "hit rate", "tok/s", "cost", "time since the last report"}

// sortOrder is a sort key and whether its default direction is reversed. Text sorts
// ascending by default, numbers descending, so that the busiest replicas come first.
type sortOrder struct {
	key     sortKey
	reverse bool
}

// descending reports whether the greatest value comes first.
func (o sortOrder) descending() bool { return (o.key >= byPending) != o.reverse }

// pick sorts by key; picking the current key reverses its direction.
func (o sortOrder) pick(key sortKey) sortOrder {
	return sortOrder{key: key, reverse: key == o.key && !o.reverse}
}

// stateRank orders states by severity, most severe first.
var stateRank = map[service.ReplicaState]int{
	service.StateFailed: 0, service.StateInterrupted: 1, service.StateNotReady: 2,
	service.StatePending: 3, service.StateProvisioning: 4, service.StateStarting: 5,
	service.StateShuttingDown: 6, service.StateDraining: 7, service.StateDonated: 8, service.StateReady: 9,
}

// number returns the value of a numeric key; known is false if it was not reported.
func (k sortKey) number(of row, prices prices) (v float64, known bool) {
	r := of.replica
	switch k {
	case byCost:
		return prices.priceOf(of)
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

// valueOf converts an optional number; known is false for nil.
func valueOf[T int | int64 | float64](p *T) (v float64, known bool) {
	if p == nil {
		return 0, false
	}
	return float64(*p), true
}

// compareWords compares two replicas by a text key.
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

// compare compares two replicas. Unknown values come last in either direction, and ties
// are broken by id.
func (o sortOrder) compare(a, b row, prices prices) int {
	var c int
	if o.key >= byPending {
		x, knownX := o.key.number(a, prices)
		y, knownY := o.key.number(b, prices)
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

// row is a replica and its region.
type row struct {
	region  *telemetry.RegionSnapshot
	replica *telemetry.ReplicaSnapshot
	index   int // of the replica in its region
}

// key identifies a row across snapshots.
func (r row) key() rowKey { return rowKey{r.region.Name, r.replica.ID} }

// rowKey identifies a replica across snapshots.
type rowKey struct {
	region service.Region
	id     string
}

// selectRows returns the replicas to show, by region, filtered and sorted.
func selectRows(regions []*telemetry.RegionSnapshot, focus service.Region, filter string, order sortOrder, prices prices) []row {
	f := parseFilter(filter)
	var rows []row
	for _, region := range focused(regions, focus) {
		first := len(rows)
		for i := range region.Replicas {
			if r := &region.Replicas[i]; len(f) == 0 || f.matches(r.ID, string(region.Name), string(r.State), r.Model, r.GPU, reasonOf(r)) {
				rows = append(rows, row{region, r, i})
			}
		}
		slices.SortStableFunc(rows[first:], func(a, b row) int { return order.compare(a, b, prices) })
	}
	return rows
}
