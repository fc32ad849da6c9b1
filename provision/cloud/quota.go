package cloud

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
	"skyserve/provision"
)

// QuotaKey identifies a quota. Region and Code are as in provision.Quota: Region is only the cloud (gcp/) for a global
// quota, and Code is the cloud's own (L-DB2E81BA, NVIDIA_L4_GPUS).
type QuotaKey struct {
	Region service.Region
	Code   string
}

// QuotaNeed is the amount of a quota that a service requires, with the quota's limit and current use.
type QuotaNeed struct {
	// Region is where the quota applies; a cloud without a region (gcp/) for a global quota.
	Region service.Region `json:"region"`
	// Name is the name to display, Code the cloud's own code.
	Name string `json:"name"`
	Code string `json:"code"`
	// Unit is the unit of Needs, Limit and Used: vcpus, gpus, gb or addresses.
	Unit  string  `json:"unit"`
	Needs float64 `json:"needs"`
	// Limit and Used apply to the AWS account or Google Cloud project; nil = unknown. Both are nil or neither is.
	Limit *float64 `json:"limit"`
	Used  *float64 `json:"used"`
}

// Exceeded reports whether the quota is too low; false if its limit is unknown.
func (n QuotaNeed) Exceeded() bool { return n.Limit != nil && *n.Limit-*n.Used < n.Needs }

// IncreaseRequest returns the command or instruction that requests a sufficient quota: the current use plus
// the need.
func (n QuotaNeed) IncreaseRequest() string {
	limit := n.Needs
	if n.Used != nil {
		limit += *n.Used
	}
	if n.Region.Cloud() == service.CloudAWS {
		return fmt.Sprintf("aws service-quotas request-service-quota-increase --service-code ec2 --quota-code %s --desired-value %g --region %s", n.Code, limit, n.Region.ShortName())
	}
	return fmt.Sprintf("request a limit of %g for %s in %s at https://console.cloud.google.com/iam-admin/quotas", limit, n.Code, cmp.Or(n.Region.ShortName(), "all regions"))
}

// The quotas of Google Cloud, except those for each GPU type. GPUS_ALL_REGIONS and CPUS_ALL_REGIONS are for machines
// that are neither spot nor flex-start. CPUS is for machines without GPUs. H100 and H200 GPUs on demand count against a
// quota of their GPU family (GPUS_PER_GPU_FAMILY), which Compute Engine does not report.
const (
	quotaAllGPUs   = "GPUS_ALL_REGIONS"
	quotaAllCPUs   = "CPUS_ALL_REGIONS"
	quotaFamilies  = "GPUS_PER_GPU_FAMILY"
	quotaCPUs      = "CPUS"
	quotaSSD       = "SSD_TOTAL_GB"
	quotaHyperdisk = "HDB_TOTAL_GB"
	quotaAddresses = "IN_USE_ADDRESSES"
	// quotaLocalSSD and quotaSpotSSD count attached local SSDs. quotaSSDFamilies counts them for each machine family;
	// Compute Engine does not report it.
	quotaLocalSSD    = "LOCAL_SSD_TOTAL_GB"
	quotaSpotSSD     = "PREEMPTIBLE_LOCAL_SSD_GB"
	quotaSSDFamilies = "LOCAL_SSD_TOTAL_GB_PER_VM_FAMILY"
)

// quotasOf returns what a machine of an offering uses of each quota: vCPUs at AWS; GPUs, vCPUs, disks and a public
// address at Google. A reserved machine uses the same quotas as an on-demand one. A machine in an EC2 Capacity Block
// uses none.
func quotasOf(o provision.Offering, diskGiB int) map[QuotaKey]float64 {
	if o.Region.Cloud() == service.CloudAWS {
		q, known := catalogue.EC2QuotaOf(o.Type, o.Capacity == service.CapacitySpot)
		if !known || o.Block {
			return nil
		}
		return map[QuotaKey]float64{{o.Region, q.Code}: float64(o.VCPUs)}
	}
	return quotasAtGoogle(o, diskGiB)
}

func quotasAtGoogle(o provision.Offering, diskGiB int) map[QuotaKey]float64 {
	disks := quotaSSD
	if m, _ := catalogue.Find(o.Region.Cloud(), o.Type); m.Disk != "" {
		disks = quotaHyperdisk
	}
	needs := map[QuotaKey]float64{{o.Region, quotaAddresses}: 1, {o.Region, disks}: float64(diskGiB)}
	gpu, _ := catalogue.FindGPU(o.GPU)
	metric, allRegions := cmp.Or(gpu.Quota, quotaFamilies+" ("+gpu.Family+")"), service.Region(o.Region.Cloud()+"/")
	switch {
	case o.GPU == "":
		needs[QuotaKey{o.Region, quotaCPUs}] = float64(o.VCPUs)
	case isInterruptible(o.Capacity):
		needs[QuotaKey{o.Region, gpu.SpotQuota}] = float64(o.GPUs)
	default:
		needs[QuotaKey{o.Region, metric}], needs[QuotaKey{allRegions, quotaAllGPUs}] = float64(o.GPUs), float64(o.GPUs)
	}
	if !isInterruptible(o.Capacity) {
		needs[QuotaKey{allRegions, quotaAllCPUs}] = float64(o.VCPUs)
	}
	if gb := float64(o.LocalSSDs) * catalogue.LocalSSDGB; gb > 0 && isInterruptible(o.Capacity) {
		needs[QuotaKey{o.Region, quotaSpotSSD}] = gb
	} else if gb > 0 {
		family, _, _ := strings.Cut(o.Type, "-")
		needs[QuotaKey{o.Region, quotaLocalSSD}] = gb
		needs[QuotaKey{o.Region, quotaSSDFamilies + " (" + strings.ToUpper(family) + ")"}] = gb
	}
	return needs
}

// isInterruptible reports whether a cloud may end machines of a capacity type. At Google, the GPUs of all such machines,
// spot and flex-start, count against the quotas of preemptible GPUs
// (https://cloud.google.com/blog/products/compute/introducing-flex-start-vms-for-the-compute-engine-instance-api, read
// in November 2026).
func isInterruptible(c service.CapacityType) bool {
	return c == service.CapacitySpot || c == service.CapacityFlexStart
}

// QuotaNeeds returns the minimum use of each quota by a service: its balancers, and replicas.min replicas. It assumes
// that replicas are launched on the machine type with the fewest vCPUs that has the model's first GPU, with the
// region's first capacity type. If that is spot or flex-start, replicas of on_demand_base count as on demand.
func QuotaNeeds(spec *service.Spec) map[QuotaKey]float64 {
	needs := quotaSum{}
	for _, r := range spec.Regions {
		if !isCloudRegion(r.Name) || len(r.Capacity) == 0 {
			continue
		}
		needs.addMachines(r.Name, service.GPU{}, service.CapacityOnDemand, r.Balancers, diskBalancer)
		for i := range spec.Models {
			m := &spec.Models[i]
			replicas, preemptible := spec.BoundsFor(m.Name, r.Name).Min, 0
			if isInterruptible(r.Capacity[0]) {
				preemptible = max(0, replicas-r.OnDemandBase)
			}
			for _, g := range gpusOf(m)[:min(1, len(gpusOf(m)))] {
				needs.addMachines(r.Name, g, service.CapacityOnDemand, replicas-preemptible, diskReplica)
				needs.addMachines(r.Name, g, r.Capacity[0], preemptible, diskReplica)
			}
		}
	}
	return needs
}

// quotaSum is the total need of each quota.
type quotaSum map[QuotaKey]float64

// addMachines adds the needs of a number of machines with the GPUs of g.
func (s quotaSum) addMachines(r service.Region, g service.GPU, capacity service.CapacityType, machines, diskGiB int) {
	if t, known := smallestMachine(r.Cloud(), g); known && machines > 0 {
		s.addOffering(t.Offering(r, "", capacity).WithLocalSSDs(g.LocalSSDs), machines, diskGiB)
	}
}

func (s quotaSum) addOffering(o provision.Offering, machines, diskGiB int) {
	for key, each := range quotasOf(o, diskGiB) {
		s[key] += each * float64(machines)
	}
}

// smallestMachine returns the machine type with the fewest vCPUs that has the GPUs of g.
func smallestMachine(cloud string, g service.GPU) (smallest provision.MachineType, known bool) {
	for _, t := range provision.MachineTypes(cloud) {
		if t.GPU == g.Type && t.GPUs == g.Count && (!known || t.VCPUs < smallest.VCPUs) {
			smallest, known = t, true
		}
	}
	return smallest, known
}

// QuotaNeedsOfChanges returns the use of each quota by the launches among changes, if each launch gets its first
// offering. Replacements do not count, because the old machine is terminated. Terminations free no quota, because they
// are applied last.
func QuotaNeedsOfChanges(changes provision.Changes) map[QuotaKey]float64 {
	needs := quotaSum{}
	for _, c := range launchesOf(changes) {
		needs.addOffering(c.Desired.Offerings[0], 1, c.Desired.Machine.DiskGiB)
	}
	return needs
}

// launchesOf returns the changes that add a machine.
func launchesOf(changes provision.Changes) provision.Changes {
	return slices.DeleteFunc(slices.Clone(changes), func(c provision.Change) bool {
		return c.Action != provision.ActionLaunch || len(c.Desired.Offerings) == 0
	})
}

// CompareQuotas returns needs together with the quotas that the clouds reported, sorted by region and code. Limit and
// Used are nil for a quota that no cloud reported. It omits needs of zero.
func CompareQuotas(needs map[QuotaKey]float64, quotas []provision.Quota) []QuotaNeed {
	var all []QuotaNeed
	for key, n := range needs {
		if n == 0 {
			continue
		}
		need := QuotaNeed{Region: key.Region, Name: key.Code, Code: key.Code, Unit: unitOf(key), Needs: n}
		if i := slices.IndexFunc(quotas, func(q provision.Quota) bool { return q.Region == key.Region && q.Code == key.Code }); i >= 0 {
			q := quotas[i]
			need.Name, need.Unit, need.Limit, need.Used = q.Name, q.Unit, &q.Limit, &q.Used
		}
		all = append(all, need)
	}
	slices.SortFunc(all, func(a, b QuotaNeed) int { return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Code, b.Code)) })
	return all
}

func unitOf(key QuotaKey) string {
	switch {
	case key.Region.Cloud() == service.CloudAWS || key.Code == quotaCPUs || key.Code == quotaAllCPUs:
		return "vcpus"
	case key.Code == quotaSSD || key.Code == quotaHyperdisk || strings.Contains(key.Code, "LOCAL_SSD"):
		return "gb"
	case key.Code == quotaAddresses:
		return "addresses"
	}
	return "gpus"
}

// LaunchesOverQuota returns those launches among changes for which the remaining quotas suffice with none of the
// offerings. It considers the launches in order: each uses the first offering for which the remaining quotas suffice.
// An unknown quota imposes no limit.
func LaunchesOverQuota(changes provision.Changes, quotas []provision.Quota) provision.Changes {
	remaining := map[QuotaKey]float64{}
	for _, q := range quotas {
		remaining[QuotaKey{q.Region, q.Code}] = q.Limit - q.Used
	}
	return slices.DeleteFunc(launchesOf(changes), func(c provision.Change) bool {
		return slices.ContainsFunc(c.Desired.Offerings, func(o provision.Offering) bool {
			return subtractQuota(remaining, quotasOf(o, c.Desired.Machine.DiskGiB))
		})
	})
}

// subtractQuota subtracts needs from the remaining quotas. If a quota is insufficient, it subtracts nothing and
// returns false.
func subtractQuota(remaining, needs map[QuotaKey]float64) bool {
	for key, n := range needs {
		if r, known := remaining[key]; known && r < n {
			return false
		}
	}
	for key, n := range needs {
		if _, known := remaining[key]; known {
			remaining[key] -= n
		}
	}
	return true
}

// MachinesWithinQuota returns how many further replicas on machines of an offering the quotas allow. known is false if
// quotas contains none of the quotas that such a machine uses.
func MachinesWithinQuota(o provision.Offering, quotas []provision.Quota) (machines float64, known bool) {
	for _, q := range quotas {
		each := quotasOf(o, diskReplica)[QuotaKey{q.Region, q.Code}]
		if each == 0 {
			continue
		}
		n := max(0, math.Floor((q.Limit-q.Used)/each))
		if !known || n < machines {
			machines, known = n, true
		}
	}
	return machines, known
}
