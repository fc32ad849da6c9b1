package testcloud

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// reserveCapacity reserves quota and stock for an instance; an error if either is insufficient.
func (g *GCE) reserveCapacity(i GCEInstance) *GCEFailure {
	zone, kind := path.Base(i.Zone), path.Base(i.MachineType)
	if f := g.injectedFailure("compute.instances.insert"); f != nil {
		return f
	}
	needs := g.requiredQuota(i)
	for _, metric := range slices.Sorted(maps.Keys(needs)) {
		region, where := gceRegion(zone), "in region "+gceRegion(zone)
		if metric == gceAllGPUs || metric == gceAllCPUs {
			region, where = "", "globally"
		}
		// the usage includes the instance itself
		if limit := g.limit(region, metric); g.usage(region, metric) > limit {
			return &GCEFailure{Code: "QUOTA_EXCEEDED", Message: fmt.Sprintf("Quota '%s' exceeded.  Limit: %.1f %s.", metric, limit, where)}
		}
	}
	stock := gceStock{zone, kind, i.model()}
	remaining, limited := g.stock[stock]
	if limited && remaining == 0 {
		return &GCEFailure{Code: "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", Message: fmt.Sprintf(
			"The zone 'projects/%s/zones/%s' does not have enough resources available to fulfill the request.  '(resource type:compute)'.", g.project, zone)}
	}
	if limited {
		g.stock[stock]--
	}
	return nil
}

// model returns the provisioning model of an instance.
func (i GCEInstance) model() string {
	if model := i.Scheduling.ProvisioningModel; model == gceSpot || model == gceFlexStart {
		return model
	}
	return "STANDARD"
}

// requiredQuota returns the usage of each quota by an instance.
func (g *GCE) requiredQuota(i GCEInstance) map[string]float64 {
	m := gceMachines[path.Base(i.MachineType)]
	needs := map[string]float64{gceAddresses: float64(len(i.NetworkInterfaces[0].AccessConfigs))}
	if size, err := strconv.ParseFloat(i.Disks[0].InitializeParams.DiskSizeGB, 64); err == nil && !strings.HasSuffix(i.Disks[0].InitializeParams.DiskType, "/pd-standard") {
		metric := gceSSD
		if strings.HasSuffix(i.Disks[0].InitializeParams.DiskType, gceHyperdiskType) {
			metric = gceHyperdisk
		}
		needs[metric] = size
	}
	spot := i.model() != "STANDARD" // flex-start uses the quotas of preemptible GPUs too
	if !spot {
		needs[gceAllCPUs] = float64(m.cpus)
	}
	if gb := float64(gceLocalSSDGB * (len(i.Disks) - 1)); gb > 0 && spot && g.limit(gceRegion(path.Base(i.Zone)), gceSpotLocalSSD) > 0 {
		needs[gceSpotLocalSSD] = gb
	} else if gb > 0 {
		needs[gceLocalSSD] = gb
	}
	preemptible := "PREEMPTIBLE_" + gceMetrics[m.accelerator]
	switch {
	case m.accelerators == 0:
		needs[gceCPUs] = float64(m.cpus)
	// a project without a quota for preemptible GPUs uses the standard quota
	case spot && g.limit(gceRegion(path.Base(i.Zone)), preemptible) > 0:
		needs[preemptible] = float64(m.accelerators)
	case gceByFamily(m.accelerator):
		needs[gceFamilyQuota], needs[gceAllGPUs] = float64(m.accelerators), float64(m.accelerators)
	default:
		needs[gceMetrics[m.accelerator]], needs[gceAllGPUs] = float64(m.accelerators), float64(m.accelerators)
	}
	return needs
}

// limit returns a quota of a region; an empty region means the project.
func (g *GCE) limit(region, metric string) float64 {
	if l, ok := g.limits[gceLimit{region, metric}]; ok {
		return l
	}
	return gceDefaultLimit
}

// usage returns the usage of a quota by all instances that are not stopped.
func (g *GCE) usage(region, metric string) float64 {
	var used float64
	for _, i := range g.instances.all() {
		if i.Status != gceTerminated && (region == "" || gceRegion(path.Base(i.Zone)) == region) {
			used += g.requiredQuota(i)[metric]
		}
	}
	return used
}
