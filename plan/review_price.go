package plan

import (
	"fmt"
	"strings"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
)

// gpuClass is the hardware of one replica: a number of GPUs of one type in one cloud. Each class has
// its own prices.
type gpuClass struct {
	cloud string
	gpu   string
	count int
}

// String returns the class as plans name it.
func (c gpuClass) String() string {
	if c.count > 1 {
		return fmt.Sprintf("%dx%s", c.count, c.gpu)
	}
	return c.gpu
}

// defaultGPU is the GPU of a model for which service.yaml names none. Its throughput is also assumed for unknown GPUs.
const defaultGPU = "L4"

// gpusOf returns the GPUs that a model can run on. The default is the GPU of its simulated profile,
// else an L4.
func (r *review) gpusOf(m *service.Model) []service.GPU {
	if len(m.GPUs) > 0 {
		return m.GPUs
	}
	name, _, _ := strings.Cut(m.Engine.Profile, "-")
	gpu := strings.ToUpper(name)
	if _, known := catalogue.FindGPU(gpu); !known {
		gpu = defaultGPU
	}
	r.assume("%s has no models[].gpus: assuming one %s per replica", m.Name, gpu)
	return []service.GPU{{Type: gpu, Count: 1}}
}

// replicaTPS returns the throughput of one replica, measured or assumed.
func (r *review) replicaTPS(m *service.Model, g service.GPU) float64 {
	if g.TPS > 0 {
		return g.TPS
	}
	one, known := catalogue.FindGPU(g.Type)
	if !known {
		one, _ = catalogue.FindGPU(defaultGPU)
	}
	tps := one.TPS * float64(max(1, g.Count))
	speed := ""
	if m.Engine.Kind == service.EngineSim && m.Engine.Speed > 0 && m.Engine.Speed != 1 {
		tps *= m.Engine.Speed
		speed = fmt.Sprintf(", at %gx real time", m.Engine.Speed)
	}
	r.assume("%s on %s has no measured throughput (models[].gpus[].prompt_tokens_per_second): assuming %.0f uncached prompt tokens per second per replica%s", m.Name, gpuClass{gpu: g.Type, count: g.Count}, tps, speed)
	return tps
}

func ownMachines(cloud string) bool {
	return cloud == service.CloudLocal || cloud == service.CloudStatic
}

// configuredPrice returns the on-demand price of a replica of a class that a model of service.yaml sets; 0
// where none does.
func (r *review) configuredPrice(c gpuClass) float64 {
	for i := range r.spec.Models {
		for _, g := range r.spec.Models[i].GPUs {
			if g.Type == c.gpu && max(1, g.Count) == c.count && g.Price > 0 {
				r.assume("%s: $%.4g per hour, as set for %s", c, g.Price, r.spec.Models[i].Name)
				return g.Price
			}
		}
	}
	return 0
}

// MachinePrice is a cloud's price of a machine in a region for one capacity type.
type MachinePrice struct {
	Region       service.Region
	GPU          string
	GPUs         int
	CapacityType service.CapacityType
	// USDPerHour is the price of the whole machine, above 0; Source is its source, as text.
	USDPerHour float64
	Source     string
}

// cheapestMachine returns the lowest price of a class in a region for one capacity type; false where none
// is known.
func (r *review) cheapestMachine(region service.Region, c gpuClass, capacityType service.CapacityType) (p MachinePrice, known bool) {
	for _, o := range r.options.Prices {
		if o.Region == region && o.GPU == c.gpu && o.GPUs == c.count && o.CapacityType == capacityType && (!known || o.USDPerHour < p.USDPerHour) {
			p, known = o, true
		}
	}
	return p, known
}

// onDemandPrice returns the on-demand price of a replica of a class in a region: the price that a
// model sets, else the cloud's current price, else the list price.
func (r *review) onDemandPrice(region service.Region, c gpuClass) float64 {
	if price := r.configuredPrice(c); price > 0 {
		return price
	}
	if o, known := r.cheapestMachine(region, c, service.CapacityOnDemand); known {
		r.assume("%s in %s: $%.4g per hour (%s, on demand)", c, region, o.USDPerHour, o.Source)
		return o.USDPerHour + r.localSSDPrice(c)
	}
	return r.listPrice(region, c) + r.localSSDPrice(c)
}

// localSSDPrice returns the price of the local SSDs of a replica of a class: the highest of all models, as a class
// has one price for all of them.
func (r *review) localSSDPrice(c gpuClass) (highest float64) {
	for i := range r.spec.Models {
		for _, g := range r.spec.Models[i].GPUs {
			if g.Type == c.gpu && max(1, g.Count) == c.count {
				highest = max(highest, catalogue.LocalSSDPrice(c.cloud, g))
			}
		}
	}
	if highest > 0 {
		r.assume("%s in %s: $%.4g per hour more for local SSDs (list price, on demand)", c, c.cloud, highest)
	}
	return highest
}

// spotPrice returns the spot price of a replica of a class in a region, given its on-demand price.
func (r *review) spotPrice(region service.Region, c gpuClass, onDemand float64) float64 {
	if o, known := r.cheapestMachine(region, c, service.CapacitySpot); known {
		r.assume("%s in %s on spot: $%.4g per hour (%s); subject to interruption", c, region, o.USDPerHour, o.Source)
		return o.USDPerHour + r.localSSDPrice(c)
	}
	r.assume("%s in %s on spot: %.0f %% of the on-demand price; subject to interruption", c, c.cloud, 100*catalogue.SpotShare)
	return catalogue.SpotShare * onDemand
}

// flexStartPrice returns the flex-start price of a replica of a class in a region, given its on-demand price, which
// is an upper bound.
func (r *review) flexStartPrice(region service.Region, c gpuClass, onDemand float64) float64 {
	if o, known := r.cheapestMachine(region, c, service.CapacityFlexStart); known {
		r.assume("%s in %s as flex-start: $%.4g per hour (%s); each machine is replaced before it is terminated", c, region, o.USDPerHour, o.Source)
		return o.USDPerHour + r.localSSDPrice(c)
	}
	r.assume("%s in %s as flex-start: no price known: assuming the on-demand price; each machine is replaced before it is terminated", c, region)
	return onDemand
}

// listPrice returns the planned on-demand price of a replica of a class from the list of machine
// types.
func (r *review) listPrice(region service.Region, c gpuClass) float64 {
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
		r.assume("no price known for %s: assuming $%g per hour", c.gpu, catalogue.UnknownGPUPrice)
	case ownMachines(c.cloud):
		r.assume("%s regions are not billed; %s is planned at $%.4g per hour (%s, on demand)", c.cloud, c, price, from)
	case len(r.options.Prices) > 0:
		r.assume("%s in %s: $%.4g per hour (%s, on demand)", c, region, price, from)
	default:
		r.assume("%s in %s: $%.4g per hour (%s, on demand) in every region", c, c.cloud, price, from)
	}
	return price
}
