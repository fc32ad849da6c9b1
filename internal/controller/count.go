package controller

import (
	"cmp"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// CountReplicas counts a snapshot's replicas, sorted by model, region, GPU and capacity type. It
// excludes replicas that no balancer has, and those that are draining, shutting down, interrupted or failed.
// Donated replicas are counted apart, with or without a balancer. Replicas that balancers find in a file or in DNS,
// or that a program attached by the admin API, do not count: whoever lists or attaches them decides how many there are.
// An adopted replica counts in the region where it runs, and once while it moves between two balancers.
func CountReplicas(s *telemetry.Snapshot) []plan.ReplicaCount {
	type identity struct {
		region service.Region
		id     string
	}
	counted := map[identity]bool{}
	index := map[plan.ReplicaCount]int{}
	out := []plan.ReplicaCount{}
	for _, region := range s.Regions {
		for _, r := range region.Replicas {
			if strings.HasPrefix(r.Origin, "file ") || strings.HasPrefix(r.Origin, "dns ") || r.Origin == telemetry.OriginAPI {
				continue
			}
			at := identity{cmp.Or(r.Region, region.Name), r.ID}
			if counted[at] {
				continue
			}
			key := plan.ReplicaCount{Model: r.Model, Region: at.region, GPU: r.GPU, CapacityType: r.Capacity}
			if _, ok := index[key]; !ok {
				index[key] = len(out)
				out = append(out, key)
			}
			c := &out[index[key]]
			switch {
			case r.Donated || r.State == service.StateDonated:
				c.Donated++
			case !r.Unattached && isCountedState(r.State):
				c.Replicas++
			default:
				continue
			}
			counted[at] = r.ID != ""
		}
	}
	out = slices.DeleteFunc(out, func(c plan.ReplicaCount) bool { return c.Replicas == 0 && c.Donated == 0 })
	slices.SortFunc(out, func(a, b plan.ReplicaCount) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Region, b.Region), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.CapacityType, b.CapacityType))
	})
	return out
}

// withoutOverprovision subtracts the spot replicas of spot.overprovision, which the deployer adds to what a plan
// decides. Snapshots do not show which they are.
func withoutOverprovision(spec *service.Spec, counts []plan.ReplicaCount) []plan.ReplicaCount {
	if spec == nil {
		return counts
	}
	for _, r := range spec.Regions {
		for i := range spec.Models {
			for k := 0; r.Spot != nil && k < len(counts); k++ {
				c := &counts[k]
				if c.Region == r.Name && c.Model == spec.Models[i].Name && c.CapacityType == service.CapacitySpot {
					c.Replicas -= min(c.Replicas, r.Spot.Overprovision)
					break // subtracted from the first GPU type only: spot replicas of a model rarely have several
				}
			}
		}
	}
	return slices.DeleteFunc(counts, func(c plan.ReplicaCount) bool { return c.Replicas == 0 && c.Donated == 0 })
}

// isCountedState reports whether a plan counts a replica in this state as running: it is ready, becoming ready, or fails
// its health check for now.
func isCountedState(s service.ReplicaState) bool {
	switch s {
	case service.StatePending, service.StateProvisioning, service.StateStarting, service.StateReady, service.StateNotReady:
		return true
	}
	return false
}
