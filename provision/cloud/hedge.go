package cloud

import (
	"slices"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Spot replicas are hedged as in SpotHedge (Mao et al., "SkyServe: Serving AI Models across Regions and Clouds with
// Spot Instances", EuroSys 2025). First, spot.overprovision adds spot replicas to the desired number. Second, with
// spot.dynamic_fallback, the replacement after an interruption is an on-demand replica if one can be launched. Later the
// reconciler replaces it by a spot replica: see deploy.Reconciler.

// IsOverprovisioned reports whether a replica was added by spot.overprovision. It does not count towards the desired
// number of replicas.
func IsOverprovisioned(o provision.Object) bool { return o.Labels[labelOverprovisioned] != "" }

// isRegular reports whether a replica counts towards the desired number of replicas of its region.
func isRegular(o provision.Object) bool { return FallbackFor(o) == "" && !IsOverprovisioned(o) }

// addOverprovisioned adds the replicas of spot.overprovision for a model in a region, within replicas.max. There are
// none if all desired replicas of the region must be on demand. It adds no new replica while no spot offering has
// capacity.
func (l *layout) addOverprovisioned(model int, r service.RegionSpec, ordinals map[service.Region][]int, labels replicaLabels) {
	m := &l.Spec.Models[model]
	existing := l.replicaOrdinals(m, r.Name, IsOverprovisioned)
	serving, terminating, _ := l.splitTerminating(model, r.Name, existing)
	want := 0
	if spot := slices.ContainsFunc(ordinals[r.Name], func(n int) bool { return n >= r.OnDemandBase }); spot && r.Spot != nil {
		allowed := l.Spec.BoundsFor(m.Name, r.Name).Max - l.countWithinMax(model, r.Name, slices.Concat(ordinals[r.Name], terminating))
		want = max(0, min(r.Spot.Overprovision, allowed))
	}
	overprovisioned := slices.Concat(serving[:min(len(serving), want)], terminating)
	taken := slices.Concat(ordinals[r.Name], l.replicaOrdinals(m, r.Name, func(provision.Object) bool { return true }))
	for n := len(serving); n < want && l.hasSpot(m, r); n++ {
		free := lowestFreeOrdinal(slices.Concat(taken, overprovisioned))
		overprovisioned = append(overprovisioned, free)
	}
	for _, n := range overprovisioned {
		labels.set(r.Name, n, labelOverprovisioned, string(service.CapacitySpot))
	}
	if len(overprovisioned) > 0 {
		ordinals[r.Name] = slices.Sorted(slices.Values(slices.Concat(ordinals[r.Name], overprovisioned)))
	}
}

// hasSpot reports whether one of the spot offerings of a model in a region had no recent capacity error.
func (l *layout) hasSpot(m *service.Model, r service.RegionSpec) bool {
	return slices.ContainsFunc(spotOnly(l.offeringsFor(m, r, r.OnDemandBase)), func(o provision.Offering) bool {
		return l.Exhausted == nil || !l.Exhausted(o)
	})
}

// spotOnly returns the spot offerings.
func spotOnly(offers provision.Offerings) provision.Offerings {
	return slices.DeleteFunc(offers, func(o provision.Offering) bool { return o.Capacity != service.CapacitySpot })
}

// hedgedOfferings adapts the offerings of a replica to the hedging of its region. An overprovisioned replica has only
// spot offerings. With spot.dynamic_fallback, a new replica tries on-demand offerings first after a recent interruption,
// unless it is the spot replica that replaces an on-demand one. This fallback to on demand is not the fallback to another
// region (FallbackFor).
func (l *layout) hedgedOfferings(offers provision.Offerings, r service.RegionSpec, id string, labels map[string]string) provision.Offerings {
	switch {
	case labels[labelOverprovisioned] != "":
		return spotOnly(offers)
	case !r.HasFallback() || l.Interrupted == nil || !l.Interrupted(r.Name) || l.runningObject(id) != nil || l.replacesOnDemand(labels[labelReplaces]):
		return offers
	}
	return preferClass(offers, provision.ReplicaClass{Capacity: service.CapacityOnDemand})
}

// replacesOnDemand reports whether the machine to replace, given by its handle, is on demand.
func (l *layout) replacesOnDemand(handle string) bool {
	return handle != "" && slices.ContainsFunc(l.Have, func(o provision.Object) bool {
		return o.Handle == handle && o.Offering != nil && o.Offering.Capacity == service.CapacityOnDemand
	})
}
