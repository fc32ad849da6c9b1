package catalogue

import (
	"slices"
	"time"

	"skyserve/internal/service"
)

// GPU is a kind of GPU as models name it.
type GPU struct {
	Name string
	// TPS is what one is taken to carry of an 8-billion-parameter model, in uncached
	// prompt tokens a second, where nothing was measured.
	TPS float64
	// Quota is Google's of a region, on demand; empty where that of a family counts, which
	// Compute Engine does not tell. SpotQuota is that of spot machines.
	Quota, SpotQuota string
}

var gpus = []GPU{
	{Name: "L4", TPS: 1500, Quota: "NVIDIA_L4_GPUS", SpotQuota: "PREEMPTIBLE_NVIDIA_L4_GPUS"},
	{Name: "A100", TPS: 6000, Quota: "NVIDIA_A100_GPUS", SpotQuota: "PREEMPTIBLE_NVIDIA_A100_GPUS"},
	{Name: "H100", TPS: 12000, SpotQuota: "PREEMPTIBLE_NVIDIA_H100_GPUS"},
}

// GPUs are the kinds of GPUs, the smallest first.
func GPUs() []GPU { return slices.Clone(gpus) }

// FindGPU finds a kind of GPU by its name; false when it is not known.
func FindGPU(name string) (GPU, bool) {
	i := slices.IndexFunc(gpus, func(g GPU) bool { return g.Name == name })
	if i < 0 {
		return GPU{}, false
	}
	return gpus[i], true
}

// Defaults where nothing is measured or configured.
const (
	// SpotShare is the share of the on-demand price that a spot machine is planned with:
	// Google sells spot at 60 % off or more, AWS at up to 90 % off.
	SpotShare = 0.4
	// ReservedShare is what a commitment is taken to cost of the on-demand price: $37.56
	// of $98.32 for three years of a p5.48xlarge (SkyLB 2.1).
	ReservedShare = 37.56 / 98.32
	// UnknownGPUPrice is that of an hour of a GPU without a published price here: that of
	// the most expensive one, so that a plan does not choose it for being unknown.
	UnknownGPUPrice = 11.0
	// MachineBoot is what of StartUp a machine that another model gives up does not need
	// again: it runs already, only its model is brought up (SageServe 2.2).
	MachineBoot = 2 * time.Minute
)

// StartUp is how long a replica takes in a cloud from the order to its first token:
// SageServe's ten minutes for a machine and its model, seconds for a local process,
// nothing for a machine that is already there.
func StartUp(cloud string) time.Duration {
	switch cloud {
	case service.CloudAWS, service.CloudGCP:
		return 10 * time.Minute
	case service.CloudLocal:
		return 5 * time.Second
	}
	return 0
}
