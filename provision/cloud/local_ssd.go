package cloud

import (
	"fmt"
	"slices"
	"strconv"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
)

// LocalSSDProblems returns the problems of all invalid local_ssds, with their keys in service.yaml.
func LocalSSDProblems(spec *service.Spec) (problems service.Errors) {
	atGoogle := slices.Contains(Clouds(spec), service.CloudGCP)
	for i := range spec.Models {
		for j, g := range spec.Models[i].GPUs {
			problem := catalogue.LocalSSDProblem(g)
			if g.LocalSSDs > 0 && !atGoogle {
				problem = "is only valid for services with a Google Cloud region: the instance type determines the local disks at AWS"
			}
			if problem != "" {
				problems = append(problems, service.Error{
					Path: fmt.Sprintf("models[%d].gpus[%d].local_ssds", i, j), Problem: problem, Found: strconv.Itoa(g.LocalSSDs),
					Suggestion: "docs/engines.md lists the numbers by machine type",
				})
			}
		}
	}
	return problems
}
