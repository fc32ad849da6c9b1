package catalogue

import (
	"math"
	"slices"
	"testing"

	"skyserve/internal/service"
)

// Every entry is consistent: its GPUs are in the table, a launchable type has a price and counts
// against a quota, and there are no duplicates.
func TestTableIsComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range machines {
		_, known := FindGPU(m.GPU)
		switch {
		case seen[m.Cloud+m.Type]:
			t.Errorf("%s has two entries", m.Type)
		case (m.GPU == "") != (m.GPUs == 0) || (m.GPU == "") != (m.GPUMemoryGB == 0) || m.GPU != "" && !known:
			t.Errorf("%s: contradictory GPUs: %+v", m.Type, m)
		case m.VCPUs <= 0 || m.MemoryGiB <= 0 || m.Spot > m.OnDemand || (m.OnDemand > 0) != (m.From != ""):
			t.Errorf("%s: contradictory sizes or prices: %+v", m.Type, m)
		case m.NotLaunched == "" && m.OnDemand == 0:
			t.Errorf("%s can be launched and has no price", m.Type)
		}
		seen[m.Cloud+m.Type] = true
		for _, spot := range []bool{false, true} {
			if _, counts := EC2QuotaOf(m.Type, spot); m.Cloud == service.CloudAWS && !counts {
				t.Errorf("%s (spot: %v) counts against no quota", m.Type, spot)
			}
		}
	}
	for _, cloud := range []string{service.CloudAWS, service.CloudGCP} {
		for _, g := range GPUs() {
			if usd, _ := ListPrice(cloud, g.Name, 8); usd == 0 && (cloud == service.CloudAWS || !slices.Contains(onlyAWS, g.Name)) {
				t.Errorf("%s: nothing with eight %s has a price", cloud, g.Name)
			}
		}
	}
}

// onlyAWS are the GPUs that Google does not rent out
// (https://cloud.google.com/compute/docs/gpus, November 2026).
var onlyAWS = []string{"A10G", "L40S"}

func TestCloudsRentGPUs(t *testing.T) {
	for _, g := range GPUs() {
		if !Rents(service.CloudAWS, g.Name, 8) || Rents(service.CloudGCP, g.Name, 8) == slices.Contains(onlyAWS, g.Name) || !Rents(service.CloudLocal, g.Name, 3) {
			t.Errorf("%s: rented by AWS %v, by Google %v", g.Name, Rents(service.CloudAWS, g.Name, 8), Rents(service.CloudGCP, g.Name, 8))
		}
	}
}

// A GPU type of service.yaml is one of the table, so that what a model may request has a
// capacity and a quota.
func TestEveryGPUIsInTable(t *testing.T) {
	for _, g := range []string{"L4", "A10G", "L40S", "A100", "H100", "H200"} {
		_, err := service.Parse("service.yaml", []byte("name: chat\nmodels: [{name: m, gpus: [{type: "+g+"}]}]\nregions: [{name: local/us}]\n"))
		if _, known := FindGPU(g); err != nil || !known {
			t.Errorf("%s: %v", g, err)
		}
	}
	if len(GPUs()) != 6 {
		t.Errorf("the table has %d GPU types, this test 6", len(GPUs()))
	}
}

func TestAlternatives(t *testing.T) {
	for _, c := range []struct {
		cloud, gpu, want string
		counts           bool
	}{
		{service.CloudAWS, "L4", "1, 4 or 8", true},
		{service.CloudGCP, "A10G", "A100, H100, H200 or L4", false},
		{service.CloudLocal, "L4", "", false}, // it rents nothing
	} {
		if got, counts := Alternatives(c.cloud, c.gpu); got != c.want || counts != c.counts {
			t.Errorf("%s %s: got %q, %t", c.cloud, c.gpu, got, counts)
		}
	}
}

func TestListPrice(t *testing.T) {
	for _, c := range []struct {
		cloud, gpu string
		count      int
		usd        float64
		from       string
	}{
		{service.CloudAWS, "L4", 1, 0.8048, "g6.xlarge in us-east-1"},
		{service.CloudAWS, "L4", 2, 1.6096, "g6.xlarge in us-east-1, by the GPU"},
		{service.CloudAWS, "A100", 8, 21.957642, "p4d.24xlarge in us-east-1"},
		{service.CloudGCP, "A100", 4, 14.69354, "a2-highgpu-4g in us-central1"},
		{service.CloudGCP, "H100", 1, 10.97875, "a3-highgpu-8g in us-east4, by the GPU"}, // smaller types are not sold on demand
		{service.CloudGCP, "H100", 8, 87.83, "a3-highgpu-8g in us-east4"},
		{service.CloudGCP, "H200", 8, 84.806908493, "a3-ultragpu-8g in us-central1, by the GPU"},
		{service.CloudGCP, "B200", 1, 0, ""},
	} {
		if usd, from := ListPrice(c.cloud, c.gpu, c.count); math.Abs(usd-c.usd) > 1e-9 || from != c.from {
			t.Errorf("%s %d x %s: $%g (%s), want $%g (%s)", c.cloud, c.count, c.gpu, usd, from, c.usd, c.from)
		}
	}
}

func TestEC2Quotas(t *testing.T) {
	for _, c := range []struct {
		kind string
		spot bool
		code string
	}{
		{"g6.xlarge", false, "L-DB2E81BA"},
		{"gr6.4xlarge", true, "L-3819A6DF"},
		{"p4d.24xlarge", false, "L-417A185B"},
		{"p4de.24xlarge", true, "L-7212CCBC"},
		{"p5.48xlarge", true, "L-C4BD4855"},
		{"p5en.48xlarge", true, "L-C4BD4855"},
		{"p5en.48xlarge", false, "L-417A185B"},
		{"g5.xlarge", false, "L-DB2E81BA"},
		{"g6e.xlarge", true, "L-3819A6DF"},
		{"c7i.large", false, "L-1216C47A"},
		{"x2.large", false, ""},
	} {
		if q, _ := EC2QuotaOf(c.kind, c.spot); q.Code != c.code {
			t.Errorf("%s (spot: %v) counts against %q, want %q", c.kind, c.spot, q.Code, c.code)
		}
	}
}

// Google sells A3 High with fewer than eight GPUs, and A3 Ultra, as spot and not on demand
// (https://cloud.google.com/compute/docs/accelerator-optimized-machines, November 2026).
func TestCloudsSellOnDemand(t *testing.T) {
	for _, c := range []struct {
		cloud, gpu string
		count      int
		sold       bool
	}{
		{service.CloudAWS, "H100", 1, true},
		{service.CloudAWS, "H200", 8, true},
		{service.CloudGCP, "L4", 1, true},
		{service.CloudGCP, "H100", 1, false},
		{service.CloudGCP, "H100", 4, false},
		{service.CloudGCP, "H100", 8, true},
		{service.CloudGCP, "H200", 8, false},
		{service.CloudLocal, "H100", 1, true},
	} {
		if sold := SellsOnDemand(c.cloud, c.gpu, c.count); sold != c.sold {
			t.Errorf("%s sells %d x %s on demand: got %v, want %v", c.cloud, c.count, c.gpu, sold, c.sold)
		}
	}
}
