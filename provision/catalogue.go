package provision

import (
	"cmp"
	"slices"

	"skyserve/internal/service"
)

// MachineType is a type of machine that a cloud rents out.
type MachineType struct {
	Cloud string // aws, gcp
	Type  string
	GPU   string // empty = none
	GPUs  int
	VCPUs int
	// MemoryGiB is its main memory: Google bills it apart.
	MemoryGiB int
	// OnDemand and Spot are USD an hour in the region From, the spot price as it was
	// seen once; 0 = not known. Parts of an eight-GPU machine are priced as its parts.
	// Other regions differ by some ten percent; what the cloud itself says (Price), or
	// service.yaml, goes before these.
	OnDemand float64
	Spot     float64
	From     string
}

// catalogue is the machine types that replicas and balancers run on. Types with
// the GPUs that models are served on today, one type for balancers a cloud.
var catalogue = []MachineType{
	{service.CloudAWS, "g6.xlarge", "L4", 1, 4, 16, 0.8048, 0.40, "us-east-1"},
	{service.CloudAWS, "g6.4xlarge", "L4", 1, 16, 64, 1.3232, 0, "us-east-1"},
	{service.CloudAWS, "g6.12xlarge", "L4", 4, 48, 192, 4.6016, 0, "us-east-1"},
	{service.CloudAWS, "g6.48xlarge", "L4", 8, 192, 768, 13.3504, 0, "us-east-1"},
	{service.CloudAWS, "p5.4xlarge", "H100", 1, 16, 256, 6.88, 0, "us-east-1"},
	{service.CloudAWS, "p5.48xlarge", "H100", 8, 192, 2048, 55.04, 0, "us-east-1"},
	{service.CloudAWS, "c7i.large", "", 0, 2, 4, 0.08925, 0, "us-east-1"},
	{service.CloudGCP, "g2-standard-4", "L4", 1, 4, 16, 0.7068, 0.2818, "us-central1"},
	{service.CloudGCP, "g2-standard-24", "L4", 2, 24, 96, 2.0008, 0, "us-central1"},
	{service.CloudGCP, "g2-standard-48", "L4", 4, 48, 192, 4.0016, 0, "us-central1"},
	{service.CloudGCP, "g2-standard-96", "L4", 8, 96, 384, 8.0031, 0, "us-central1"},
	{service.CloudGCP, "a3-highgpu-1g", "H100", 1, 26, 234, 87.83 / 8, 0, "us-east4"},
	{service.CloudGCP, "a3-highgpu-2g", "H100", 2, 52, 468, 87.83 / 4, 0, "us-east4"},
	{service.CloudGCP, "a3-highgpu-4g", "H100", 4, 104, 936, 87.83 / 2, 0, "us-east4"},
	{service.CloudGCP, "a3-highgpu-8g", "H100", 8, 208, 1872, 87.83, 0, "us-east4"},
	{service.CloudGCP, "e2-standard-2", "", 0, 2, 8, 0.06701, 0, "us-central1"},
}

// MachineTypes are the known machine types of a cloud, by type.
func MachineTypes(cloud string) []MachineType {
	var types []MachineType
	for _, t := range catalogue {
		if t.Cloud == cloud {
			types = append(types, t)
		}
	}
	slices.SortFunc(types, func(a, b MachineType) int { return cmp.Compare(a.Type, b.Type) })
	return types
}

// MachineTypeOf finds a machine type; false when it is not in the catalogue.
func MachineTypeOf(cloud, name string) (MachineType, bool) {
	i := slices.IndexFunc(catalogue, func(t MachineType) bool { return t.Cloud == cloud && t.Type == name })
	if i < 0 {
		return MachineType{}, false
	}
	return catalogue[i], true
}

// Offer is the type as it is offered in a zone, priced by the catalogue.
func (t MachineType) Offer(region service.Region, zone string, capacity service.CapacityType) Offering {
	o := Offering{Type: t.Type, Region: region, Zone: zone, Capacity: capacity, GPU: t.GPU, GPUs: t.GPUs, VCPUs: t.VCPUs}
	switch capacity {
	case service.CapacitySpot:
		o.PricePerHour = t.Spot
	case service.CapacityOnDemand, service.CapacityReserved:
		o.PricePerHour = t.OnDemand
	}
	if o.PricePerHour > 0 {
		o.PriceFrom = "list price in " + t.From
	}
	return o
}
