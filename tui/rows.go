package tui

import (
	"cmp"
	"slices"
	"strings"

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
	byAge
	sortKeys // how many there are
)

// sortWords names the keys on the screen.
var sortWords = [sortKeys]string{"replica", "state", "model", "GPU", "pending", "running", "outstanding", "KV", "hit rate", "tok/s", "age"}

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
func (k sortKey) figure(r *telemetry.ReplicaSnapshot) (v float64, known bool) {
	switch k {
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
func (o sortOrder) compare(a, b *telemetry.ReplicaSnapshot) int {
	var c int
	if o.key >= byPending {
		x, knownX := o.key.figure(a)
		y, knownY := o.key.figure(b)
		if knownX != knownY {
			if knownX {
				return -1
			}
			return 1
		}
		c = cmp.Compare(x, y)
	} else {
		c = o.key.compareWords(a, b)
	}
	if o.descending() {
		c = -c
	}
	if c == 0 {
		c = compareNatural(a.ID, b.ID)
	}
	return c
}

// row is a replica with the region it belongs to.
type row struct {
	region  *telemetry.RegionSnapshot
	replica *telemetry.ReplicaSnapshot
}

// key names a row across snapshots.
func (r row) key() rowKey { return rowKey{r.region.Name, r.replica.ID} }

// rowKey is what stays the same about a replica.
type rowKey struct {
	region service.Region
	id     string
}

// selectRows lists the replicas that a screen shows, by region, filtered and
// in order.
func selectRows(regions []*telemetry.RegionSnapshot, focus service.Region, filter string, order sortOrder) []row {
	words := strings.Fields(strings.ToLower(filter))
	var rows []row
	for _, region := range focused(regions, focus) {
		first := len(rows)
		for i := range region.Replicas {
			if matches(region.Name, &region.Replicas[i], words) {
				rows = append(rows, row{region, &region.Replicas[i]})
			}
		}
		slices.SortStableFunc(rows[first:], func(a, b row) int { return order.compare(a.replica, b.replica) })
	}
	return rows
}

// matches reports whether every word occurs in what the screen says about a
// replica.
func matches(region service.Region, r *telemetry.ReplicaSnapshot, words []string) bool {
	for _, w := range words {
		if !containsFold(r.ID, w) && !containsFold(string(region), w) && !containsFold(string(r.State), w) &&
			!containsFold(r.Model, w) && !containsFold(r.GPU, w) && !containsFold(r.Reason, w) {
			return false
		}
	}
	return true
}

// containsFold looks for a word in lower case, whatever the case of s.
func containsFold(s, word string) bool { return strings.Contains(strings.ToLower(s), word) }
