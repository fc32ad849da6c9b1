package main

import (
	"encoding/json"
	"net/http/httptest"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
)

// A cloud handler that acts for a controller in another cloud launches into the service's network.
func TestMachinesUseNetworkOfService(t *testing.T) {
	cloud := testcloud.NewAWS(nil, "us-east-1")
	cloud.AddNetwork("us-east-1", "vpc-0ff1ce00", testcloud.Subnet{ID: "subnet-0000000b", Zone: "us-east-1b", Gateway: "igw-0ff1ce"})
	server := httptest.NewServer(cloud)
	defer server.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	spec := &service.Spec{Regions: []service.RegionSpec{{Name: "aws/us-east-1", Network: "vpc-0ff1ce00", Subnets: []string{"subnet-0000000b"}}}}
	for zones, n := range map[int]map[service.Region]provision.Network{1: networksOf(spec), 3: networksOf(&service.Spec{})} {
		text, err := json.Marshal(cloudAccess{EndpointAWS: server.URL, Networks: n})
		if err != nil {
			t.Fatal(err)
		}
		places, each, err := providersInside(t.Context(), text, []service.Region{"aws/us-east-1"}, cloudFlags{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []provision.Provider{places, each["aws/us-east-1"]} {
			offers, err := p.Offerings(t.Context(), "aws/us-east-1")
			found := map[string]bool{}
			for _, o := range offers {
				found[o.Zone] = true
			}
			if err != nil || len(found) != zones {
				t.Errorf("offers are in %v, want %d zones: %v", found, zones, err)
			}
		}
	}
}
