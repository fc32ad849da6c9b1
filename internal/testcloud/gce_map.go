package testcloud

import (
	"maps"
	"net/http"
	"slices"
)

// gceZones are the zones of each emulated region.
var gceZones = map[string][]string{
	"us-central1":     {"us-central1-a", "us-central1-b", "us-central1-c"},
	"us-east4":        {"us-east4-a", "us-east4-c"},
	"europe-west4":    {"europe-west4-a", "europe-west4-b", "europe-west4-c"},
	"asia-northeast1": {"asia-northeast1-a", "asia-northeast1-b"},
	"asia-southeast1": {"asia-southeast1-a", "asia-southeast1-b", "asia-southeast1-c"},
}

// gceMachine is a machine type with its built-in GPUs.
type gceMachine struct {
	cpus         int
	memoryMB     int
	accelerator  string
	accelerators int
}

var gceMachines = map[string]gceMachine{
	"e2-standard-2":  {2, 8192, "", 0},
	"e2-standard-4":  {4, 16384, "", 0},
	"g2-standard-4":  {4, 16384, "nvidia-l4", 1},
	"g2-standard-24": {24, 98304, "nvidia-l4", 2},
	"g2-standard-48": {48, 196608, "nvidia-l4", 4},
	"g2-standard-96": {96, 393216, "nvidia-l4", 8},
	"a2-highgpu-1g":  {12, 87040, gceA100, 1},
	"a2-highgpu-2g":  {24, 174080, gceA100, 2},
	"a2-highgpu-4g":  {48, 348160, gceA100, 4},
	"a2-highgpu-8g":  {96, 696320, gceA100, 8},
	"a3-highgpu-1g":  {26, 239616, "nvidia-h100-80gb", 1},
	"a3-highgpu-2g":  {52, 479232, "nvidia-h100-80gb", 2},
	"a3-highgpu-4g":  {104, 958464, "nvidia-h100-80gb", 4},
	"a3-highgpu-8g":  {208, 1916928, "nvidia-h100-80gb", 8},
	"a3-ultragpu-8g": {224, 3022848, gceH200, 8},
}

// gceMetrics are the quotas for GPUs, by GPU type. On-demand GPUs of the types gceH100 and gceH200 count against
// gceFamilyQuota instead, which regions do not report.
var gceMetrics = map[string]string{"nvidia-l4": "NVIDIA_L4_GPUS", gceA100: "NVIDIA_A100_GPUS", gceH100: "NVIDIA_H100_GPUS", gceH200: "NVIDIA_H200_GPUS"}

// gceByFamily reports whether the on-demand GPUs of a type count against the quota of their family.
func gceByFamily(accelerator string) bool { return accelerator == gceH100 || accelerator == gceH200 }

const (
	gceA100        = "nvidia-tesla-a100"
	gceH100        = "nvidia-h100-80gb"
	gceH200        = "nvidia-h200-141gb"
	gceFamilyQuota = "GPUS_PER_GPU_FAMILY"
)

// The quotas for several types of GPU, or for other resources.
const (
	gceAllGPUs   = "GPUS_ALL_REGIONS"
	gceAllCPUs   = "CPUS_ALL_REGIONS"
	gceCPUs      = "CPUS"
	gceSSD       = "SSD_TOTAL_GB"
	gceAddresses = "IN_USE_ADDRESSES"
	gceHyperdisk = "HDB_TOTAL_GB"
)

// gceDefaultLimit is the default value of a quota.
const gceDefaultLimit = 100000

// gceImages are the image families, by project.
var gceImages = map[string][]string{
	"deeplearning-platform-release": {"common-cu128-ubuntu-2204-nvidia-570", "common-cu129-ubuntu-2204-nvidia-580"},
	"ubuntu-os-cloud":               {"ubuntu-2204-lts"},
}

func (g *GCE) checkZone(zone string) *gceError {
	if !slices.Contains(gceZones[gceRegion(zone)], zone) {
		return newGCEError(http.StatusBadRequest, "invalid", "Invalid value for field 'zone': '%s'. Unknown zone.", zone)
	}
	return nil
}

func (g *GCE) hasMachineType(zone, name string) bool {
	_, known := gceMachines[name]
	return known && !slices.Contains(g.missingTypes[zone], name)
}

func (g *GCE) listMachineTypes(r *http.Request) (any, *gceError) {
	zone := r.PathValue("zone")
	if fail := g.checkZone(zone); fail != nil {
		return nil, fail
	}
	passes, fail := gceFilter(r.FormValue("filter"))
	if fail != nil {
		return nil, fail
	}
	var all []map[string]any
	for _, name := range slices.Sorted(maps.Keys(gceMachines)) {
		m := gceMachines[name]
		if !g.hasMachineType(zone, name) || !passes(func(field string) (string, bool) { return name, field == "name" }) {
			continue
		}
		link := "projects/" + g.project + "/zones/" + zone + "/machineTypes/" + name
		t := map[string]any{"kind": "compute#machineType", "id": gceNumber(link), "selfLink": gceRoot + link, "name": name, "zone": zone, "guestCpus": m.cpus, "memoryMb": m.memoryMB}
		if m.accelerators > 0 {
			t["accelerators"] = []map[string]any{{"guestAcceleratorType": m.accelerator, "guestAcceleratorCount": m.accelerators}}
		}
		all = append(all, t)
	}
	page, next, fail := gcePage(r, all, g.pageSize)
	return gceList("compute#machineTypeList", page, next), fail
}

// gceList returns a list response.
func gceList[T any](kind string, items []T, next string) map[string]any {
	return map[string]any{"kind": kind, "items": items, "nextPageToken": next}
}

func (g *GCE) getRegion(r *http.Request) (any, *gceError) {
	region := r.PathValue("region")
	zones, ok := gceZones[region]
	if !ok {
		return nil, newGCEError(http.StatusNotFound, "notFound", "The resource 'projects/%s/regions/%s' was not found", g.project, region)
	}
	var links []string
	for _, z := range zones {
		links = append(links, g.link("zones/"+z))
	}
	var quotas []map[string]any
	metrics := []string{gceCPUs, gceSSD, gceHyperdisk, gceAddresses, gceLocalSSD, gceSpotLocalSSD}
	for accelerator, m := range gceMetrics {
		if !gceByFamily(accelerator) {
			metrics = append(metrics, m)
		}
		metrics = append(metrics, "PREEMPTIBLE_"+m)
	}
	slices.Sort(metrics)
	for _, m := range metrics {
		quotas = append(quotas, map[string]any{"metric": m, "limit": g.limit(region, m), "usage": g.usage(region, m)})
	}
	return map[string]any{"kind": "compute#region", "name": region, "status": "UP", "zones": links, "quotas": quotas}, nil
}

func (g *GCE) getProject(*http.Request) (any, *gceError) {
	var quotas []map[string]any
	for _, m := range []string{gceAllCPUs, gceAllGPUs} {
		quotas = append(quotas, map[string]any{"metric": m, "limit": g.limit("", m), "usage": g.usage("", m)})
	}
	return map[string]any{"kind": "compute#project", "name": g.project, "quotas": quotas, "defaultServiceAccount": g.account}, nil
}
