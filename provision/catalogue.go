package provision

import (
	"skyserve/internal/catalogue"
	"skyserve/internal/service"
)

// MachineType is a type of machine of the catalogue.
type MachineType struct{ catalogue.Machine }

// MachineTypes are the machine types of a cloud that can be launched, by type.
func MachineTypes(cloud string) []MachineType {
	var types []MachineType
	for _, m := range catalogue.Launchable(cloud) {
		types = append(types, MachineType{m})
	}
	return types
}

// MachineTypeOf finds a machine type that can be launched; false when there is none of
// the name.
func MachineTypeOf(cloud, name string) (MachineType, bool) {
	m, known := catalogue.Find(cloud, name)
	return MachineType{m}, known && m.PlanOnly == ""
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
