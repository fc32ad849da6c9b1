package aws_test

import (
	"fmt"
	"slices"
	"testing"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Every GPU of the table can be configured, is offered, has a price of AWS's list, counts against a
// quota that AWS reports, and can be launched on demand and as spot.
func TestEveryGPUCanBeRented(t *testing.T) {
	fake := newCloud(nil)
	fake.DefaultQuotaLimits = map[string]float64{}
	for _, q := range catalogue.EC2Quotas() {
		fake.DefaultQuotaLimits[q.Code] = 1000
	}
	p := open(t, fake)
	launchPrerequisites(t, p, east)
	offers, err := p.Offerings(t.Context(), east)
	if err != nil {
		t.Fatal(err)
	}
	prices, err := p.Prices(t.Context(), east)
	if err != nil {
		t.Fatal(err)
	}
	offers = offers.WithPrices(prices)
	for n, g := range catalogue.GPUs() {
		text := fmt.Sprintf("name: chat\nmodels: [{name: m, gpus: [{type: %s, count: 8}]}]\nregions: [{name: aws/us-east-1, capacity: [on_demand, spot], replicas: {min: 1, max: 8}}]\nbalancer: {insecure: true, auth: {keys_from: env:KEYS}}\n", g.Name)
		spec, err := service.Parse("service.yaml", []byte(text))
		if err != nil {
			t.Errorf("%s: %v", g.Name, err)
			continue
		}
		with := offers.WithGPU(g.Name, 8).SortedByCapacity([]service.CapacityType{service.CapacityOnDemand, service.CapacitySpot})
		if len(with) < 6 { // two capacity types in three zones of each type
			t.Errorf("%s: got %d offerings, want at least 6: %v", g.Name, len(with), with)
		}
		if with[0].PricePerHour != testcloud.FakePrice("us-east-1", with[0].Type) || with[0].PriceSource != "AWS price list, us-east-1" {
			t.Errorf("%s: the price of %s is %g (%s)", g.Name, with[0], with[0].PricePerHour, with[0].PriceSource)
		}
		for _, capacity := range []service.CapacityType{service.CapacityOnDemand, service.CapacitySpot} {
			w := machine(fmt.Sprintf("us-east-1-%d-%s", n, capacity), provision.KindReplica, east, capacity)
			w.Offerings = with.SortedByCapacity([]service.CapacityType{capacity})[:1]
			launch(t, p, w)
		}
		quotas, err := p.Quotas(t.Context(), east)
		if err != nil {
			t.Fatal(err)
		}
		for _, need := range cloud.CompareQuotas(cloud.QuotaNeeds(spec), quotas) {
			if need.Code != "L-1216C47A" && (need.Limit == nil || *need.Used == 0) { // this test launches no balancer
				t.Errorf("%s: quota %s is not reported, or the launches do not count against it", g.Name, need.Code)
			}
		}
	}
	if have := list(t, p); len(slices.DeleteFunc(have, func(o provision.Object) bool { return o.Kind != provision.KindReplica })) != 2*len(catalogue.GPUs()) {
		t.Errorf("launched %d replicas, want two of each of the %d GPUs", len(have), len(catalogue.GPUs()))
	}
}
