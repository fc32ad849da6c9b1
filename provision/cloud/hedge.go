package cloud

import (
	"slices"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Spot replicas are backed up as in SpotHedge (Mao et al., "SkyServe: Serving AI Models across Regions and Clouds
// with Spot Instances", EuroSys 2025): extra spot replicas serve beside the desired ones, and after an
// interruption the replacement starts on demand. The reconciler then launches a spot replica that replaces the
// one on demand: see deploy.Reconciler.

// IsOverprovisioned reports whether a replica is one of spot.overprovision, which is not part of the desired
// number.
func IsOverprovisioned(o provision.Object) bool { return o.Labels[labelExtra] != "" }

// isRegular reports whether a replica is part of the desired number of its region.
func isRegular(o provision.Object) bool { return FallbackFor(o) == "" && !IsOverprovisioned(o) }

// addExtras adds the extra spot replicas of a model in a region, within replicas.max, while the region has
// replicas that may be spot. A new one is omitted while no spot offering has capacity.
func (l *layout) addExtras(model int, r service.RegionSpec, numbers map[service.Region][]int, labels extraLabels) {
	m := &l.Spec.Models[model]
	existing := l.replicaNumbers(m, r.Name, IsOverprovisioned)
	serve, terminating, _ := l.splitTerminating(model, r.Name, existing)
	want := 0
	if spot := slices.ContainsFunc(numbers[r.Name], func(n int) bool { return n >= r.OnDemandBase }); spot && r.Spot != nil {
		room := l.Spec.BoundsFor(m.Name, r.Name).Max - l.countWithinMax(model, r.Name, slices.Concat(numbers[r.Name], terminating))
		want = max(0, min(r.Spot.Overprovision, room))
	}
	extra := slices.Concat(serve[:min(len(serve), want)], terminating)
	taken := slices.Concat(numbers[r.Name], l.replicaNumbers(m, r.Name, func(provision.Object) bool { return true }))
	for n := len(serve); n < want && l.hasSpot(m, r); n++ {
		free := lowestFree(slices.Concat(taken, extra))
		extra = append(extra, free)
	}
	for _, n := range extra {
		labels.set(r.Name, n, labelExtra, string(service.CapacitySpot))
	}
	if len(extra) > 0 {
		numbers[r.Name] = slices.Sorted(slices.Values(slices.Concat(numbers[r.Name], extra)))
	}
}

// hasSpot reports whether a spot offering of a model in a region has capacity, as far as it is known.
func (l *layout) hasSpot(m *service.Model, r service.RegionSpec) bool {
	return slices.ContainsFunc(spotOnly(l.offeringsFor(m, r, r.OnDemandBase)), func(o provision.Offering) bool {
		return l.Exhausted == nil || !l.Exhausted(o)
	})
}

// spotOnly returns the spot offerings.
func spotOnly(offers provision.Offerings) provision.Offerings {
	return slices.DeleteFunc(offers, func(o provision.Offering) bool { return o.Capacity != service.CapacitySpot })
}

// hedge returns the offerings of a replica in a region with a backup: an extra replica is spot only, and a new
// replica is on demand first after a recent interruption, unless it returns the region to spot.
func (l *layout) hedge(offers provision.Offerings, r service.RegionSpec, id string, labels map[string]string) provision.Offerings {
	switch {
	case labels[labelExtra] != "":
		return spotOnly(offers)
	case !r.HasFallback() || l.Interrupted == nil || !l.Interrupted(r.Name) || l.runningObject(id) != nil || l.replacesOnDemand(labels[labelReplaces]):
		return offers
	}
	return preferClass(offers, provision.ReplicaClass{Capacity: service.CapacityOnDemand})
}

// replacesOnDemand reports whether a handle is that of an on-demand machine.
func (l *layout) replacesOnDemand(handle string) bool {
	return handle != "" && slices.ContainsFunc(l.Have, func(o provision.Object) bool {
		return o.Handle == handle && o.Offering != nil && o.Offering.Capacity == service.CapacityOnDemand
	})
}
