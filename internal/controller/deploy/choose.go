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
	What    string   // flag: gpu or capacity
	Of      string   // the kind of value and where service.yaml lists the choices
	Choices []string // the allowed values; empty = none configured
	Got     string
}

// Error returns a message with the allowed values.
func (e *ChoiceError) Error() string {
	choices := strings.Join(e.Choices, ", ")
	if choices == "" {
		choices = "none configured"
	}
	return fmt.Sprintf("--%s must be %s (%s), got %q", e.What, e.Of, choices, e.Got)
}

// ChooseClass returns the class of a GPU, such as L4 or 8xH100, and a capacity type, which service.yaml
// must allow for the model and region; empty values mean any. The error is a *ChoiceError.
func ChooseClass(m *service.Model, r service.RegionSpec, gpu, capacity string) (provision.ReplicaClass, error) {
	on := provision.ParseReplicaClass(gpu, capacity)
	var gpus, capacities []string
	known := gpu == ""
	for _, g := range m.GPUs {
		one := provision.ReplicaClass{GPU: g.Type, GPUs: max(1, g.Count)}
		gpus = append(gpus, one.String())
		known = known || one.GPU == on.GPU && one.GPUs == on.GPUs
	}
	if !known {
		return on, &ChoiceError{What: "gpu", Of: "a GPU of " + m.Name + " in service.yaml", Choices: gpus, Got: gpu}
	}
	if cloud.RunsOnThisComputer(r.Name) {
		r.Capacity = nil // nothing is billed on this computer
	}
	for _, c := range r.Capacity {
		capacities = append(capacities, string(c))
	}
	if capacity != "" && !slices.Contains(r.Capacity, service.CapacityType(capacity)) {
		return on, &ChoiceError{What: "capacity", Of: "a capacity type of " + string(r.Name) + " in service.yaml", Choices: capacities, Got: capacity}
	}
	return on, nil
}
