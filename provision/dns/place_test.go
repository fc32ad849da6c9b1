package dns

import (
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
)

func TestNearestRegionOfAWS(t *testing.T) {
	for _, tt := range []struct {
		region service.Region
		want   string
	}{
		{"aws/us-west-2", "us-west-2"},
		{"gcp/us-east4", "us-east-1"},
		{"gcp/us-east5", "us-east-2"},
		{"gcp/europe-west4", "eu-central-1"},
		{"gcp/asia-southeast1", "ap-southeast-1"},
		{"gcp/australia-southeast2", "ap-southeast-4"},
		{"gcp/southamerica-west1", "sa-east-1"},
		{"static/paris", "eu-west-3"},
		{"static/vancouver", "us-west-2"},
		{"static/eu-north-1", "eu-north-1"},
		{"static/europe-north1", "eu-north-1"},
		{"local/us", "us-east-1"},
		{"local/asia", "ap-northeast-1"},
	} {
		if got, err := AWSRegionOf(tt.region); got != tt.want || err != nil {
			t.Errorf("%s: got %q, %v; want %s", tt.region, got, err, tt.want)
		}
	}
}

func TestAWSRegionsMapToThemselves(t *testing.T) {
	for _, r := range awsRegions {
		if got, err := AWSRegionOf(service.Region("aws/" + r.name)); got != r.name || err != nil {
			t.Errorf("%s: got %q, %v", r.name, got, err)
		}
	}
}

// The locations of all regions that a service may use are known, except AWS partitions without Route 53
// latency records.
func TestAllRegionsHaveLocations(t *testing.T) {
	apart := []string{"cn-", "us-gov-", "eusc-"}
	for _, cloud := range []string{service.CloudAWS, service.CloudGCP} {
		for _, name := range service.KnownRegions(cloud) {
			if slices.ContainsFunc(apart, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
				continue
			}
			if _, known := locateRegion(service.Region(cloud + "/" + name)); !known {
				t.Errorf("the location of %s/%s is unknown", cloud, name)
			}
		}
	}
	for cloud, table := range map[string][]location{service.CloudAWS: awsRegions, service.CloudGCP: gcpRegions} {
		for _, p := range table {
			if !slices.Contains(service.KnownRegions(cloud), p.name) {
				t.Errorf("%s has no region %s", cloud, p.name)
			}
		}
	}
}

func TestUnknownLocationError(t *testing.T) {
	for _, region := range []service.Region{"static/basement", "aws/us-east1", "gcp/us-east-1"} {
		if _, err := AWSRegionOf(region); err == nil || !strings.Contains(err.Error(), string(region)) {
			t.Errorf("%s: got %v", region, err)
		}
	}
}

// Distances are symmetric, zero to the same location, and match known distances.
func TestKilometres(t *testing.T) {
	paris, tokyo := location{"", 48.9, 2.4}, location{"", 35.7, 139.7}
	if got := kilometres(paris, tokyo); got < 9600 || got > 9800 || got != kilometres(tokyo, paris) || kilometres(paris, paris) != 0 {
		t.Errorf("Paris to Tokyo: %.0f km", got)
	}
}
