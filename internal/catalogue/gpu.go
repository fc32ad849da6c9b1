package catalogue

import (
	"slices"
	"time"

	"skyserve/internal/service"
)

// GPU is a GPU type by its name in service.yaml.
type GPU struct {
	Name string
	// TPS is the assumed throughput of one GPU if it is not measured: for a model of 8 billion
	// parameters, in uncached prompt tokens per second.
	TPS float64
	// Quota is Google's on-demand quota of a region. It is empty if a quota of the GPU family applies,
	// which Compute Engine does not report: Family is its name. SpotQuota is the quota of spot machines. All
	// are empty for a GPU that Google does not rent out.
	Quota, SpotQuota string
	Family           string
}

// gpus is the table. TPS of L4, A100 and H100 are round assumptions. The others are derived from the L4
// (A10G, L40S) and the H100 (H200) by the geometric mean of the ratios of dense BF16 compute and of memory
// bandwidth in NVIDIA's data sheets: L4 121 TFLOPS and 300 GB/s, A10G 70 and 600, L40S 362 and 864, H100
// 989 and 3350, H200 989 and 4800.
var gpus = []GPU{
	{Name: "L4", TPS: 1500, Quota: "NVIDIA_L4_GPUS", SpotQuota: "PREEMPTIBLE_NVIDIA_L4_GPUS"},
	{Name: "A10G", TPS: 1600},
	{Name: "L40S", TPS: 4400},
	{Name: "A100", TPS: 6000, Quota: "NVIDIA_A100_GPUS", SpotQuota: "PREEMPTIBLE_NVIDIA_A100_GPUS"},
	{Name: "H100", TPS: 12000, SpotQuota: "PREEMPTIBLE_NVIDIA_H100_GPUS", Family: "NVIDIA_H100"},
	{Name: "H200", TPS: 14400, SpotQuota: "PREEMPTIBLE_NVIDIA_H200_GPUS", Family: "NVIDIA_H200"},
}

// GPUs returns the GPU types, the smallest first.
func GPUs() []GPU { return slices.Clone(gpus) }

// FindGPU returns a GPU type by its name; false if it is unknown.
func FindGPU(name string) (GPU, bool) {
	i := slices.IndexFunc(gpus, func(g GPU) bool { return g.Name == name })
	if i < 0 {
		return GPU{}, false
	}
	return gpus[i], true
}

// Defaults for values that are neither measured nor configured.
const (
	// SpotShare is the assumed spot price as a share of the on-demand price: Google discounts spot by
	// 60 % or more, AWS by up to 90 %.
	SpotShare = 0.4
	// ReservedShare is the assumed price of a commitment as a share of the on-demand price: $37.56 of
	// $98.32 for three years of a p5.48xlarge (SkyLB 2.1).
	ReservedShare = 37.56 / 98.32
	// UnknownGPUPrice is the assumed price per hour of a GPU without a list price. It is that of the
	// most expensive GPU, so that a plan does not prefer an unknown price.
	UnknownGPUPrice = 11.0
	// MachineBoot is the part of StartUp that is saved when a replica reuses the machine of another
	// model: only its own model has to load (SageServe 2.2).
	MachineBoot = 2 * time.Minute
)

// StartUp returns the time from the launch of a replica to its first token: ten minutes in a cloud
// (SageServe), seconds for a local process, and zero for an existing machine.
func StartUp(cloud string) time.Duration {
	switch cloud {
	case service.CloudAWS, service.CloudGCP:
		return 10 * time.Minute
	case service.CloudLocal:
		return 5 * time.Second
	}
	return 0
}
