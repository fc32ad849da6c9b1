package tui

import (
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// findChange finds the replica whose state changed between two snapshots; of
// several the one that asks for most attention, then the first by name.
func findChange(before, after *telemetry.Snapshot) (change, bool) {
	if before == nil || after == nil {
		return change{}, false
	}
	old, best, found := states(before), change{}, false
	consider := func(c change) {
		if !found || urgency(c) < urgency(best) {
			best, found = c, true
		}
	}
	for _, r := range selectRows(regionsOf(after), "", "", sortOrder{}) {
		from, to := old[r.key()], r.replica.State
		delete(old, r.key())
		if from != to {
			consider(change{replica: r.replica.ID, from: from, to: to, reason: reasonOf(r.replica)})
		}
	}
	for _, r := range selectRows(regionsOf(before), "", "", sortOrder{}) {
		if from, gone := old[r.key()]; gone {
			consider(change{replica: r.replica.ID, from: from})
		}
	}
	return best, found
}

// urgency orders changes; what is gone comes after all that is there.
func urgency(c change) int {
	if c.to == "" {
		return len(stateRank)
	}
	return stateRank[c.to]
}

// states is the state of every replica.
func states(s *telemetry.Snapshot) map[rowKey]service.ReplicaState {
	m := make(map[rowKey]service.ReplicaState)
	for _, r := range selectRows(regionsOf(s), "", "", sortOrder{}) {
		m[r.key()] = r.replica.State
	}
	return m
}
