package provision

import "skyserve/internal/service"

// Quota is the limit and the use of one resource of an AWS account or Google Cloud project in a region.
type Quota struct {
	// Region is where the quota applies; the cloud alone (gcp/) for a global quota.
	Region service.Region `json:"region"`
	// Name is for display: L4 on demand. Code is the cloud's own: L-DB2E81BA, NVIDIA_L4_GPUS.
	Name string `json:"name"`
	Code string `json:"code"`
	// Unit is what Limit and Used count: vcpus, gpus, gb or addresses.
	Unit  string  `json:"unit"`
	Limit float64 `json:"limit"`
	Used  float64 `json:"used"`
}
