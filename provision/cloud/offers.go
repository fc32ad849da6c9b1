package cloud

import (
	"maps"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// reservedKey identifies a commitment of a service in a region.
type reservedKey struct {
	region service.Region
	kind   string
}

// unusedReservations returns the number of unused machines of each commitment.
func unusedReservations(spec *service.Spec, have []provision.Object) map[reservedKey]int {
	unused := map[reservedKey]int{}
	for _, r := range spec.Regions {
		for _, v := range r.Reserved {
			unused[reservedKey{r.Name, v.Type}] += v.Count
		}
	}
	for _, o := range have {
		if o.TerminatedReason == "" && o.Offering != nil && o.Offering.Capacity == service.CapacityReserved {
			unused[reservedKey{o.Region, o.Offering.Type}]--
		}
	}
	return unused
}

// addReplica adds one replica, preferably of a class, with additional labels.
func (l *layout) addReplica(model int, r service.RegionSpec, number int, class provision.ReplicaClass, extra map[string]string) error {
	m := &l.Spec.Models[model]
	offers := preferClass(l.offeringsFor(m, r, number), class)
	if len(offers) == 0 {
		return specError("models[%d].gpus: %s has no offering with %s for %s (capacity: %s)", model, r.Name, gpuList(m), m.Name, capacityList(r))
	}
	id := provision.ReplicaID(l.Spec, model, r.Name, number)
	labels := map[string]string{labelModel: m.Name, labelGPU: offers[0].GPU}
	maps.Copy(labels, extra)
	if o := l.runningObject(id); o != nil && o.Labels[labelReplaces] != "" {
		labels[labelReplaces] = o.Labels[labelReplaces]
	}
	if l.runningObject(id) == nil && offers[0].Capacity == service.CapacityReserved {
		l.unusedReserved[reservedKey{r.Name, offers[0].Type}]--
	}
	return l.addMachine(MachineInput{ID: id, Kind: provision.KindReplica, Region: r.Name, Model: m}, offers, diskReplica, labels)
}

// runningObject returns the running object of an id; nil without one.
func (l *layout) runningObject(id string) *provision.Object {
	at := slices.IndexFunc(l.Have, func(o provision.Object) bool { return o.ID == id && o.TerminatedReason == "" })
	if at < 0 {
		return nil
	}
	return &l.Have[at]
}

// offeringsFor returns the offerings of a replica in the order of launch attempts: by the model's GPUs in
// the order of the file, then by the region's capacity types, then by price. The availability zones are
// rotated by the replica's number, so that the loss of a zone affects few replicas. The first
// on_demand_base replicas of a model are not spot.
func (l *layout) offeringsFor(m *service.Model, r service.RegionSpec, number int) provision.Offerings {
	order := r.Capacity
	if RunsOnThisComputer(r.Name) {
		order = []service.CapacityType{service.CapacityOnDemand}
	}
	if number < r.OnDemandBase {
		order = slices.DeleteFunc(slices.Clone(order), func(c service.CapacityType) bool { return c == service.CapacitySpot })
	}
	var all provision.Offerings
	for _, g := range gpusOf(m) {
		offers := l.withPrices(l.Offerings[r.Name].WithGPU(g.Type, g.Count), r, g)
		all = append(all, rotateZones(offers.SortedByCapacity(order), number)...)
	}
	return all
}

// gpusOf returns the GPUs of a model; one entry without a GPU for a simulated engine without gpus.
func gpusOf(m *service.Model) []service.GPU {
	if m.Engine.Kind == service.EngineSim && len(m.GPUs) == 0 {
		return []service.GPU{{}}
	}
	return m.GPUs
}

// withPrices sets the prices of service.yaml on offerings, and adds the offerings of unused commitments. The
// price of a GPU applies to the cheapest on-demand machine type with that GPU, which is the first choice.
func (l *layout) withPrices(offers provision.Offerings, r service.RegionSpec, g service.GPU) provision.Offerings {
	var cheapest string
	if onDemand := offers.SortedByCapacity([]service.CapacityType{service.CapacityOnDemand}); len(onDemand) > 0 {
		cheapest = onDemand[0].Type
	}
	var out provision.Offerings
	for _, o := range offers {
		switch o.Capacity {
		case service.CapacityOnDemand:
			if g.Price > 0 && o.Type == cheapest && !RunsOnThisComputer(r.Name) { // this computer is not billed
				o.PricePerHour, o.PriceSource = g.Price, "service.yaml"
			}
			out = append(out, o)
			if price, committed := l.commitmentPrice(r, o.Type); committed {
				o.Capacity, o.PricePerHour, o.PriceSource = service.CapacityReserved, price, "service.yaml"
				out = append(out, o)
			}
		case service.CapacitySpot:
			out = append(out, o)
		case service.CapacityReserved: // service.yaml has the price of the cloud's reservations
			if price, committed := l.commitmentPrice(r, o.Type); committed {
				o.PricePerHour, o.PriceSource = price, "service.yaml"
			}
			out = append(out, o)
		}
	}
	return out
}

// commitmentPrice returns the price per hour of a commitment for a type; false if none is unused.
func (l *layout) commitmentPrice(r service.RegionSpec, kind string) (price float64, ok bool) {
	for _, v := range r.Reserved {
		if v.Type == kind && l.unusedReserved[reservedKey{r.Name, kind}] > 0 {
			return v.Price, true
		}
	}
	return 0, false
}

// rotateZones rotates each run of offerings that differ only by zone.
func rotateZones(offers provision.Offerings, number int) provision.Offerings {
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
		first := begin + number%(end-begin)
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
		}
		names = append(names, name)
	}
	return strings.Join(names, " or ")
}

func capacityList(r service.RegionSpec) string {
	var names []string
	for _, c := range r.Capacity {
		names = append(names, string(c))
	}
	return strings.Join(names, ", ")
}
