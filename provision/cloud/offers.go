package cloud

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// addReplica adds one replica, with the additional labels. The offerings of its class come first; the zero class prefers
// none.
func (l *layout) addReplica(model int, r service.RegionSpec, ordinal int, class provision.ReplicaClass, additional map[string]string) error {
	m := &l.Spec.Models[model]
	id := l.replicaID(model, r.Name, ordinal)
	offers := l.hedgedOfferings(preferClass(l.offeringsFor(m, r, ordinal), class), r, id, additional)
	if len(offers) == 0 {
		return specError("models[%d].gpus: %s has no offering with %s for %s (capacity: %s); change gpus or the capacity of the region, or remove the region", model, r.Name, gpuList(m), m.Name, capacityList(capacityFor(r, ordinal)))
	}
	labels := map[string]string{labelModel: m.Name, labelGPU: offers[0].GPU}
	maps.Copy(labels, additional)
	if o := l.runningObject(id); o != nil && o.Labels[labelReplaces] != "" {
		labels[labelReplaces] = o.Labels[labelReplaces]
	}
	if l.runningObject(id) == nil && offers[0].Capacity == service.CapacityReserved {
		l.reserved.useMachine(r.Name, offers[0])
	}
	if l.runningObject(id) == nil && offers[0].Capacity == service.CapacitySpot {
		l.plannedSpot[offers[0].Zone]++
	}
	if err := l.addMachine(MachineInput{ID: id, Kind: provision.KindReplica, Region: r.Name, Model: m}, offers, diskReplica, labels); err != nil {
		return err
	}
	l.result.Desired[len(l.result.Desired)-1].OfferingReason = offers.ExplainSpot(l.spotFacts)
	return nil
}

// runningObject returns the running object of an id; nil without one.
func (l *layout) runningObject(id string) *provision.Object {
	for _, o := range l.objects().byID[id] {
		if o.TerminatedReason == "" {
			return o
		}
	}
	return nil
}

// offeringsFor returns the offerings of a replica in the order of launch attempts: by the model's GPUs in the
// order of service.yaml, then by capacityFor, then by price. The availability zones are rotated by the replica's
// ordinal, so that the loss of a zone affects few replicas. Spot offerings are then sorted by
// provision.Offerings.OrderSpot.
func (l *layout) offeringsFor(m *service.Model, r service.RegionSpec, ordinal int) provision.Offerings {
	var all provision.Offerings
	for _, g := range gpusOf(m) {
		offers := l.withPricesAndReservations(l.Offerings[r.Name].WithGPU(g.Type, g.Count), r, g)
		all = append(all, rotateZones(offers.SortedByCapacity(capacityFor(r, ordinal)), ordinal).OrderSpot(l.spotFacts)...)
	}
	return all
}

// capacityFor returns the capacity types of a replica in the order of preference. They contain neither spot nor
// flex-start if its ordinal is below on_demand_base.
func capacityFor(r service.RegionSpec, ordinal int) []service.CapacityType {
	switch {
	case RunsOnThisComputer(r.Name):
		return []service.CapacityType{service.CapacityOnDemand}
	case ordinal < r.OnDemandBase:
		return slices.DeleteFunc(slices.Clone(r.Capacity), isInterruptible)
	}
	return r.Capacity
}

// spotFacts returns what is known about a spot offering.
func (l *layout) spotFacts(o provision.Offering) provision.SpotFacts {
	f := provision.SpotFacts{Running: l.spotReplicasIn(o.Zone)}
	if l.SpotPenalty != nil {
		f.Events = l.SpotPenalty(o)
	}
	if l.SpotScore != nil {
		f.Score = l.SpotScore(o)
	}
	return f
}

// spotReplicasIn returns the number of spot replicas in a zone that run or are planned, without those that need
// replacement.
func (l *layout) spotReplicasIn(zone string) int {
	n := l.plannedSpot[zone]
	for _, o := range l.Have {
		if o.Kind == provision.KindReplica && o.TerminatedReason == "" && !l.NeedReplacement[o.ID] && o.Offering != nil && o.Offering.Capacity == service.CapacitySpot && o.Offering.Zone == zone {
			n++
		}
	}
	return n
}

// gpusOf returns the GPUs of a model. For a simulated engine without gpus it returns one entry without a GPU.
func gpusOf(m *service.Model) []service.GPU {
	if m.Engine.Kind == service.EngineSim && len(m.GPUs) == 0 {
		return []service.GPU{{}}
	}
	return m.GPUs
}

// withPricesAndReservations sets the prices and local SSDs of service.yaml on offerings, and adds offerings for the
// unused machines of regions[].reserved. The price of a GPU in service.yaml applies to the cheapest on-demand machine
// type with this GPU, because that is launched first.
func (l *layout) withPricesAndReservations(offers provision.Offerings, r service.RegionSpec, g service.GPU) provision.Offerings {
	var cheapest string
	if onDemand := offers.SortedByCapacity([]service.CapacityType{service.CapacityOnDemand}); len(onDemand) > 0 {
		cheapest = onDemand[0].Type
	}
	var out provision.Offerings
	for _, o := range offers {
		entry := l.reserved.unusedFor(r.Name, o)
		if o.Capacity == service.CapacityReserved && entry == nil && len(r.Reserved) > 0 {
			continue // not in regions[].reserved, or all in use: it would be billed at another price
		}
		switch {
		case o.Capacity == service.CapacityReserved: // the price of a reservation is that of service.yaml
			if entry != nil {
				o.PricePerHour, o.PriceSource = entry.reservation.Price, provision.PriceOfUser
			}
			out = append(out, o)
			continue
		case o.Capacity == service.CapacityOnDemand && g.Price > 0 && o.Type == cheapest && !RunsOnThisComputer(r.Name): // this computer is not billed
			o.PricePerHour, o.PriceSource = g.Price, provision.PriceOfUser
		}
		out = append(out, o)
		if entry != nil && !hasBetterBase(offers, o) {
			o.Capacity, o.PricePerHour, o.PriceSource = service.CapacityReserved, entry.reservation.Price, provision.PriceOfUser
			out = append(out, o)
		}
	}
	for i := range out {
		out[i] = out[i].WithLocalSSDs(g.LocalSSDs)
	}
	return append(out, l.reserved.reservedOfferings(r.Name, g)...)
}

// hasBetterBase reports whether the reserved offering for o's type and zone is derived from another offering than o.
// It is derived from only one of them: the cloud's own reserved offering, else the on-demand one, else the spot one,
// else the flex-start one.
func hasBetterBase(offers provision.Offerings, o provision.Offering) bool {
	return slices.ContainsFunc(offers, func(other provision.Offering) bool {
		same := other.Type == o.Type && other.Zone == o.Zone
		return same && (other.Capacity == service.CapacityReserved || other.Capacity == service.CapacityOnDemand && o.Capacity != service.CapacityOnDemand ||
			other.Capacity == service.CapacitySpot && o.Capacity == service.CapacityFlexStart)
	})
}

// rotateZones rotates each sequence of offerings that differ only by zone.
func rotateZones(offers provision.Offerings, ordinal int) provision.Offerings {
	same := func(a, b provision.Offering) bool {
		a.Zone, b.Zone = "", ""
		return a == b
	}
	var out provision.Offerings
	for begin := 0; begin < len(offers); {
		end := begin + 1
		for end < len(offers) && same(offers[begin], offers[end]) {
			end++
		}
		first := begin + ordinal%(end-begin)
		out = append(append(out, offers[first:end]...), offers[begin:first]...)
		begin = end
	}
	return out
}

func gpuList(m *service.Model) string {
	var names []string
	for _, g := range gpusOf(m) {
		name := g.Type
		if name == "" {
			name = "no GPU"
		} else if g.Count > 1 {
			name = fmt.Sprintf("%d x %s", g.Count, g.Type)
		}
		names = append(names, name)
	}
	return strings.Join(names, " or ")
}

func capacityList(capacity []service.CapacityType) string {
	var names []string
	for _, c := range capacity {
		names = append(names, string(c))
	}
	return strings.Join(names, ", ")
}
