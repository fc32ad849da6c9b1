package deploy

import (
	"maps"
	"slices"
	"strings"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// coldLines returns a line for each model that scales to zero and has no ready replica: what its
// requests wait for. Several balancers report the same region; the one with the most waiting requests
// has the newest report.
func coldLines(snapshots []*telemetry.Snapshot, regions []RegionStatus) []string {
	waiting := map[string]map[service.Region]int{} // by model
	for _, s := range snapshots {
		for _, r := range s.Regions {
			for _, m := range r.Models {
				if !m.Cold {
					continue
				}
				if waiting[m.Model] == nil {
					waiting[m.Model] = map[service.Region]int{}
				}
				waiting[m.Model][r.Name] = max(waiting[m.Model][r.Name], m.Queued+m.Deferred)
			}
		}
	}
	lines := []string{}
	for _, model := range slices.Sorted(maps.Keys(waiting)) {
		n := 0
		for _, queued := range waiting[model] {
			n += queued
		}
		lines = append(lines, coldLine(model, n, startingOf(model, regions)))
	}
	return lines
}

// emptyLines returns a line for each model that has no replica and gets one only from an operator.
func emptyLines(spec *service.Spec, regions []RegionStatus) (lines []string) {
	_, byHand := spec.ModelsStartingEmpty()
	for _, model := range byHand {
		has := slices.ContainsFunc(regions, func(r RegionStatus) bool {
			return slices.ContainsFunc(r.Replicas, func(m MachineStatus) bool { return m.Model == model })
		})
		if !has {
			lines = append(lines, model+": no replica (replicas.min is 0); add one with 'skyserve replica add', or set autoscale.strategy, so that a request starts one")
		}
	}
	return lines
}

// coldLine describes a model without a ready replica, with n waiting requests.
func coldLine(model string, n int, starting []string) string {
	line := model + ": no ready replica"
	switch {
	case n > 0:
		line += ", " + printable.Count(n, "queued request")
	case len(starting) == 0:
		return line + ", one starts at the first request"
	}
	if len(starting) > 0 {
		line += "; starting " + strings.Join(starting, ", ")
	}
	return line
}

// startingOf returns the IDs of the replicas of a model that are becoming ready.
func startingOf(model string, regions []RegionStatus) (ids []string) {
	for _, r := range regions {
		for _, m := range r.Replicas {
			if m.Model != model {
				continue
			}
			switch m.State {
			case service.StatePending, service.StateProvisioning, service.StateStarting, service.StateNotReady:
				ids = append(ids, m.ID)
			}
		}
	}
	return ids
}
