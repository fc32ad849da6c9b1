package cloud

import (
	"fmt"
	"slices"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
)

// LocalSSDProblem returns the path in service.yaml of the first invalid local_ssds, and its problem; empty if all are
// valid.
func LocalSSDProblem(spec *service.Spec) (path, problem string) {
	atGoogle := slices.Contains(Clouds(spec), service.CloudGCP)
	for i := range spec.Models {
		for j, g := range spec.Models[i].GPUs {
			problem := catalogue.LocalSSDProblem(g)
			if g.LocalSSDs > 0 && !atGoogle {
				problem = "is only valid for services with a Google Cloud region: the instance type determines the local disks at AWS"
			}
			if problem != "" {
				return fmt.Sprintf("models[%d].gpus[%d].local_ssds", i, j), problem
			}
		}
	}
	return "", ""
}
