package testcloud

import "net/http"

// gceAdviceRequest is a request to the Capacity Advisor
// (https://cloud.google.com/compute/docs/reference/rest/v1/advice/capacity, November 2026).
type gceAdviceRequest struct {
	Size               int `json:"size"`
	DistributionPolicy struct {
		TargetShape string `json:"targetShape"`
		Zones       []struct {
			Zone string `json:"zone"`
		} `json:"zones"`
	} `json:"distributionPolicy"`
	InstanceFlexibilityPolicy struct {
		InstanceSelections map[string]struct {
			MachineTypes []string `json:"machineTypes"`
			Rank         string   `json:"rank,omitempty"`
		} `json:"instanceSelections"`
	} `json:"instanceFlexibilityPolicy"`
	InstanceProperties struct {
		Scheduling struct {
			ProvisioningModel string `json:"provisioningModel"`
		} `json:"scheduling"`
	} `json:"instanceProperties"`
}

// SetObtainability sets the advice for a machine type in a zone, from 0 to 1; without it 0.5.
func (g *GCE) SetObtainability(zone, machineType string, score float64) {
	g.withLock(func() { g.advice[[2]string{zone, machineType}] = score })
}

// adviseCapacity serves the Capacity Advisor for one machine type in one zone. It advises on spot machines
// only, and accepts one selection of instances.
func (g *GCE) adviseCapacity(r *http.Request) (any, *gceError) {
	var q gceAdviceRequest
	if fail := decodeGCE(r, &q); fail != nil {
		return nil, fail
	}
	if q.Size < 1 || len(q.InstanceFlexibilityPolicy.InstanceSelections) != 1 || q.InstanceProperties.Scheduling.ProvisioningModel != gceSpot || q.DistributionPolicy.TargetShape != "ANY_SINGLE_ZONE" {
		return nil, newGCEError(http.StatusBadRequest, "invalid", "Invalid value in the request for capacity advice")
	}
	recommendations := []map[string]any{}
	for _, selection := range q.InstanceFlexibilityPolicy.InstanceSelections {
		for _, z := range q.DistributionPolicy.Zones {
			zone := z.Zone[len("zones/"):]
			if fail := g.checkZone(zone); fail != nil {
				return nil, fail
			}
			score, set := g.advice[[2]string{zone, selection.MachineTypes[0]}]
			if !set {
				score = 0.5
			}
			recommendations = append(recommendations, map[string]any{
				"scores": map[string]any{"obtainability": score, "estimatedUptime": "3600s"},
				"shards": []map[string]any{{"zone": g.link("zones/" + zone), "machineType": selection.MachineTypes[0], "instanceCount": q.Size, "provisioningModel": gceSpot}},
			})
		}
	}
	return map[string]any{"recommendations": recommendations}, nil
}
