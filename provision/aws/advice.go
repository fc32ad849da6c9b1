package aws

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
	"skyserve/provision"
)

// scoredTypes is the number of instance types below which EC2 always returns a low score
// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetSpotPlacementScores.html, November 2026).
const scoredTypes = 3

// maxScore is the best score, minScore the lowest: a request is unlikely to succeed
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/how-sps-works.html, not checked in November 2026).
const (
	maxScore = 10
	minScore = 1
)

// CapacityAdvice returns EC2's spot placement scores by type and zone; see provision.CapacityAdvisor. EC2
// scores groups of types: a type has the score of all types of the catalogue with the same GPUs. AWS limits the
// number of different requests per 24 hours.
func (p *Provider) CapacityAdvice(ctx context.Context, name service.Region, offers provision.Offerings, count int) ([]provision.CapacityAdvice, error) {
	r, err := p.region(name)
	if err != nil {
		return nil, err
	}
	doing := fmt.Sprintf("reading the spot placement scores of %s", name)
	zones, err := r.zoneNames(ctx)
	if err != nil {
		return nil, wrapError(doing, err)
	}
	var all []provision.CapacityAdvice
	scored := map[string]map[string]int{} // by the group's first type, then by zone
	for _, o := range offers {
		if o.Capacity != service.CapacitySpot || slices.ContainsFunc(all, func(a provision.CapacityAdvice) bool { return a.Type == o.Type }) {
			continue
		}
		group := catalogue.SameGPUs(service.CloudAWS, o.GPU, o.GPUs)
		if len(group) == 0 {
			continue
		}
		scores, asked := scored[group[0]]
		if !asked {
			if scores, err = r.spotScores(ctx, group, count, zones); err != nil {
				return all, wrapAdvice(doing, err)
			}
			scored[group[0]] = scores
		}
		all = append(all, adviceOf(o.Type, scores, len(group))...)
	}
	return all, nil
}

// adviceOf returns the scores of a type, sorted by zone. The text warns of a score that EC2 always
// returns as low.
func adviceOf(name string, scores map[string]int, group int) []provision.CapacityAdvice {
	var all []provision.CapacityAdvice
	for zone, score := range scores {
		text := fmt.Sprintf("spot placement score %d of 10", score)
		if group < scoredTypes {
			text += fmt.Sprintf(" (always low: AWS gives a low score for fewer than %d instance types; types with these GPUs: %d)", scoredTypes, group)
		}
		all = append(all, provision.CapacityAdvice{Type: name, Zone: zone, SpotScore: &score, Score: new(float64(score) / maxScore), Unlikely: score == minScore && group >= scoredTypes, Text: text})
	}
	slices.SortFunc(all, func(a, b provision.CapacityAdvice) int { return cmp.Compare(a.Zone, b.Zone) })
	return all
}

// wrapAdvice wraps an error, with the next step where AWS limits the number of requests.
func wrapAdvice(doing string, err error) error {
	wrapped := wrapError(doing, err)
	if codeOf(err) != codeMaxConfigs {
		return wrapped
	}
	return &provision.AdviceLimitError{
		Err:  wrapped,
		Hint: "AWS limits the number of different requests for scores per 24 hours: repeat an earlier request, restrict --gpu and --region, or wait for 24 hours",
	}
}

// zoneNames returns the names of the region's availability zones by their ids: the scores have ids, which
// are the same in every AWS account, unlike names.
func (r *region) zoneNames(ctx context.Context) (map[string]string, error) {
	found, err := r.ec2.DescribeAvailabilityZones(ctx, &ec2.DescribeAvailabilityZonesInput{})
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, z := range found.AvailabilityZones {
		names[aws.ToString(z.ZoneId)] = aws.ToString(z.ZoneName)
	}
	return names, nil
}

// spotScores returns the score of each zone for count machines of any of some types.
func (r *region) spotScores(ctx context.Context, types []string, count int, zones map[string]string) (map[string]int, error) {
	scores := map[string]int{}
	pages := ec2.NewGetSpotPlacementScoresPaginator(r.ec2, &ec2.GetSpotPlacementScoresInput{
		InstanceTypes: types, RegionNames: []string{r.name}, SingleAvailabilityZone: aws.Bool(true), TargetCapacity: aws.Int32(int32(count)),
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, s := range page.SpotPlacementScores {
			if zone := zones[aws.ToString(s.AvailabilityZoneId)]; zone != "" {
				scores[zone] = int(aws.ToInt32(s.Score))
			}
		}
	}
	return scores, nil
}
