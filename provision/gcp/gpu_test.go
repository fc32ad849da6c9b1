package gcp_test

import (
	"fmt"
	"math"
	"testing"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Every GPU of the table that Google rents out can be configured, is offered, has a price of Google's
// list, counts against a quota that Compute Engine reports for spot machines, and can be launched.
func TestEveryGPUCanBeRented(t *testing.T) {
	g := newGCE(nil)
	p := provider(g)
	offers, err := p.Offerings(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	prices, err := p.Prices(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	offers = offers.WithPrices(prices)
	rented := 0
	for n, gpu := range catalogue.GPUs() {
		with := offers.WithGPU(gpu.Name, 8).SortedByCapacity([]service.CapacityType{service.CapacitySpot})
		if !catalogue.Rents(service.CloudGCP, gpu.Name, 8) {
			if len(with) > 0 {
				t.Errorf("%s: got %v, want no offering", gpu.Name, with)
			}
			continue
		}
		rented++
		text := fmt.Sprintf("name: chat\nmodels: [{name: m, gpus: [{type: %s, count: 8}]}]\nregions: [{name: gcp/us-central1, capacity: [spot], replicas: {min: 1, max: 8}}]\nbalancer: {insecure: true, auth: {keys_from: env:KEYS}}\n", gpu.Name)
		spec, err := service.Parse("service.yaml", []byte(text))
		if err != nil || len(with) == 0 {
			t.Errorf("%s: %v, offerings %v", gpu.Name, err, with)
			continue
		}
		if want := testcloud.FakeGCEPrice("us-central1", with[0].Type, true); math.Abs(with[0].PricePerHour-want) > 1e-6 || want == 0 {
			t.Errorf("%s: the spot price of %s is %g (%s), want %g", gpu.Name, with[0], with[0].PricePerHour, with[0].PriceSource, want)
		}
		w := replica(fmt.Sprintf("us-central1-%d", n), service.CapacitySpot)
		w.Offerings = with[:1]
		if _, err := p.Launch(t.Context(), w); err != nil {
			t.Errorf("%s: %v", gpu.Name, err)
			continue
		}
		quotas, err := p.Quotas(t.Context(), here)
		if err != nil {
			t.Fatal(err)
		}
		for _, need := range cloud.CompareQuotas(cloud.QuotaNeeds(spec), quotas) {
			if need.Region == here && need.Code != "CPUS" && (need.Limit == nil || *need.Used == 0) {
				t.Errorf("%s: quota %s is not reported, or the launch does not count against it", gpu.Name, need.Code)
			}
		}
	}
	if rented != 4 {
		t.Errorf("Google rents out %d GPUs of the table, want 4", rented)
	}
}

// A machine that supports no Persistent Disk boots from a Hyperdisk.
func TestUltraMachineBootsFromHyperdisk(t *testing.T) {
	g := newGCE(nil)
	w := replica("us-central1-0", service.CapacitySpot)
	w.Offerings = provision.Offerings{offer("a3-ultragpu-8g", service.CapacitySpot)}
	if _, err := provider(g).Launch(t.Context(), w); err != nil {
		t.Error(err)
	}
}
