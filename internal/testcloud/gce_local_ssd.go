package testcloud

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
)

// Local SSDs, as Google's guides describe them (https://docs.cloud.google.com/compute/docs/disks/local-ssd and
// add-local-ssd, November 2026): the quotas that they count against, the size of each, and the numbers that may be
// attached to a machine type.
const (
	gceLocalSSD     = "LOCAL_SSD_TOTAL_GB"
	gceSpotLocalSSD = "PREEMPTIBLE_LOCAL_SSD_GB"
	gceLocalSSDGB   = 375
)

var gceLocalSSDNumbers = map[string][]int{
	"g2-standard-4": {1}, "g2-standard-24": {2}, "g2-standard-48": {4}, "g2-standard-96": {8},
	"a2-highgpu-1g": {1, 2, 4, 8}, "a2-highgpu-2g": {2, 4, 8}, "a2-highgpu-4g": {4, 8}, "a2-highgpu-8g": {8},
}

// checkLocalSSDs rejects disks besides the boot disk that are no local SSDs, and local SSDs that the machine type does
// not support. Those of A3 machines are attached without a request.
func checkLocalSSDs(zone string, i *GCEInstance) *gceError {
	kind := path.Base(i.MachineType)
	invalid := func(format string, args ...any) *gceError {
		return newGCEError(http.StatusBadRequest, "invalid", format, args...)
	}
	for n, d := range i.Disks[1:] {
		field := fmt.Sprintf("resource.disks[%d]", n+1)
		switch {
		case d.Boot || d.InitializeParams.SourceImage != "":
			return invalid("Invalid value for field '%s.boot': boot disk must be the first disk attached to the instance.", field)
		case d.InitializeParams.DiskType != "zones/"+zone+"/diskTypes/local-ssd":
			return invalid("Invalid value for field '%s.initializeParams.diskType': '%s'. Not emulated.", field, d.InitializeParams.DiskType)
		case d.Type != "SCRATCH":
			return invalid("Invalid value for field '%s.type': 'PERSISTENT'. Cannot create local SSD as persistent disk.", field)
		case d.Interface != "NVME" && d.Interface != "SCSI":
			return invalid("Invalid value for field '%s.interface': '%s'.", field, d.Interface)
		case !d.AutoDelete:
			return invalid("Invalid value for field '%s.autoDelete': 'false'. Local SSD disks must be deleted with the instance.", field)
		}
	}
	attached := len(i.Disks) - 1
	if allowed := gceLocalSSDNumbers[kind]; attached > 0 && !slices.Contains(allowed, attached) {
		return invalid("Number of local SSDs for an instance of type %s should be one of %v, while [%d] is requested.", kind, append([]int{0}, allowed...), attached)
	}
	s := i.Scheduling
	if has := attached > 0 || strings.HasPrefix(kind, "a3-"); has && s.MaxRunDuration != nil && s.InstanceTerminationAction == "STOP" && (s.OnInstanceStopAction == nil || !s.OnInstanceStopAction.DiscardLocalSSD) {
		return invalid("Scheduling.onInstanceStopAction.discardLocalSsd must be true for instances with local SSDs that are stopped at the end of their run")
	}
	return nil
}
