package deploy

import (
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// ChoiceError is a GPU or capacity type that service.yaml does not allow.
type ChoiceError struct {
	Flag    string   // flag: gpu or capacity
	Source  string   // the kind of value and where service.yaml lists the choices
	Allowed []string // the allowed values; empty = none configured
	Value   string
}

// Error returns a message with the allowed values.
func (e *ChoiceError) Error() string {
	choices := strings.Join(e.Allowed, ", ")
	if choices == "" {
		choices = "none configured"
	}
	return fmt.Sprintf("--%s must be %s (%s), got %q", e.Flag, e.Source, choices, e.Value)
}

// ChooseClass returns the class of a replica's machine: its GPU, such as L4 or 8xH100, and its capacity type. Both must be
// allowed by service.yaml for the model and region; empty values mean any. The error is a *ChoiceError.
func ChooseClass(m *service.Model, r service.RegionSpec, gpu, capacity string) (provision.ReplicaClass, error) {
	class := provision.ParseReplicaClass(gpu, capacity)
	var gpus, capacities []string
	known := gpu == ""
	for _, g := range m.GPUs {
		one := provision.ReplicaClass{GPU: g.Type, GPUs: max(1, g.Count)}
		gpus = append(gpus, one.String())
		known = known || one.GPU == class.GPU && one.GPUs == class.GPUs
	}
	if !known {
		return class, &ChoiceError{Flag: "gpu", Source: "a GPU of " + m.Name + " in service.yaml", Allowed: gpus, Value: gpu}
	}
	if cloud.RunsOnThisComputer(r.Name) {
		r.Capacity = nil // nothing is billed on this computer
	}
	for _, c := range r.Capacity {
		capacities = append(capacities, string(c))
	}
	if capacity != "" && !slices.Contains(r.Capacity, service.CapacityType(capacity)) {
		return class, &ChoiceError{Flag: "capacity", Source: "a capacity type of " + string(r.Name) + " in service.yaml", Allowed: capacities, Value: capacity}
	}
	return class, nil
}
