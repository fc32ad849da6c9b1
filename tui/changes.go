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
	listedBefore, listedAfter := listings(before), listings(after)
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
				c := change{region: r.Name, replica: rep.ID, from: from, to: rep.State, reason: reasonOf(rep)}
				if at := listedBefore[home(r, rep)]; !was && len(at) > 0 {
					c.movedFrom = at[0]
				}
				changes = append(changes, c)
			}
		}
	}
	for i := range before.Regions {
		for k := range before.Regions[i].Replicas {
			if r := &before.Regions[i]; len(listedAfter[home(r, &r.Replicas[k])]) > 0 {
				delete(old, rowKey{r.Name, r.Replicas[k].ID}) // it only moved to another balancer
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

// home identifies a replica by the region where it runs, and its name.
func home(r *telemetry.RegionSnapshot, rep *telemetry.ReplicaSnapshot) rowKey {
	return rowKey{cmp.Or(rep.Region, r.Name), rep.ID}
}

// listings returns the regions whose balancers list each replica. They are several for a moment while a replica moves to
// the balancer of another region, or back.
func listings(s *telemetry.Snapshot) map[rowKey][]service.Region {
	at := map[rowKey][]service.Region{}
	for i := range s.Regions {
		r := &s.Regions[i]
		for k := range r.Replicas {
			key := home(r, &r.Replicas[k])
			at[key] = append(at[key], r.Name)
		}
	}
	return at
}

// describe describes the change without its reason.
func (c change) describe(g glyphs) string {
	switch {
	case c.movedFrom != "":
		return c.replica + " moved from " + c.movedFrom.ShortName() + " to " + c.region.ShortName() + ", " + string(c.to)
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
