package controller

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// gpuClass is one thing that a replica can run on: GPUs of one type in one
// cloud, which has its own prices.
type gpuClass struct {
	cloud string
	gpu   string
	count int
}

// String names the class as plans show it.
func (c gpuClass) String() string {
	if c.count > 1 {
		return fmt.Sprintf("%dx%s", c.count, c.gpu)
	}
	return c.gpu
}

// unknownGPUPrice stands in for a GPU without a published price here: that of
// the dearest one, so that a plan does not choose it for being unknown.
const unknownGPUPrice = 11.0

// startUp is how long a replica takes from the order to its first token:
// SageServe's ten minutes for a VM and its model, seconds for a local process,
// nothing for a machine that is already there.
var startUp = map[string]time.Duration{
	"aws": 10 * time.Minute, "gcp": 10 * time.Minute, service.CloudLocal: 5 * time.Second, service.CloudStatic: 0,
}

// assumedTPS is what one GPU is taken to carry of an 8-billion-parameter model,
// in uncached prompt tokens a second, where nothing was measured.
var assumedTPS = map[string]float64{"L4": 1500, "A100": 6000, "H100": 12000}

// gpusOf is what a model can run on; for one that does not say, what its
// simulated profile stands for, else an L4.
func (r *review) gpusOf(m *service.Model) []service.GPU {
	if len(m.GPUs) > 0 {
		return m.GPUs
	}
	name, _, _ := strings.Cut(m.Engine.Profile, "-")
	gpu := strings.ToUpper(name)
	if _, ok := assumedTPS[gpu]; !ok {
		gpu = "L4"
	}
	r.assume("%s does not say what it runs on: one %s a replica is assumed (models[].gpus)", m.Name, gpu)
	return []service.GPU{{Type: gpu, Count: 1}}
}

// carries is what one replica carries, measured or assumed.
func (r *review) carries(m *service.Model, g service.GPU) float64 {
	if g.TPS > 0 {
		return g.TPS
	}
	one := cmp.Or(assumedTPS[g.Type], assumedTPS["L4"])
	tps := one * float64(max(1, g.Count))
	speed := ""
	if m.Engine.Kind == service.EngineSim && m.Engine.Speed > 0 && m.Engine.Speed != 1 {
		tps *= m.Engine.Speed
		speed = fmt.Sprintf(", %g times faster than life", m.Engine.Speed)
	}
	r.assume("%s on %s is not measured: %.0f uncached prompt tokens a second a replica are assumed%s (models[].gpus[].tps)", m.Name, gpuClass{gpu: g.Type, count: g.Count}, tps, speed)
	return tps
}

func ownMachines(cloud string) bool {
	return cloud == service.CloudLocal || cloud == service.CloudStatic
}

// stated is what one replica of a class costs on demand as a model of service.yaml states
// it; 0 where none does.
func (r *review) stated(c gpuClass) float64 {
	for i := range r.spec.Models {
		for _, g := range r.spec.Models[i].GPUs {
			if g.Type == c.gpu && max(1, g.Count) == c.count && g.Price > 0 {
				r.assume("%s: $%.4g an hour, as %s states it", c, g.Price, r.spec.Models[i].Name)
				return g.Price
			}
		}
	}
	return 0
}

// cheapest is the offering of a class that a region is known to have at the least price,
// paid for in one way; false where none has a price.
func (r *review) cheapest(region service.Region, c gpuClass, capacity service.CapacityType) (o provision.Offering, known bool) {
	offers := r.o.Offers[region].With(c.gpu, c.count).InOrder([]service.CapacityType{capacity})
	if len(offers) == 0 || offers[0].PricePerHour == 0 {
		return o, false
	}
	return offers[0], true
}

// onDemandIn is what one replica of a class costs on demand in a region: as a model
// states it, else as its cloud offers it, else by the list.
func (r *review) onDemandIn(region service.Region, c gpuClass) float64 {
	if price := r.stated(c); price > 0 {
		return price
	}
	if o, known := r.cheapest(region, c, service.CapacityOnDemand); known {
		r.assume("%s in %s: $%.4g an hour (%s, on demand)", c, region, o.PricePerHour, o.PriceFrom)
		return o.PricePerHour
	}
	return r.listed(region, c)
}

// spotIn is what one replica of a class costs on spot in a region, where on demand it
// costs so much.
func (r *review) spotIn(region service.Region, c gpuClass, onDemand float64) float64 {
	if o, known := r.cheapest(region, c, service.CapacitySpot); known {
		r.assume("%s in %s on spot: $%.4g an hour (%s); it can be taken back at any time", c, region, o.PricePerHour, o.PriceFrom)
		return o.PricePerHour
	}
	r.assume("%s in %s on spot: %.0f %% of the on-demand price; it can be taken back at any time", c, c.cloud, 100*spotShare)
	return spotShare * onDemand
}

// listed is what one replica of a class is planned with on demand by the list of machine types.
func (r *review) listed(region service.Region, c gpuClass) float64 {
	cloud := c.cloud
	if ownMachines(cloud) {
		cloud = service.CloudAWS
	}
	price, from := listPrice(cloud, c)
	if price == 0 {
		price, from = listPrice(service.CloudAWS, c)
	}
	switch {
	case price == 0:
		price = unknownGPUPrice * float64(c.count)
		r.assume("no price is known for %s: $%g an hour is assumed", c.gpu, unknownGPUPrice)
	case ownMachines(c.cloud):
		r.assume("%s regions are not billed; their %s are planned with at $%.4g an hour (%s, on demand)", c.cloud, c, price, from)
	case len(r.o.Offers) > 0:
		r.assume("%s in %s: $%.4g an hour (%s, on demand)", c, region, price, from)
	default:
		r.assume("%s in %s: $%.4g an hour (%s, on demand) in every region", c, c.cloud, price, from)
	}
	return price
}

// listPrice is the published price of the cheapest machine with the GPUs of a class, or
// where no machine has just so many, as much of one whose GPUs are cheapest; 0 where it
// is not known.
func listPrice(cloud string, c gpuClass) (price float64, from string) {
	part, partFrom := 0.0, ""
	for _, t := range provision.MachineTypes(cloud) {
		if t.GPU != c.gpu || t.OnDemand == 0 {
			continue
		}
		if t.GPUs == c.count && (price == 0 || t.OnDemand < price) {
			price, from = t.OnDemand, t.Type+" in "+t.From
		}
		if each := t.OnDemand / float64(t.GPUs) * float64(c.count); part == 0 || each < part {
			part, partFrom = each, t.Type+" in "+t.From+", by the GPU"
		}
	}
	if price == 0 {
		return part, partFrom
	}
	return price, from
}
