package plan

import (
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
)

// basePriceFactor is the planned price of a replica of the on-demand base as a share of the price of spot or flex-start. It is
// below 1 so that the base is used first, and near 1 so that a plan does not choose other GPUs. The on-demand base
// (on_demand_base of a region) is the number of replicas of each model that never run on spot or flex-start.
const basePriceFactor = 0.999

// offering is a GPU class with one capacity type. onDemandBase: it is for replicas of the on-demand base only. The index
// of an offering is the problem's index k.
type offering struct {
	gpuClass
	capacityType service.CapacityType
	onDemandBase bool
}

// String returns the offering's name in a problem; the capacity type is omitted if it is on demand.
func (o offering) String() string {
	switch {
	case o.onDemandBase:
		return o.gpuClass.String() + " (on-demand base)"
	case o.capacityType == service.CapacityOnDemand:
		return o.gpuClass.String()
	}
	return fmt.Sprintf("%s (%s)", o.gpuClass, o.capacityType)
}

// findOfferings sets the offerings (for each GPU class that a model can run on in a cloud, the capacity types of the
// regions there), and the problem's regions, GPUs, models and throughputs.
func (r *review) findOfferings() {
	r.setNames(r.spec)
	for _, c := range r.findClasses() {
		for _, o := range []offering{{c, service.CapacityReserved, false}, {c, service.CapacityOnDemand, true}, {c, service.CapacitySpot, false}, {c, service.CapacityFlexStart, false}, {c, service.CapacityOnDemand, false}} {
			if slices.ContainsFunc(r.spec.Regions, func(region service.RegionSpec) bool { return r.maxReplicas(&region, o) != 0 }) {
				r.offerings = append(r.offerings, o)
				r.problem.GPUs = append(r.problem.GPUs, o.String())
				r.problem.CapacityType = append(r.problem.CapacityType, string(o.capacityType))
				r.gpus = append(r.gpus, c.String())
			}
		}
	}
	for i := range r.spec.Models {
		m := &r.spec.Models[i]
		throughputs := make([]float64, len(r.offerings))
		for k, o := range r.offerings {
			for _, g := range r.gpusOf(m) {
				if g.Type == o.gpu && max(1, g.Count) == o.count {
					throughputs[k] = r.replicaTPS(m, g)
				}
			}
		}
		r.problem.ReplicaTPS = append(r.problem.ReplicaTPS, throughputs)
	}
}

// noOfferingError returns the error of a service without any usable capacity, with the reason.
func (r *review) noOfferingError() error {
	for i := range r.spec.Regions {
		region := &r.spec.Regions[i]
		var missing []string // GPUs that the cloud does not rent
		classes := slices.DeleteFunc(r.findClasses(), func(c gpuClass) bool { return c.cloud != region.Name.Cloud() })
		for _, c := range classes {
			if !catalogue.Rents(c.cloud, c.gpu, c.count) {
				missing = append(missing, c.String())
			} else if !catalogue.SellsOnDemand(c.cloud, c.gpu, c.count) && slices.Contains(region.Capacity, service.CapacityOnDemand) {
				return fmt.Errorf("planning %s: no region has capacity that a model can run on: %s sells %s as spot%s only; list %s before on_demand in regions[].capacity", r.spec.Name, region.Name, c, ifFlexStart(c.cloud, " and flex-start"), "spot"+ifFlexStart(c.cloud, " or flex_start"))
			}
		}
		if len(missing) > 0 && len(missing) == len(classes) {
			rented, counts := catalogue.Alternatives(classes[0].cloud, classes[0].gpu)
			if counts {
				rented = classes[0].gpu + ": " + rented + " in one machine"
			}
			return fmt.Errorf("planning %s: no region has capacity that a model can run on: %s rents no machines with %s; add to models[].gpus a GPU that it rents (%s)", r.spec.Name, region.Name.Cloud(), strings.Join(missing, " or "), rented)
		}
	}
	return fmt.Errorf("planning %s: no region has capacity that a model can run on: regions[].capacity allows only reserved, and regions[].reserved has no usable machine; add on_demand or spot to regions[].capacity, or a machine that fits models[].gpus to regions[].reserved", r.spec.Name)
}

// ifFlexStart returns a text for clouds that sell flex-start, else an empty one.
func ifFlexStart(cloud, text string) string {
	if catalogue.SellsFlexStart(cloud) {
		return text
	}
	return ""
}

// findClasses returns the GPU classes of all models in all clouds.
func (r *review) findClasses() []gpuClass {
	var out []gpuClass
	for _, region := range r.spec.Regions {
		for i := range r.spec.Models {
			for _, g := range r.gpusOf(&r.spec.Models[i]) {
				if c := (gpuClass{region.Name.Cloud(), g.Type, max(1, g.Count)}); !slices.Contains(out, c) {
					out = append(out, c)
				}
			}
		}
	}
	return out
}

// noLimit is the result of maxReplicas for an unlimited offering.
const noLimit = -1

// maxReplicas returns the maximum number of replicas of an offering in a region; 0 where the region does
// not offer it.
func (r *review) maxReplicas(region *service.RegionSpec, o offering) int {
	cloud := region.Name.Cloud()
	switch {
	case o.cloud != cloud || !catalogue.Rents(cloud, o.gpu, o.count):
		return 0
	case cloud == service.CloudStatic:
		// Endpoints are addresses here, not endpoints of a plan (doc.go): one replica each. DNS names and the file are
		// counted too, which makes no difference: replicas.max is at most the number of addresses.
		sources := len(region.Endpoints)
		if region.EndpointsFile != "" {
			sources++
		}
		return ifOffered(o.capacityType == service.CapacityOnDemand && !o.onDemandBase, sources)
	case o.capacityType == service.CapacityReserved:
		return r.reservedReplicas(region, o.gpuClass)
	case o.onDemandBase:
		return ifOffered(interruptibleFirst(region) && catalogue.SellsOnDemand(cloud, o.gpu, o.count), region.OnDemandBase)
	case o.capacityType == service.CapacitySpot, o.capacityType == service.CapacityFlexStart:
		return ifOffered(o.capacityType == firstCapacityType(region), noLimit)
	}
	allowed := len(region.Capacity) == 0 || slices.Contains(region.Capacity, service.CapacityOnDemand)
	return ifOffered(allowed && catalogue.SellsOnDemand(cloud, o.gpu, o.count), noLimit)
}

// ifOffered returns n when offered, else 0.
func ifOffered(offered bool, n int) int {
	if offered {
		return n
	}
	return 0
}

// firstCapacityType returns the capacity type that launches in a region try first when no reservation has a free machine;
// empty where there is none. Plans use it even if a later one is cheaper: regions[].capacity is the order of
// preference. Spot and flex-start after another type are a fallback for a lack of capacity, which no plan anticipates.
func firstCapacityType(region *service.RegionSpec) service.CapacityType {
	if len(region.Capacity) == 0 {
		return service.CapacityOnDemand
	}
	for _, t := range region.Capacity {
		if t != service.CapacityReserved && (t != service.CapacityFlexStart || catalogue.SellsFlexStart(region.Name.Cloud())) {
			return t
		}
	}
	return ""
}

// interruptibleFirst reports whether launches in a region try spot or flex-start first.
func interruptibleFirst(region *service.RegionSpec) bool {
	t := firstCapacityType(region)
	return t == service.CapacitySpot || t == service.CapacityFlexStart
}

// reservedReplicas returns the number of replicas of a class that a region's reservations can run. A machine
// counts for one class: of those that fit, the one with the most GPUs per replica.
func (r *review) reservedReplicas(region *service.RegionSpec, c gpuClass) int {
	sum := 0
	for _, reservation := range region.Reserved {
		m, known := catalogue.Find(region.Name.Cloud(), reservation.Type)
		if known && c.gpu == m.GPU && c.count == r.gpusPerReplica(m) {
			sum += r.reservedCount(region.Name, reservation) * (m.GPUs / c.count)
		}
	}
	return sum
}

// gpusPerReplica returns the number of a machine's GPUs that a replica uses: the maximum
// that any model requests and the machine has; 0 where no model runs on it.
func (r *review) gpusPerReplica(m catalogue.Machine) int {
	best := 0
	for i := range r.spec.Models {
		for _, g := range r.gpusOf(&r.spec.Models[i]) {
			if n := max(1, g.Count); g.Type == m.GPU && n <= m.GPUs {
				best = max(best, n)
			}
		}
	}
	return best
}

// setLimits sets problem.Capacity: the maximum number of replicas by region and offering.
func (r *review) setLimits() {
	for j := range r.spec.Regions {
		row := make([]*int, len(r.offerings))
		for k, o := range r.offerings {
			if n := r.maxReplicas(&r.spec.Regions[j], o); n != noLimit {
				row[k] = &n
			}
		}
		r.problem.Capacity = append(r.problem.Capacity, row)
	}
}

// setPrices sets the price of replicas, the cost of starting one, and the billed price, which is 0 on
// the operator's own machines.
func (r *review) setPrices() {
	onDemand, planned := r.newPriceTable(), r.newPriceTable() // by region and offering
	meanOnDemand := make([]float64, len(r.offerings))
	for k, o := range r.offerings {
		for j, region := range r.spec.Regions {
			if region.Name.Cloud() == o.cloud {
				onDemand[j][k] = r.onDemandPrice(region.Name, o.gpuClass)
				planned[j][k] = r.plannedPrice(&region, o, onDemand[j][k])
			}
		}
		meanOnDemand[k] = r.commonPrice(onDemand, k)
		r.problem.PricePerHour = append(r.problem.PricePerHour, r.commonPrice(planned, k))
	}
	r.problem.RegionPricePerHour = r.regionalPrices(planned)
	for range r.spec.Models {
		startCosts, switchCosts := make([]float64, len(r.offerings)), make([]*float64, len(r.offerings))
		for k, o := range r.offerings {
			startCosts[k] = meanOnDemand[k] * r.startUpTime(o.cloud).Hours()
			if afterBoot := r.startUpTime(o.cloud) - catalogue.MachineBoot; afterBoot > 0 { // a VM that is taken over has booted
				cost := meanOnDemand[k] * afterBoot.Hours()
				switchCosts[k] = &cost
			}
		}
		r.problem.StartCostUSD = append(r.problem.StartCostUSD, startCosts)
		r.problem.SwitchCostUSD = append(r.problem.SwitchCostUSD, switchCosts)
	}
	if !r.options.AllowSwitch {
		r.problem.SwitchCostUSD = nil
	}
	for j := range r.spec.Regions {
		r.billed = append(r.billed, r.billedPrices(&r.spec.Regions[j], onDemand[j], planned[j]))
	}
}

// newPriceTable returns zeros by region and offering.
func (r *review) newPriceTable() [][]float64 {
	rows := make([][]float64, len(r.spec.Regions))
	for j := range rows {
		rows[j] = make([]float64, len(r.offerings))
	}
	return rows
}

// plannedPrice returns the planned price of a replica on an offering in a region, given its on-demand
// price.
func (r *review) plannedPrice(region *service.RegionSpec, o offering, onDemand float64) float64 {
	switch {
	case o.onDemandBase:
		return basePriceFactor * r.basePrice(region, o.gpuClass, onDemand)
	case o.capacityType == service.CapacitySpot:
		return r.spotPrice(region.Name, o.gpuClass, onDemand)
	case o.capacityType == service.CapacityFlexStart:
		return r.flexStartPrice(region.Name, o.gpuClass, onDemand)
	}
	return onDemand
}

// basePrice returns the price of the capacity type that a region uses beside on_demand_base: spot or flex-start.
func (r *review) basePrice(region *service.RegionSpec, c gpuClass, onDemand float64) float64 {
	name, price := "spot", r.spotPrice
	if firstCapacityType(region) == service.CapacityFlexStart {
		name, price = "flex-start", r.flexStartPrice
	}
	r.assume("%s in %s: replicas of on_demand_base are planned at the %s price and billed on demand", c, c.cloud, name)
	return price(region.Name, c, onDemand)
}

// commonPrice returns the price of an offering where all regions of its cloud have the same, else the
// mean.
func (r *review) commonPrice(prices [][]float64, k int) float64 {
	first, sum, n, same := 0.0, 0.0, 0, true
	for j, region := range r.spec.Regions {
		if region.Name.Cloud() != r.offerings[k].cloud {
			continue
		}
		if n == 0 {
			first = prices[j][k]
		}
		same = same && prices[j][k] == first
		sum, n = sum+prices[j][k], n+1
	}
	if same {
		return first
	}
	return sum / float64(n)
}

// regionalPrices returns prices by region where some differ from PricePerHour, else nil.
func (r *review) regionalPrices(planned [][]float64) [][]float64 {
	rows, differ := r.newPriceTable(), false
	for j, region := range r.spec.Regions {
		for k, o := range r.offerings {
			rows[j][k] = r.problem.PricePerHour[k]
			if region.Name.Cloud() == o.cloud {
				rows[j][k], differ = planned[j][k], differ || planned[j][k] != r.problem.PricePerHour[k]
			}
		}
	}
	if !differ {
		return nil
	}
	return rows
}

// billedPrices returns the billed price of a replica on each offering in a region, given the on-demand and
// the planned prices. It also adds the assumptions about the region's reservations and capacity types.
func (r *review) billedPrices(region *service.RegionSpec, onDemand, planned []float64) []float64 {
	row := make([]float64, len(r.offerings))
	for k, o := range r.offerings {
		switch {
		case ownMachines(region.Name.Cloud()) || o.cloud != region.Name.Cloud():
		case o.capacityType == service.CapacityReserved:
			row[k] = r.regionReservedPrice(region, o.gpuClass)
		case o.onDemandBase:
			row[k] = onDemand[k]
		default:
			row[k] = planned[k]
		}
	}
	r.reportUnusable(region)
	r.reportReservationStates(region)
	reservedUSD := 0.0
	for k, o := range r.offerings {
		if o.capacityType == service.CapacityReserved && o.cloud == region.Name.Cloud() {
			reservedUSD += row[k] * float64(r.reservedReplicas(region, o.gpuClass))
		}
	}
	if reservedUSD > 0 {
		r.assume("%s: reservations of $%.2f per hour are billed in any case: included in the cost per hour, not in the plan's cost for one hour", region.Name, reservedUSD)
	}
	first := firstCapacityType(region)
	for _, t := range []service.CapacityType{service.CapacitySpot, service.CapacityFlexStart} {
		if t != first && slices.Contains(region.Capacity, t) {
			r.assume("%s: %s is listed after %s: it is a fallback for missing capacity and not planned for", region.Name, t, first)
		}
	}
	return row
}

// ReplicaPrice is the billed price of one replica in a region, in USD per hour.
type ReplicaPrice struct {
	Region     service.Region
	GPU        string // as plans name it: 4xL4
	USDPerHour float64
}

// Prices returns the billed price of a replica by region and GPU: on demand, or of its first
// offering where on demand is not offered. Free replicas are omitted.
func (v *ReviewResult) Prices() []ReplicaPrice {
	r := v.review
	prices := []ReplicaPrice{}
	for j := range r.spec.Regions {
		region, at := r.spec.Regions[j].Name, map[string]int{}
		for k, o := range r.offerings {
			if o.cloud != region.Cloud() || r.billed[j][k] <= 0 {
				continue
			}
			class := o.gpuClass.String()
			i, known := at[class]
			switch {
			case !known:
				at[class] = len(prices)
				prices = append(prices, ReplicaPrice{Region: region, GPU: class, USDPerHour: r.billed[j][k]})
			case o.capacityType == service.CapacityOnDemand:
				prices[i].USDPerHour = r.billed[j][k]
			}
		}
	}
	return prices
}

// regionReservedPrice returns the price of a reserved replica of a class in a region, the mean over its
// reservations.
func (r *review) regionReservedPrice(region *service.RegionSpec, c gpuClass) float64 {
	var sum, replicas float64
	for _, reservation := range region.Reserved {
		if m, known := catalogue.Find(region.Name.Cloud(), reservation.Type); known && c.gpu == m.GPU && c.count == r.gpusPerReplica(m) {
			sum += float64(reservation.Count) * reservation.Price
			replicas += float64(reservation.Count * (m.GPUs / c.count))
			if reservation.Price == 0 {
				r.assume("%s: the reservation of %d x %s has no price: assuming $0 per hour", region.Name, reservation.Count, reservation.Type)
			}
		}
	}
	if replicas == 0 {
		return 0
	}
	return sum / replicas
}

// reportUnusable reports the reservations of a region that no model can use.
func (r *review) reportUnusable(region *service.RegionSpec) {
	for _, reservation := range region.Reserved {
		switch m, known := catalogue.Find(region.Name.Cloud(), reservation.Type); {
		case !known:
			r.assume("%s: the GPUs of %s are unknown: the reservation is ignored", region.Name, reservation.Type)
		case r.gpusPerReplica(m) == 0:
			r.assume("%s: no model runs on %s (%d x %s): the reservation is ignored", region.Name, reservation.Type, m.GPUs, m.GPU)
		}
	}
}
