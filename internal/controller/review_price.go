package controller

import (
	"cmp"
	"fmt"
	"strings"
	"time"

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

// listPrice is what one GPU costs on demand, in USD an hour.
type listPrice struct {
	perGPU float64
	from   string
}

// listPrices are published on-demand prices for one GPU; a machine's price is
// divided by its GPUs.
var listPrices = map[string]map[string]listPrice{
	"aws": {
		"L4":   {0.8048, "g6.xlarge in us-east-1"},
		"H100": {6.88, "p5.4xlarge in us-east-1"},
	},
	"gcp": {
		"L4":   {0.7068, "g2-standard-4 in us-central1"},
		"H100": {87.83 / 8, "a3-highgpu-8g in us-east4"},
	},
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

// listPrice is what one GPU of the class is planned with.
func (r *review) listPrice(c gpuClass) listPrice {
	cloud := c.cloud
	if ownMachines(cloud) {
		cloud = "aws"
	}
	list, ok := listPrices[cloud][c.gpu]
	if !ok {
		list, ok = listPrices["aws"][c.gpu]
	}
	switch {
	case !ok:
		list = listPrice{unknownGPUPrice, ""}
		r.assume("no price is known for %s: $%g an hour is assumed", c.gpu, list.perGPU)
	case ownMachines(c.cloud):
		r.assume("%s regions are not billed; their %s are planned with at $%.4g an hour (%s, on demand)", c.cloud, c.gpu, list.perGPU, list.from)
	default:
		r.assume("%s in %s: $%.4g an hour (%s, on demand) in every region", c.gpu, c.cloud, list.perGPU, list.from)
	}
	return list
}
