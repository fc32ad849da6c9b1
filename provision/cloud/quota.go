package cloud

import (
	"skyserve/internal/service"
	"skyserve/provision"
)

// QuotaKey is a quota in a region.
type QuotaKey struct {
	Region service.Region
	Code   string
}

// quotaCodes are the quotas that machines with a GPU count against: by cloud, GPU, and
// whether they are spot. What is reserved counts as on demand.
var quotaCodes = map[string]map[string][2]string{
	service.CloudAWS: {"L4": {"L-DB2E81BA", "L-3819A6DF"}, "H100": {"L-417A185B", "L-C4BD4855"}},
	service.CloudGCP: {"L4": {"NVIDIA_L4_GPUS", "PREEMPTIBLE_NVIDIA_L4_GPUS"}},
}

// QuotaNeeds is how much of each quota the fewest replicas of a service use, on what
// each region tries first: vCPUs at AWS, GPUs at Google.
func QuotaNeeds(spec *service.Spec) map[QuotaKey]float64 {
	needs := map[QuotaKey]float64{}
	for _, r := range spec.Regions {
		if !rented(r.Name) || len(r.Capacity) == 0 {
			continue
		}
		for i := range spec.Models {
			m := &spec.Models[i]
			if len(m.GPUs) == 0 {
				continue
			}
			g, least := m.GPUs[0], spec.BoundsFor(m.Name, r.Name).Min
			spot := 0
			if r.Capacity[0] == service.CapacitySpot {
				spot = max(0, least-r.OnDemandBase)
			}
			codes, known := quotaCodes[r.Name.Cloud()][g.Type]
			if !known {
				continue
			}
			each := unitsOf(r.Name.Cloud(), g)
			needs[QuotaKey{r.Name, codes[0]}] += each * float64(least-spot)
			needs[QuotaKey{r.Name, codes[1]}] += each * float64(spot)
		}
	}
	return needs
}

// unitsOf is what one replica counts for: the least machine with its GPUs.
func unitsOf(of string, g service.GPU) float64 {
	if of == service.CloudGCP {
		return float64(g.Count)
	}
	least := 0
	for _, t := range provision.MachineTypes(of) {
		if t.GPU == g.Type && t.GPUs == g.Count && (least == 0 || t.VCPUs < least) {
			least = t.VCPUs
		}
	}
	return float64(least)
}
