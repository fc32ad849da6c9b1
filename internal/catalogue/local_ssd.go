package catalogue

import (
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/service"
)

// Google's local SSDs: the size of each in GB, as quotas count it, and the on-demand list price of a GB in
// us-central1, in USD per month of 730 hours. That of spot machines is lower. Sources, read in November 2026:
// docs.cloud.google.com/compute/docs/disks/local-ssd ("each Local SSD disk is 375 GiB in size");
// https://cloud.google.com/compute/disks-image-pricing as third parties read it ($0.08).
const (
	LocalSSDGB           = 375
	localSSDPerGBMonth   = 0.08
	localSSDHoursOfMonth = 730
)

// LocalSSDPerHour is the list price of one local SSD of Google, in USD per hour.
const LocalSSDPerHour = LocalSSDGB * localSSDPerGBMonth / localSSDHoursOfMonth

// localSSDs are the local SSDs of one of Google's machine types.
type localSSDs struct {
	attachable []int // the numbers that may be attached; a machine may also have none
	bundled    int   // the number that the type has in any case
}

// googleLocalSSDs is the table of Google's machine types with local SSDs. Sources, from November 2026:
// docs.cloud.google.com/compute/docs/disks/add-local-ssd (every A3 and A2 Ultra type has them) and
// modules/compute/gke-node-pool/disk_definitions.tf of GoogleCloudPlatform/cluster-toolkit (A3 with eight GPUs). The numbers
// of G2 and A2 are assumed, and not yet compared with the pages that state them:
// docs.cloud.google.com/compute/docs/disks/local-ssd#choose_number_local_ssds and
// docs.cloud.google.com/compute/docs/accelerator-optimized-machines.
var googleLocalSSDs = map[string]localSSDs{
	"g2-standard-4":  {attachable: []int{1}},
	"g2-standard-8":  {attachable: []int{1}},
	"g2-standard-12": {attachable: []int{1}},
	"g2-standard-16": {attachable: []int{1}},
	"g2-standard-32": {attachable: []int{1}},
	"g2-standard-24": {attachable: []int{2}},
	"g2-standard-48": {attachable: []int{4}},
	"g2-standard-96": {attachable: []int{8}},
	"a2-highgpu-1g":  {attachable: []int{1, 2, 4, 8}},
	"a2-highgpu-2g":  {attachable: []int{2, 4, 8}},
	"a2-highgpu-4g":  {attachable: []int{4, 8}},
	"a2-highgpu-8g":  {attachable: []int{8}},
	"a2-megagpu-16g": {attachable: []int{8}},
	"a2-ultragpu-1g": {bundled: 1},
	"a2-ultragpu-2g": {bundled: 2},
	"a2-ultragpu-4g": {bundled: 4},
	"a2-ultragpu-8g": {bundled: 8},
	"a3-highgpu-1g":  {bundled: 2},
	"a3-highgpu-2g":  {bundled: 4},
	"a3-highgpu-4g":  {bundled: 8},
	"a3-highgpu-8g":  {bundled: 16},
	"a3-megagpu-8g":  {bundled: 16},
	"a3-ultragpu-8g": {bundled: 32},
}

// TakesLocalSSDs reports whether a number of local SSDs may be attached to machines of a type.
func TakesLocalSSDs(cloud, machineType string, n int) bool {
	return cloud == service.CloudGCP && slices.Contains(googleLocalSSDs[machineType].attachable, n)
}

// BundledLocalSSDs returns the number of local SSDs that machines of one of Google's types always have.
func BundledLocalSSDs(machineType string) int { return googleLocalSSDs[machineType].bundled }

// LocalSSDPrice returns the list price of the local SSDs that a cloud would attach to a machine for some GPUs, in USD
// per hour; 0 if it would attach none.
func LocalSSDPrice(cloud string, g service.GPU) float64 {
	for _, name := range SameGPUs(cloud, g.Type, max(1, g.Count)) {
		if m, _ := Find(cloud, name); m.NotLaunched == "" && TakesLocalSSDs(cloud, name, g.LocalSSDs) {
			return float64(g.LocalSSDs) * LocalSSDPerHour
		}
	}
	return 0
}

// LocalSSDProblem returns why Google attaches no such number of local SSDs to the machines for some GPUs; empty if it
// does, or if none are required.
func LocalSSDProblem(g service.GPU) string {
	if g.LocalSSDs == 0 || LocalSSDPrice(service.CloudGCP, g) > 0 {
		return ""
	}
	for _, m := range Launchable(service.CloudGCP) {
		if m.GPU != g.Type || m.GPUs != max(1, g.Count) {
			continue
		}
		if n := BundledLocalSSDs(m.Type); n > 0 {
			return fmt.Sprintf("must be unset: %s of Google Cloud always has %d local SSDs, which are used", m.Type, n)
		}
		if allowed := googleLocalSSDs[m.Type].attachable; len(allowed) > 0 {
			return fmt.Sprintf("must be %s for %s of Google Cloud", orList(allowed), m.Type)
		}
	}
	return fmt.Sprintf("must be unset: Google Cloud has no machine type with %d x %s that takes local SSDs", max(1, g.Count), g.Type)
}

// orList formats values as 1, 2 or 4; none as an empty text.
func orList[T any](values []T) string {
	var words []string
	for _, n := range values {
		words = append(words, fmt.Sprint(n))
	}
	last := len(words) - 1
	if last <= 0 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
