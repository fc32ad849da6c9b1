package service

import (
	"maps"
	"slices"
)

// The keys of RegionSpec.Images that are not GPU types.
const (
	ImageGPU = "gpu" // all machines with GPUs
	ImageCPU = "cpu" // all machines without GPUs
)

// The formats of boot images. At AWS an id, or a parameter of Systems Manager that contains one; at Google
// the resource name of an image or of an image family.
var (
	formImageAWS = newForm(`^(ami-([0-9a-f]{8}|[0-9a-f]{17})|resolve:ssm:[A-Za-z0-9_.:/-]+)$`,
		"the id of an image such as ami-0a1b2c3d4e5f60718, or a parameter such as resolve:ssm:/images/gpu")
	formImageGCP = newForm(`^(https://(www|compute)\.googleapis\.com/compute/v1/)?projects/([a-z0-9.-]+:)?[a-z0-9-]+/global/images/(family/)?[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`,
		"an image such as projects/my-project/global/images/gpu-1, or an image family such as projects/my-project/global/images/family/gpu")
	formMachineImage = newForm("^("+formImageAWS.expr+"|"+formImageGCP.expr+")$", "an image of the region's cloud such as ami-0a1b2c3d4e5f60718, resolve:ssm:/images/gpu or projects/my-project/global/images/family/gpu")
)

// checkMachineImages validates the boot images of a cloud region's machines.
func (c *checker) checkMachineImages(r *RegionSpec, p path) {
	at := p.key("images")
	if !r.Name.Rented() || !c.valid(at) {
		return
	}
	form := formImageAWS
	if r.Name.Cloud() == CloudGCP {
		form = formImageGCP
	}
	for _, key := range slices.Sorted(maps.Keys(r.Images)) {
		if !c.valid(at.key(key)) {
			continue
		}
		if !form.matches(r.Images[key]) {
			c.reportProblem(at.key(key), "must be %s", form.description)
		} else if key != ImageGPU && key != ImageCPU && !c.requestsGPU(key) {
			c.reportAtPath(at.key(key), Error{Problem: "is a GPU type that no model requests", Suggestion: "use gpu, cpu, or a type of models[].gpus"})
		}
	}
}

// requestsGPU reports whether a model can run on a GPU type.
func (c *checker) requestsGPU(gpu string) bool {
	return slices.ContainsFunc(c.spec.Models, func(m Model) bool {
		return slices.ContainsFunc(m.GPUs, func(g GPU) bool { return g.Type == gpu })
	})
}
