package fleet

import (
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// ChoiceError is a GPU or a capacity type that service.yaml does not allow.
type ChoiceError struct {
	What    string   // gpu or capacity
	Of      string   // whose choice it is
	Choices []string // what is allowed; empty = nothing is stated
	Got     string
}

// Error lists what is allowed.
func (e *ChoiceError) Error() string {
	choices := strings.Join(e.Choices, ", ")
	if choices == "" {
		choices = "none is stated"
	}
	return fmt.Sprintf("--%s: want one that %s (%s), got %q", e.What, e.Of, choices, e.Got)
}

// Choose is the class of a GPU, as in L4 or 8xH100, and a capacity type, of which service.yaml
// must allow a model and a region each; empty ones stand for any. The error is a *ChoiceError.
func Choose(m *service.Model, r service.RegionSpec, gpu, capacity string) (provision.Class, error) {
	on := provision.ClassNamed(gpu, capacity)
	var gpus, capacities []string
	known := gpu == ""
	for _, g := range m.GPUs {
		one := provision.Class{GPU: g.Type, GPUs: max(1, g.Count)}
		gpus = append(gpus, one.String())
		known = known || one.GPU == on.GPU && one.GPUs == on.GPUs
	}
	if !known {
		return on, &ChoiceError{What: "gpu", Of: m.Name + " runs on", Choices: gpus, Got: gpu}
	}
	if cloud.IsHere(r.Name) {
		r.Capacity = nil // this computer is nobody's to bill
	}
	for _, c := range r.Capacity {
		capacities = append(capacities, string(c))
	}
	if capacity != "" && !slices.Contains(r.Capacity, service.CapacityType(capacity)) {
		return on, &ChoiceError{What: "capacity", Of: "machines in " + string(r.Name) + " are paid for by", Choices: capacities, Got: capacity}
	}
	return on, nil
}
