// Package catalogue is the only table of the machines that clouds rent out and of their GPUs:
// hardware, list prices and quotas. Plans and launches use the same entries. The package does no I/O.
//
// Read this file first (machines), then gpu.go (GPUs, and defaults for unknown values) and quota.go.
package catalogue

import (
	"cmp"
	"slices"

	"skyserve/internal/service"
)

// Machine is a machine type that a cloud rents out.
type Machine struct {
	Cloud string // aws, gcp
	Type  string
	GPU   string // a name of GPUs; empty = none
	GPUs  int
	// GPUMemoryGB is the memory of each GPU.
	GPUMemoryGB int
	VCPUs       int
	// MemoryGiB is the main memory, which Google bills separately.
	MemoryGiB int
	// OnDemand and Spot are list prices in USD per hour in the region From; 0 = unknown. The spot price
	// was observed once. A type that is a part of an eight-GPU machine has that part of its price.
	// Prices of other regions differ by about ten percent. Current prices of the cloud, and prices in
	// service.yaml, have precedence.
	OnDemand float64
	Spot     float64
	From     string
	// NotLaunched is the reason why the type is never launched; empty = it can be launched. Reserved
	// capacity of a service may still be of this type.
	NotLaunched string
	// Disk is the type of boot disk that Google requires; empty = pd-balanced.
	Disk string
	// NotOnDemand: the cloud sells the type as spot, as flex-start (SellsFlexStart) and reserved, but not on demand.
	// OnDemand is then only the basis of an unknown spot price: a published price, or the part of that of the machine
	// with eight GPUs.
	NotOnDemand bool
}

// Reasons for types that are known but not launched.
const (
	// sameGPUs: a cheaper type of the table has the same GPUs.
	sameGPUs = "a cheaper type has the same GPUs"
	// sixteen: no model may request so many GPUs.
	sixteen = "a replica has at most eight GPUs"
	// localDisks: the table has no list price of the machine itself, only those of its local SSDs.
	localDisks = "its price without its local SSDs, which are billed separately, is unknown"
	// noListPrice: no on-demand price is published for the type.
	noListPrice = "its on-demand price is unknown"
)

// machines is the table. Types have the names of the clouds' documentation. Prices of AWS, unless said below, are
// for Linux in us-east-1, as published in July 2026
// (https://aws.amazon.com/ec2/pricing/on-demand/). Prices of Google are the list prices of the
// region From (https://cloud.google.com/compute/all-pricing). Those of A2 are from third parties
// in November 2026: 3.673385 per GPU with its vCPUs and memory. Prices of G5, G6e and P5en are for Linux in
// us-east-1, from AWS's price list as third parties read it in August and September 2026. That of A3 Ultra
// is from https://cloud.google.com/products/compute/gpus-pricing as third parties read it in September 2026.
// Types that Google does not sell on demand are A3 High with fewer than eight GPUs, and A3 Ultra
// (https://cloud.google.com/compute/docs/accelerator-optimized-machines, November 2026).
var machines = []Machine{
	{Cloud: service.CloudAWS, Type: "g6.xlarge", GPU: "L4", GPUs: 1, GPUMemoryGB: 24, VCPUs: 4, MemoryGiB: 16, OnDemand: 0.8048, Spot: 0.40, From: "us-east-1"},
	{Cloud: service.CloudAWS, Type: "g6.2xlarge", GPU: "L4", GPUs: 1, GPUMemoryGB: 24, VCPUs: 8, MemoryGiB: 32, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "g6.4xlarge", GPU: "L4", GPUs: 1, GPUMemoryGB: 24, VCPUs: 16, MemoryGiB: 64, OnDemand: 1.3232, From: "us-east-1"},
	{Cloud: service.CloudAWS, Type: "g6.8xlarge", GPU: "L4", GPUs: 1, GPUMemoryGB: 24, VCPUs: 32, MemoryGiB: 128, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "g6.16xlarge", GPU: "L4", GPUs: 1, GPUMemoryGB: 24, VCPUs: 64, MemoryGiB: 256, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "gr6.4xlarge", GPU: "L4", GPUs: 1, GPUMemoryGB: 24, VCPUs: 16, MemoryGiB: 128, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "gr6.8xlarge", GPU: "L4", GPUs: 1, GPUMemoryGB: 24, VCPUs: 32, MemoryGiB: 256, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "g6.12xlarge", GPU: "L4", GPUs: 4, GPUMemoryGB: 24, VCPUs: 48, MemoryGiB: 192, OnDemand: 4.6016, From: "us-east-1"},
	{Cloud: service.CloudAWS, Type: "g6.24xlarge", GPU: "L4", GPUs: 4, GPUMemoryGB: 24, VCPUs: 96, MemoryGiB: 384, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "g6.48xlarge", GPU: "L4", GPUs: 8, GPUMemoryGB: 24, VCPUs: 192, MemoryGiB: 768, OnDemand: 13.3504, From: "us-east-1"},
	{Cloud: service.CloudAWS, Type: "g5.xlarge", GPU: "A10G", GPUs: 1, GPUMemoryGB: 24, VCPUs: 4, MemoryGiB: 16, OnDemand: 1.006, From: "us-east-1"},
	{Cloud: service.CloudAWS, Type: "g5.2xlarge", GPU: "A10G", GPUs: 1, GPUMemoryGB: 24, VCPUs: 8, MemoryGiB: 32, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "g5.4xlarge", GPU: "A10G", GPUs: 1, GPUMemoryGB: 24, VCPUs: 16, MemoryGiB: 64, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "g5.8xlarge", GPU: "A10G", GPUs: 1, GPUMemoryGB: 24, VCPUs: 32, MemoryGiB: 128, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "g5.16xlarge", GPU: "A10G", GPUs: 1, GPUMemoryGB: 24, VCPUs: 64, MemoryGiB: 256, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "g5.12xlarge", GPU: "A10G", GPUs: 4, GPUMemoryGB: 24, VCPUs: 48, MemoryGiB: 192, OnDemand: 5.672, From: "us-east-1"},
	{Cloud: service.CloudAWS, Type: "g5.24xlarge", GPU: "A10G", GPUs: 4, GPUMemoryGB: 24, VCPUs: 96, MemoryGiB: 384, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "g5.48xlarge", GPU: "A10G", GPUs: 8, GPUMemoryGB: 24, VCPUs: 192, MemoryGiB: 768, OnDemand: 16.288, From: "us-east-1"},
	{Cloud: service.CloudAWS, Type: "g6e.xlarge", GPU: "L40S", GPUs: 1, GPUMemoryGB: 48, VCPUs: 4, MemoryGiB: 32, OnDemand: 1.861, From: "us-east-1"},
	{Cloud: service.CloudAWS, Type: "g6e.2xlarge", GPU: "L40S", GPUs: 1, GPUMemoryGB: 48, VCPUs: 8, MemoryGiB: 64, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "g6e.4xlarge", GPU: "L40S", GPUs: 1, GPUMemoryGB: 48, VCPUs: 16, MemoryGiB: 128, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "g6e.8xlarge", GPU: "L40S", GPUs: 1, GPUMemoryGB: 48, VCPUs: 32, MemoryGiB: 256, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "g6e.16xlarge", GPU: "L40S", GPUs: 1, GPUMemoryGB: 48, VCPUs: 64, MemoryGiB: 512, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "g6e.12xlarge", GPU: "L40S", GPUs: 4, GPUMemoryGB: 48, VCPUs: 48, MemoryGiB: 384, OnDemand: 10.49264, From: "us-east-1"},
	{Cloud: service.CloudAWS, Type: "g6e.24xlarge", GPU: "L40S", GPUs: 4, GPUMemoryGB: 48, VCPUs: 96, MemoryGiB: 768, NotLaunched: sameGPUs},
	{Cloud: service.CloudAWS, Type: "g6e.48xlarge", GPU: "L40S", GPUs: 8, GPUMemoryGB: 48, VCPUs: 192, MemoryGiB: 1536, OnDemand: 30.13118, From: "us-east-1"},
	{Cloud: service.CloudAWS, Type: "p4d.24xlarge", GPU: "A100", GPUs: 8, GPUMemoryGB: 40, VCPUs: 96, MemoryGiB: 1152, OnDemand: 21.957642, From: "us-east-1"},
	{Cloud: service.CloudAWS, Type: "p4de.24xlarge", GPU: "A100", GPUs: 8, GPUMemoryGB: 80, VCPUs: 96, MemoryGiB: 1152, OnDemand: 27.44705, From: "us-east-1"},
	{Cloud: service.CloudAWS, Type: "p5.4xlarge", GPU: "H100", GPUs: 1, GPUMemoryGB: 80, VCPUs: 16, MemoryGiB: 256, OnDemand: 6.88, From: "us-east-1"},
	{Cloud: service.CloudAWS, Type: "p5.48xlarge", GPU: "H100", GPUs: 8, GPUMemoryGB: 80, VCPUs: 192, MemoryGiB: 2048, OnDemand: 55.04, From: "us-east-1"},
	{Cloud: service.CloudAWS, Type: "p5e.48xlarge", GPU: "H200", GPUs: 8, GPUMemoryGB: 141, VCPUs: 192, MemoryGiB: 2048, NotLaunched: noListPrice},
	{Cloud: service.CloudAWS, Type: "p5en.48xlarge", GPU: "H200", GPUs: 8, GPUMemoryGB: 141, VCPUs: 192, MemoryGiB: 2048, OnDemand: 63.296, From: "us-east-1"},
	{Cloud: service.CloudAWS, Type: "c7i.large", VCPUs: 2, MemoryGiB: 4, OnDemand: 0.08925, From: "us-east-1"},

	{Cloud: service.CloudGCP, Type: "g2-standard-4", GPU: "L4", GPUs: 1, GPUMemoryGB: 24, VCPUs: 4, MemoryGiB: 16, OnDemand: 0.7068, Spot: 0.2818, From: "us-central1"},
	{Cloud: service.CloudGCP, Type: "g2-standard-8", GPU: "L4", GPUs: 1, GPUMemoryGB: 24, VCPUs: 8, MemoryGiB: 32, NotLaunched: sameGPUs},
	{Cloud: service.CloudGCP, Type: "g2-standard-12", GPU: "L4", GPUs: 1, GPUMemoryGB: 24, VCPUs: 12, MemoryGiB: 48, NotLaunched: sameGPUs},
	{Cloud: service.CloudGCP, Type: "g2-standard-16", GPU: "L4", GPUs: 1, GPUMemoryGB: 24, VCPUs: 16, MemoryGiB: 64, NotLaunched: sameGPUs},
	{Cloud: service.CloudGCP, Type: "g2-standard-32", GPU: "L4", GPUs: 1, GPUMemoryGB: 24, VCPUs: 32, MemoryGiB: 128, NotLaunched: sameGPUs},
	{Cloud: service.CloudGCP, Type: "g2-standard-24", GPU: "L4", GPUs: 2, GPUMemoryGB: 24, VCPUs: 24, MemoryGiB: 96, OnDemand: 2.0008, From: "us-central1"},
	{Cloud: service.CloudGCP, Type: "g2-standard-48", GPU: "L4", GPUs: 4, GPUMemoryGB: 24, VCPUs: 48, MemoryGiB: 192, OnDemand: 4.0016, From: "us-central1"},
	{Cloud: service.CloudGCP, Type: "g2-standard-96", GPU: "L4", GPUs: 8, GPUMemoryGB: 24, VCPUs: 96, MemoryGiB: 384, OnDemand: 8.0031, From: "us-central1"},
	{Cloud: service.CloudGCP, Type: "a2-highgpu-1g", GPU: "A100", GPUs: 1, GPUMemoryGB: 40, VCPUs: 12, MemoryGiB: 85, OnDemand: 3.673385, From: "us-central1"},
	{Cloud: service.CloudGCP, Type: "a2-highgpu-2g", GPU: "A100", GPUs: 2, GPUMemoryGB: 40, VCPUs: 24, MemoryGiB: 170, OnDemand: 7.34677, From: "us-central1"},
	{Cloud: service.CloudGCP, Type: "a2-highgpu-4g", GPU: "A100", GPUs: 4, GPUMemoryGB: 40, VCPUs: 48, MemoryGiB: 340, OnDemand: 14.69354, From: "us-central1"},
	{Cloud: service.CloudGCP, Type: "a2-highgpu-8g", GPU: "A100", GPUs: 8, GPUMemoryGB: 40, VCPUs: 96, MemoryGiB: 680, OnDemand: 29.38708, From: "us-central1"},
	{Cloud: service.CloudGCP, Type: "a2-megagpu-16g", GPU: "A100", GPUs: 16, GPUMemoryGB: 40, VCPUs: 96, MemoryGiB: 1360, NotLaunched: sixteen},
	{Cloud: service.CloudGCP, Type: "a2-ultragpu-1g", GPU: "A100", GPUs: 1, GPUMemoryGB: 80, VCPUs: 12, MemoryGiB: 170, NotLaunched: localDisks},
	{Cloud: service.CloudGCP, Type: "a2-ultragpu-2g", GPU: "A100", GPUs: 2, GPUMemoryGB: 80, VCPUs: 24, MemoryGiB: 340, NotLaunched: localDisks},
	{Cloud: service.CloudGCP, Type: "a2-ultragpu-4g", GPU: "A100", GPUs: 4, GPUMemoryGB: 80, VCPUs: 48, MemoryGiB: 680, NotLaunched: localDisks},
	{Cloud: service.CloudGCP, Type: "a2-ultragpu-8g", GPU: "A100", GPUs: 8, GPUMemoryGB: 80, VCPUs: 96, MemoryGiB: 1360, NotLaunched: localDisks},
	{Cloud: service.CloudGCP, Type: "a3-highgpu-1g", GPU: "H100", GPUs: 1, GPUMemoryGB: 80, VCPUs: 26, MemoryGiB: 234, OnDemand: 87.83 / 8, From: "us-east4", NotOnDemand: true},
	{Cloud: service.CloudGCP, Type: "a3-highgpu-2g", GPU: "H100", GPUs: 2, GPUMemoryGB: 80, VCPUs: 52, MemoryGiB: 468, OnDemand: 87.83 / 4, From: "us-east4", NotOnDemand: true},
	{Cloud: service.CloudGCP, Type: "a3-highgpu-4g", GPU: "H100", GPUs: 4, GPUMemoryGB: 80, VCPUs: 104, MemoryGiB: 936, OnDemand: 87.83 / 2, From: "us-east4", NotOnDemand: true},
	{Cloud: service.CloudGCP, Type: "a3-highgpu-8g", GPU: "H100", GPUs: 8, GPUMemoryGB: 80, VCPUs: 208, MemoryGiB: 1872, OnDemand: 87.83, From: "us-east4"},
	{Cloud: service.CloudGCP, Type: "a3-megagpu-8g", GPU: "H100", GPUs: 8, GPUMemoryGB: 80, VCPUs: 208, MemoryGiB: 1872, NotLaunched: sameGPUs},
	{Cloud: service.CloudGCP, Type: "a3-ultragpu-8g", GPU: "H200", GPUs: 8, GPUMemoryGB: 141, VCPUs: 224, MemoryGiB: 2952, OnDemand: 84.806908493, From: "us-central1", Disk: "hyperdisk-balanced", NotOnDemand: true},
	{Cloud: service.CloudGCP, Type: "e2-standard-2", VCPUs: 2, MemoryGiB: 8, OnDemand: 0.06701, From: "us-central1"},
}

// Find returns a machine type of a cloud; false if it is not in the table.
func Find(cloud, name string) (Machine, bool) {
	i := slices.IndexFunc(machines, func(m Machine) bool { return m.Cloud == cloud && m.Type == name })
	if i < 0 {
		return Machine{}, false
	}
	return machines[i], true
}

// Launchable returns the machine types of a cloud that can be launched, sorted by type.
func Launchable(cloud string) []Machine {
	var out []Machine
	for _, m := range machines {
		if m.Cloud == cloud && m.NotLaunched == "" {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b Machine) int { return cmp.Compare(a.Type, b.Type) })
	return out
}

// Rents reports whether a cloud rents out machines with exactly these GPUs that can be launched. For a cloud
// without machine types, such as local, it is true.
func Rents(cloud, gpu string, count int) bool {
	if !slices.ContainsFunc(machines, func(m Machine) bool { return m.Cloud == cloud }) {
		return true
	}
	return slices.Contains(Counts(cloud, gpu), count)
}

// Counts returns the numbers of GPUs of a type in the machines of a cloud that can be launched, sorted.
func Counts(cloud, gpu string) []int {
	var counts []int
	for _, m := range Launchable(cloud) {
		if m.GPU == gpu {
			counts = append(counts, m.GPUs)
		}
	}
	slices.Sort(counts)
	return slices.Compact(counts)
}

// Alternatives describes what a cloud rents instead of a GPU type and number that it does not rent: the numbers of this
// type in one machine, such as "1, 4 or 8", or, if counts is false, the types that it rents.
func Alternatives(cloud, gpu string) (list string, counts bool) {
	if n := Counts(cloud, gpu); len(n) > 0 {
		return orList(n), true
	}
	var types []string
	for _, m := range Launchable(cloud) {
		if m.GPU != "" {
			types = append(types, m.GPU)
		}
	}
	slices.Sort(types)
	return orList(slices.Compact(types)), false
}

// SellsFlexStart reports whether a cloud sells machines with GPUs as flex-start: Google does for all
// accelerator-optimized types of this table
// (https://cloud.google.com/compute/docs/instances/about-flex-start-vms, November 2026).
func SellsFlexStart(cloud string) bool { return cloud == service.CloudGCP }

// SellsOnDemand reports whether a cloud sells machines with exactly these GPUs on demand. It is false where no such
// machine of the table is sold on demand, and true if the table has none.
func SellsOnDemand(cloud, gpu string, count int) bool {
	notOnDemand := false
	for _, m := range Launchable(cloud) {
		if m.GPU == gpu && m.GPUs == count {
			if !m.NotOnDemand {
				return true
			}
			notOnDemand = true
		}
	}
	return !notOnDemand
}

// ListPrice returns the on-demand list price of the cheapest machine of a cloud with exactly this
// number of GPUs that is sold on demand. If there is none, it returns the proportional price of the machine with the cheapest
// GPUs; 0 if that is unknown. from describes the source of the price.
func ListPrice(cloud, gpu string, count int) (usd float64, from string) {
	part, partFrom, partNotOnDemand := 0.0, "", false
	for _, m := range Launchable(cloud) {
		if m.GPU != gpu || m.OnDemand == 0 {
			continue
		}
		if m.GPUs == count && !m.NotOnDemand && (usd == 0 || m.OnDemand < usd) {
			usd, from = m.OnDemand, m.Type+" in "+m.From
		}
		if each := m.OnDemand / float64(m.GPUs) * float64(count); part == 0 || each < part || each == part && partNotOnDemand && !m.NotOnDemand {
			part, partFrom, partNotOnDemand = each, m.Type+" in "+m.From+", by the GPU", m.NotOnDemand
		}
	}
	if usd == 0 {
		return part, partFrom
	}
	return usd, from
}

// SameGPUs returns the types of a cloud with exactly these GPUs, sorted, including those that are never
// launched.
func SameGPUs(cloud, gpu string, count int) []string {
	var names []string
	for _, m := range machines {
		if m.Cloud == cloud && m.GPU == gpu && m.GPUs == count {
			names = append(names, m.Type)
		}
	}
	slices.Sort(names)
	return names
}
