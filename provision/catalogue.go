package provision

import (
	"skyserve/internal/catalogue"
	"skyserve/internal/service"
)

// MachineType is a machine type of the catalogue.
type MachineType struct{ catalogue.Machine }

// MachineTypes returns the machine types of a cloud that can be launched, sorted by type.
func MachineTypes(cloud string) []MachineType {
	var types []MachineType
	for _, m := range catalogue.Launchable(cloud) {
		types = append(types, MachineType{m})
	}
	return types
}

// MachineTypeOf finds a launchable machine type by name; false if there is none.
func MachineTypeOf(cloud, name string) (MachineType, bool) {
	m, known := catalogue.Find(cloud, name)
	return MachineType{m}, known && m.NotLaunched == ""
}

// Offering returns the offering of this type in a zone, at the catalogue's list price.
func (t MachineType) Offering(region service.Region, zone string, capacity service.CapacityType) Offering {
	o := Offering{Type: t.Type, Region: region, Zone: zone, Capacity: capacity, GPU: t.GPU, GPUs: t.GPUs, VCPUs: t.VCPUs}
	switch capacity {
	case service.CapacitySpot:
		o.PricePerHour = t.Spot
	case service.CapacityOnDemand, service.CapacityReserved:
		o.PricePerHour = t.OnDemand
	}
	if o.PricePerHour > 0 {
		o.PriceSource = "list price in " + t.From
	}
	return o
}
