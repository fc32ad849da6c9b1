package cloud

import (
	"maps"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// reservedKey is a commitment of a service in a region.
type reservedKey struct {
	region service.Region
	kind   string
}

// reservations is how many machines of each commitment nothing runs on.
func reservations(spec *service.Spec, have []provision.Object) map[reservedKey]int {
	free := map[reservedKey]int{}
	for _, r := range spec.Regions {
		for _, v := range r.Reserved {
			free[reservedKey{r.Name, v.Type}] += v.Count
		}
	}
	for _, o := range have {
		if o.Gone == "" && o.Offering != nil && o.Offering.Capacity == service.CapacityReserved {
			free[reservedKey{o.Region, o.Offering.Type}]--
		}
	}
	return free
}

// addReplica wants one replica, on a class if that can be had, with labels beyond those of
// its model.
func (l *layout) addReplica(model int, r service.RegionSpec, number int, on provision.Class, more map[string]string) error {
	m := &l.Spec.Models[model]
	offers := preferred(l.offersFor(m, r, number), on)
	if len(offers) == 0 {
		return specError("models[%d].gpus: %s offers no machine with %s for %s, paid for as %s", model, r.Name, gpuList(m), m.Name, capacityList(r))
	}
	id := provision.ReplicaID(l.Spec, model, r.Name, number)
	labels := map[string]string{labelModel: m.Name, labelGPU: offers[0].GPU}
	maps.Copy(labels, more)
	if o := l.running(id); o != nil && o.Labels[labelInstead] != "" {
		labels[labelInstead] = o.Labels[labelInstead]
	}
	if l.running(id) == nil && offers[0].Capacity == service.CapacityReserved {
		l.reserved[reservedKey{r.Name, offers[0].Type}]--
	}
	return l.addMachine(Node{ID: id, Kind: provision.KindReplica, Region: r.Name, Model: m}, offers, diskReplica, labels)
}

// running is the object of an id that exists; nil without one.
func (l *layout) running(id string) *provision.Object {
	at := slices.IndexFunc(l.Have, func(o provision.Object) bool { return o.ID == id && o.Gone == "" })
	if at < 0 {
		return nil
	}
	return &l.Have[at]
}

// offersFor are the offerings that a replica may run on, in the order of trying: by
// the GPUs of the model in the order of the file, then by the region's capacity
// types, then by price, then over the zones from another one for each number, so
// that the loss of a zone takes few. The first on_demand_base replicas of a model
// are not spot.
func (l *layout) offersFor(m *service.Model, r service.RegionSpec, number int) provision.Offerings {
	order := r.Capacity
	if IsHere(r.Name) {
		order = []service.CapacityType{service.CapacityOnDemand}
	}
	if number < r.OnDemandBase {
		order = slices.DeleteFunc(slices.Clone(order), func(c service.CapacityType) bool { return c == service.CapacitySpot })
	}
	var all provision.Offerings
	for _, g := range gpusOf(m) {
		offers := l.priced(l.Offers[r.Name].With(g.Type, g.Count), r, g)
		all = append(all, spread(offers.InOrder(order), number)...)
	}
	return all
}

// gpusOf is what a model runs on; a simulated engine needs no GPU.
func gpusOf(m *service.Model) []service.GPU {
	if m.Engine.Kind == service.EngineSim && len(m.GPUs) == 0 {
		return []service.GPU{{}}
	}
	return m.GPUs
}

// priced is offerings with the prices of service.yaml, and those of commitments
// that are free beside them. The price of a GPU is that of the cheapest machine with
// it on demand, which is what one would rent.
func (l *layout) priced(offers provision.Offerings, r service.RegionSpec, g service.GPU) provision.Offerings {
	var usual string
	if onDemand := offers.InOrder([]service.CapacityType{service.CapacityOnDemand}); len(onDemand) > 0 {
		usual = onDemand[0].Type
	}
	var out provision.Offerings
	for _, o := range offers {
		switch o.Capacity {
		case service.CapacityOnDemand:
			if g.Price > 0 && o.Type == usual && !IsHere(r.Name) { // this computer is nobody's to bill
				o.PricePerHour, o.PriceFrom = g.Price, "service.yaml"
			}
			out = append(out, o)
			if price, committed := l.committed(r, o.Type); committed {
				o.Capacity, o.PricePerHour, o.PriceFrom = service.CapacityReserved, price, "service.yaml"
				out = append(out, o)
			}
		case service.CapacitySpot:
			out = append(out, o)
		case service.CapacityReserved: // a reservation that the cloud knows costs what the file says of it
			if price, committed := l.committed(r, o.Type); committed {
				o.PricePerHour, o.PriceFrom = price, "service.yaml"
			}
			out = append(out, o)
		}
	}
	return out
}

// committed is what a commitment for a type costs an hour, if one is free.
func (l *layout) committed(r service.RegionSpec, kind string) (price float64, free bool) {
	for _, v := range r.Reserved {
		if v.Type == kind && l.reserved[reservedKey{r.Name, kind}] > 0 {
			return v.Price, true
		}
	}
	return 0, false
}

// spread turns each run of offerings that differ by zone alone round by a number.
func spread(offers provision.Offerings, number int) provision.Offerings {
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
		turn := begin + number%(end-begin)
		out = append(append(out, offers[turn:end]...), offers[begin:turn]...)
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
