package cloud

import (
	"fmt"
	"slices"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
)

// LocalSSDConflict returns the first local_ssds of a service that has no effect, by its path in service.yaml, and why;
// empty if all are possible.
func LocalSSDConflict(spec *service.Spec) (path, problem string) {
	atGoogle := slices.Contains(Clouds(spec), service.CloudGCP)
	for i := range spec.Models {
		for j, g := range spec.Models[i].GPUs {
			problem := catalogue.LocalSSDProblem(g)
			if g.LocalSSDs > 0 && !atGoogle {
				problem = "is only valid for services with a Google Cloud region: machines of AWS have the local disks of their type"
			}
			if problem != "" {
				return fmt.Sprintf("models[%d].gpus[%d].local_ssds", i, j), problem
			}
		}
	}
	return "", ""
}
