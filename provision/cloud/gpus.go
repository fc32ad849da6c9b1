package cloud

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
)

// GPUProblems returns the GPUs of all models that `up` cannot start in some region, because no machine of its cloud has
// them.
func GPUProblems(spec *service.Spec) (problems service.Errors) {
	for i := range spec.Models {
		for _, r := range regionsWithoutGPU(spec, i) {
			if spec.BoundsFor(spec.Models[i].Name, r).Min > 0 {
				problems = append(problems, gpuProblems(spec, i, r)...)
			}
		}
	}
	return problems
}

// Warnings describes GPUs and capacity of a valid file that can never be used.
func Warnings(spec *service.Spec) (all []string) {
	warn := func(problems ...service.Error) {
		for _, p := range problems {
			all = append(all, strings.TrimPrefix(p.Message(), ": ")) // the file has no name here
		}
	}
	for i := range spec.Models {
		without := regionsWithoutGPU(spec, i)
		for _, r := range without {
			if spec.BoundsFor(spec.Models[i].Name, r).Min == 0 {
				warn(gpuProblems(spec, i, r)...)
			}
		}
		regions := slices.DeleteFunc(mayRunIn(spec, i), func(r service.Region) bool { return slices.Contains(without, r) })
		for j, g := range spec.Models[i].GPUs {
			if len(regions) > 0 && !slices.ContainsFunc(regions, func(r service.Region) bool { return rents(r, g) }) {
				p := gpuProblem(i, j, g, regions[0])
				p.Suggestion = "this entry is never used"
				warn(p)
			}
		}
	}
	for i, r := range spec.Regions {
		if isCloudRegion(r.Name) && len(r.Reserved) == 0 && slices.Equal(r.Capacity, []service.CapacityType{service.CapacityReserved}) {
			warn(service.Error{
				Path:       fmt.Sprintf("regions[%d].capacity", i),
				Problem:    fmt.Sprintf("allows only reserved machines, and regions[%d].reserved lists none, so plan finds no capacity there", i),
				Suggestion: "list them, or add on_demand or spot",
			})
		}
	}
	return all
}

// mayRunIn returns the regions, with those on this computer, in which a model may have replicas.
func mayRunIn(spec *service.Spec, model int) (regions []service.Region) {
	for _, r := range spec.Regions {
		if spec.BoundsFor(spec.Models[model].Name, r.Name).Max > 0 {
			regions = append(regions, r.Name)
		}
	}
	return regions
}

// regionsWithoutGPU returns one region of each cloud that rents none of a model's GPUs, preferably one that must have a
// replica of the model.
func regionsWithoutGPU(spec *service.Spec, model int) (regions []service.Region) {
	m := &spec.Models[model]
	for _, name := range Clouds(spec) {
		best := service.Region("")
		for _, r := range mayRunIn(spec, model) {
			if r.Cloud() == name && (best == "" || spec.BoundsFor(m.Name, best).Min == 0 && spec.BoundsFor(m.Name, r).Min > 0) {
				best = r
			}
		}
		if best != "" && len(m.GPUs) > 0 && !slices.ContainsFunc(m.GPUs, func(g service.GPU) bool { return rents(best, g) }) {
			regions = append(regions, best)
		}
	}
	return regions
}

// rents reports whether the cloud of a region has a machine with exactly these GPUs.
func rents(r service.Region, g service.GPU) bool {
	return catalogue.Rents(r.Cloud(), g.Type, max(1, g.Count))
}

// gpuProblems returns a problem for each GPU of a model, none of which the cloud of a region rents.
func gpuProblems(spec *service.Spec, model int, r service.Region) (problems service.Errors) {
	for j, g := range spec.Models[model].GPUs {
		p := gpuProblem(model, j, g, r)
		p.Suggestion = fmt.Sprintf("or let no replica of %s start there: models[%d].regions: {%s: {max: 0}}", spec.Models[model].Name, model, r)
		problems = append(problems, p)
	}
	return problems
}

// gpuProblem returns the problem of a GPU that the cloud of a region does not rent.
func gpuProblem(model, gpu int, g service.GPU, r service.Region) service.Error {
	path := fmt.Sprintf("models[%d].gpus[%d]", model, gpu)
	list, counts := catalogue.Alternatives(r.Cloud(), g.Type)
	if !counts {
		return service.Error{Path: path + ".type", Problem: fmt.Sprintf("must be %s in %s", list, r), Found: g.Type}
	}
	return service.Error{Path: path + ".count", Problem: fmt.Sprintf("must be %s for %s in %s", list, g.Type, r), Found: strconv.Itoa(max(1, g.Count))}
}
