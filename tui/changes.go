package tui

import (
	"cmp"
	"slices"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// mostSevere returns the most severe change; of several the first.
func mostSevere(changes []change) (best change, found bool) {
	for _, c := range changes {
		if !found || severity(c) < severity(best) {
			best, found = c, true
		}
	}
	return best, found
}

// findChanges returns the replicas whose state changed between two snapshots, by region and
// name, removed replicas last.
func findChanges(before, after *telemetry.Snapshot) []change {
	if before == nil || after == nil {
		return nil
	}
	old := make(map[rowKey]service.ReplicaState)
	for i := range before.Regions {
		r := &before.Regions[i]
		for k := range r.Replicas {
			old[rowKey{r.Name, r.Replicas[k].ID}] = r.Replicas[k].State
		}
	}
	var changes, gone []change
	for i := range after.Regions {
		r := &after.Regions[i]
		for k := range r.Replicas {
			rep := &r.Replicas[k]
			key := rowKey{r.Name, rep.ID}
			from, was := old[key]
			if was {
				delete(old, key)
			}
			if !was || from != rep.State {
				changes = append(changes, change{region: r.Name, replica: rep.ID, from: from, to: rep.State, reason: reasonOf(rep)})
			}
		}
	}
	for key, from := range old {
		gone = append(gone, change{region: key.region, replica: key.id, from: from})
	}
	for _, list := range [][]change{changes, gone} {
		slices.SortStableFunc(list, func(a, b change) int {
			return cmp.Or(compareNatural(string(a.region), string(b.region)), compareNatural(a.replica, b.replica))
		})
	}
	return append(changes, gone...)
}

// describe describes the change without its reason.
func (c change) describe(g glyphs) string {
	switch {
	case c.from == "":
		return c.replica + " added, " + string(c.to)
	case c.to == "":
		return c.replica + " removed"
	}
	return c.replica + " " + string(c.from) + " " + g.arrow + " " + string(c.to)
}

// stateRole returns the role of the replica's new state.
func (c change) stateRole(g glyphs) role {
	if c.to == "" {
		return roleMuted
	}
	_, r := g.replicaMark(c.to)
	return r
}

// severity ranks changes by severity, most severe first; removed replicas come last.
func severity(c change) int {
	if c.to == "" {
		return len(stateRank)
	}
	return stateRank[c.to]
}
