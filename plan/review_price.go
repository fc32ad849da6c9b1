package plan

import (
	"fmt"
	"strings"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
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

// usualGPU is the GPU that is meant where a service names none that is known.
const usualGPU = "L4"

// gpusOf is what a model can run on; for one that does not say, what its
// simulated profile stands for, else an L4.
func (r *review) gpusOf(m *service.Model) []service.GPU {
	if len(m.GPUs) > 0 {
		return m.GPUs
	}
	name, _, _ := strings.Cut(m.Engine.Profile, "-")
	gpu := strings.ToUpper(name)
	if _, known := catalogue.FindGPU(gpu); !known {
		gpu = usualGPU
	}
	r.assume("%s does not say what it runs on: one %s a replica is assumed (models[].gpus)", m.Name, gpu)
	return []service.GPU{{Type: gpu, Count: 1}}
}

// carries is what one replica carries, measured or assumed.
func (r *review) carries(m *service.Model, g service.GPU) float64 {
	if g.TPS > 0 {
		return g.TPS
	}
	one, known := catalogue.FindGPU(g.Type)
	if !known {
		one, _ = catalogue.FindGPU(usualGPU)
	}
	tps := one.TPS * float64(max(1, g.Count))
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

// MachinePrice is what a cloud asks for a machine in a region, paid for in one way.
type MachinePrice struct {
	Region   service.Region
	GPU      string
	GPUs     int
	Capacity service.CapacityType
	// USDPerHour is of the whole machine, above 0; From says whose word it is, for people.
	USDPerHour float64
	From       string
}

// cheapest is the least price of a class in a region, paid for in one way; false where none
// is known.
func (r *review) cheapest(region service.Region, c gpuClass, capacity service.CapacityType) (p MachinePrice, known bool) {
	for _, o := range r.o.Prices {
		if o.Region == region && o.GPU == c.gpu && o.GPUs == c.count && o.Capacity == capacity && (!known || o.USDPerHour < p.USDPerHour) {
			p, known = o, true
		}
	}
	return p, known
}

// onDemandIn is what one replica of a class costs on demand in a region: as a model
// states it, else as its cloud offers it, else by the list.
func (r *review) onDemandIn(region service.Region, c gpuClass) float64 {
	if price := r.stated(c); price > 0 {
		return price
	}
	if o, known := r.cheapest(region, c, service.CapacityOnDemand); known {
		r.assume("%s in %s: $%.4g an hour (%s, on demand)", c, region, o.USDPerHour, o.From)
		return o.USDPerHour
	}
	return r.listed(region, c)
}

// spotIn is what one replica of a class costs on spot in a region, where on demand it
// costs so much.
func (r *review) spotIn(region service.Region, c gpuClass, onDemand float64) float64 {
	if o, known := r.cheapest(region, c, service.CapacitySpot); known {
		r.assume("%s in %s on spot: $%.4g an hour (%s); it can be taken back at any time", c, region, o.USDPerHour, o.From)
		return o.USDPerHour
	}
	r.assume("%s in %s on spot: %.0f %% of the on-demand price; it can be taken back at any time", c, c.cloud, 100*catalogue.SpotShare)
	return catalogue.SpotShare * onDemand
}

// listed is what one replica of a class is planned with on demand by the list of machine types.
func (r *review) listed(region service.Region, c gpuClass) float64 {
	cloud := c.cloud
	if ownMachines(cloud) {
		cloud = service.CloudAWS
	}
	price, from := catalogue.ListPrice(cloud, c.gpu, c.count)
	if price == 0 {
		price, from = catalogue.ListPrice(service.CloudAWS, c.gpu, c.count)
	}
	switch {
	case price == 0:
		price = catalogue.UnknownGPUPrice * float64(c.count)
		r.assume("no price is known for %s: $%g an hour is assumed", c.gpu, catalogue.UnknownGPUPrice)
	case ownMachines(c.cloud):
		r.assume("%s regions are not billed; their %s are planned with at $%.4g an hour (%s, on demand)", c.cloud, c, price, from)
	case len(r.o.Prices) > 0:
		r.assume("%s in %s: $%.4g an hour (%s, on demand)", c, region, price, from)
	default:
		r.assume("%s in %s: $%.4g an hour (%s, on demand) in every region", c, c.cloud, price, from)
	}
	return price
}
