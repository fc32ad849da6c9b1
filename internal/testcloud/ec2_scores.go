package testcloud

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The published rules of spot placement scores
// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetSpotPlacementScores.html, November 2026):
// fewer than three instance types always score low, and a request names at most ten regions.
const (
	ec2ScoredTypes   = 3
	ec2LowScore      = 1
	ec2ScoredRegions = 10
)

// ec2Zone is an availability zone. Its id is that of another letter than its name in this AWS account.
type ec2Zone struct {
	Name   string `xml:"zoneName"`
	ID     string `xml:"zoneId"`
	Region string `xml:"regionName"`
	State  string `xml:"zoneState"`
}

type zonesAnswer struct {
	Zones []ec2Zone `xml:"availabilityZoneInfo>item"`
}

// zoneID returns the id of a zone.
func (r *ec2Region) zoneID(zone string) string {
	i := slices.Index(r.zones, zone)
	return fmt.Sprintf("%s-az%d", strings.ReplaceAll(r.name, "-", ""), len(r.zones)-i)
}

func (r *ec2Region) describeZones(awsForm) (any, error) {
	var answer zonesAnswer
	for _, zone := range r.zones {
		answer.Zones = append(answer.Zones, ec2Zone{zone, r.zoneID(zone), r.name, "available"})
	}
	return answer, nil
}

type ec2Score struct {
	Region string `xml:"region"`
	ZoneID string `xml:"availabilityZoneId"`
	Score  int    `xml:"score"`
}

type scoresAnswer struct {
	Scores []ec2Score `xml:"spotPlacementScoreSet>item"`
	Next   string     `xml:"nextToken,omitempty"`
}

// getScores serves GetSpotPlacementScores for the zones of this region.
func (r *ec2Region) getScores(f awsForm) (any, error) {
	types, regions := f.list("InstanceType"), f.list("RegionName")
	switch {
	case f.number("TargetCapacity") < 1 || len(regions) > ec2ScoredRegions || len(types) == 0:
		return nil, badRequest("InvalidParameterValue", "The request for spot placement scores is not valid")
	case f.get("SingleAvailabilityZone") != "true":
		return nil, badRequest("InvalidParameterValue", "not emulated: scores of regions")
	}
	if err := r.admitScoreRequest(f.canonical("NextToken", "MaxResults")); err != nil {
		return nil, err
	}
	var scores []ec2Score
	for _, zone := range r.zones {
		offered := slices.ContainsFunc(types, func(kind string) bool { return r.offers(zone, kind) })
		if !offered || !slices.Contains(regions, r.name) {
			continue
		}
		score := 3
		if r.aws.SpotScore != nil {
			score = r.aws.SpotScore(zone, types)
		}
		if len(types) < ec2ScoredTypes {
			score = ec2LowScore
		}
		scores = append(scores, ec2Score{r.name, r.zoneID(zone), score})
	}
	part, next := paginate(r.aws, scores, f.get("NextToken"), f.get("MaxResults"))
	return scoresAnswer{part, next}, nil
}

// admitScoreRequest rejects a request that differs from too many others of the last 24 hours.
func (r *ec2Region) admitScoreRequest(request string) error {
	now, a := r.aws.now(), r.aws
	for earlier, at := range a.scoreRequests {
		if now.Sub(at) >= 24*time.Hour {
			delete(a.scoreRequests, earlier)
		}
	}
	if _, repeated := a.scoreRequests[request]; !repeated && a.MaxScoreRequests > 0 && len(a.scoreRequests) >= a.MaxScoreRequests {
		return badRequest("MaxConfigLimitExceeded", "You have exceeded your maximum allowed Spot placement configurations. You can retry configurations that you used within the last 24 hours, or wait for 24 hours before specifying a new configuration.")
	}
	if a.scoreRequests == nil {
		a.scoreRequests = map[string]time.Time{}
	}
	a.scoreRequests[request] = now
	return nil
}
