package gcp

import (
	"context"
	"fmt"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"

	"skyserve/internal/service"
	"skyserve/provision"
)

// CapacityAdvice returns the advice of Google's Capacity Advisor for each spot offering
// (https://cloud.google.com/compute/docs/reference/rest/v1/advice/capacity, November 2026); see
// provision.CapacityAdvisor. A request covers one type in one zone. It requires the permission
// compute.advice.capacity.
func (p *Provider) CapacityAdvice(ctx context.Context, region service.Region, offers provision.Offerings, count int) ([]provision.CapacityAdvice, error) {
	client, project, err := newClient(ctx, p, compute.NewAdviceRESTClient)
	if err != nil {
		return nil, wrapError(err, "reading the capacity advice of %s", region.ShortName())
	}
	var all []provision.CapacityAdvice
	for _, o := range offers {
		if o.Capacity != service.CapacitySpot || o.Zone == "" {
			continue
		}
		found, err := client.Capacity(ctx, &computepb.CapacityAdviceRpcRequest{
			Project: project, Region: region.ShortName(), CapacityAdviceRequestResource: adviceRequest(o, count),
		})
		if err != nil {
			return all, wrapError(err, "reading the capacity advice of %s", region.ShortName())
		}
		if text := adviceText(found); text != "" {
			all = append(all, provision.CapacityAdvice{Type: o.Type, Zone: o.Zone, Score: obtainabilityOf(found), Unlikely: isUnlikely(found), Text: text})
		}
	}
	return all, nil
}

// adviceRequest returns the request for the advice about count spot machines of one type in one zone.
func adviceRequest(o provision.Offering, count int) *computepb.CapacityAdviceRequest {
	return &computepb.CapacityAdviceRequest{
		Size: new(int32(count)),
		DistributionPolicy: &computepb.CapacityAdviceRequestDistributionPolicy{
			TargetShape: new("ANY_SINGLE_ZONE"),
			Zones:       []*computepb.CapacityAdviceRequestDistributionPolicyZoneConfiguration{{Zone: new("zones/" + o.Zone)}},
		},
		InstanceFlexibilityPolicy: &computepb.CapacityAdviceRequestInstanceFlexibilityPolicy{
			InstanceSelections: map[string]*computepb.CapacityAdviceRequestInstanceFlexibilityPolicyInstanceSelection{
				"one": {MachineTypes: []string{o.Type}},
			},
		},
		InstanceProperties: &computepb.CapacityAdviceRequestInstanceProperties{
			Scheduling: &computepb.CapacityAdviceRequestInstancePropertiesScheduling{ProvisioningModel: new(spotModel)},
		},
	}
}

// obtainabilityOf returns the obtainability of the best recommendation; nil if it is unknown.
func obtainabilityOf(found *computepb.CapacityAdviceResponse) *float64 {
	scores := found.GetRecommendations()[0].GetScores()
	if scores.Obtainability == nil {
		return nil
	}
	return new(scores.GetObtainability())
}

// minObtainability is the obtainability up to which a launch counts as unlikely: our choice, because Google names none.
const minObtainability = 0.1

// isUnlikely reports whether the best recommendation has at most minObtainability.
func isUnlikely(found *computepb.CapacityAdviceResponse) bool {
	score := obtainabilityOf(found)
	return score != nil && *score <= minObtainability
}

// adviceText formats the best recommendation; empty without one.
func adviceText(found *computepb.CapacityAdviceResponse) string {
	if len(found.GetRecommendations()) == 0 || found.GetRecommendations()[0].GetScores() == nil {
		return ""
	}
	scores := found.GetRecommendations()[0].GetScores()
	text := fmt.Sprintf("obtainability %.2g", scores.GetObtainability())
	if uptime := scores.GetEstimatedUptime(); uptime != "" {
		text += ", expected uptime at least " + uptime
	}
	return text
}
