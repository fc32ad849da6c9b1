package catalogue

import (
	"math"
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
			t.Errorf("%s is there twice", m.Type)
		case (m.GPU == "") != (m.GPUs == 0) || (m.GPU == "") != (m.GPUMemoryGB == 0) || m.GPU != "" && !known:
			t.Errorf("%s: GPUs that cannot be: %+v", m.Type, m)
		case m.VCPUs <= 0 || m.MemoryGiB <= 0 || m.Spot > m.OnDemand || (m.OnDemand > 0) != (m.From != ""):
			t.Errorf("cannot be: %+v", m)
		case m.PlanOnly == "" && m.OnDemand == 0:
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
			if usd, _ := ListPrice(cloud, g.Name, 8); usd == 0 {
				t.Errorf("%s: nothing with eight %s has a price", cloud, g.Name)
			}
		}
	}
}

// A GPU type of service.yaml is one of the table, so that what a model may request has a
// capacity and a quota.
func TestEveryGPUIsInTable(t *testing.T) {
	for _, g := range []string{"L4", "A100", "H100"} {
		_, err := service.Parse("service.yaml", []byte("name: chat\nmodels: [{name: m, gpus: [{type: "+g+"}]}]\nregions: [{name: local/us}]\n"))
		if _, known := FindGPU(g); err != nil || !known {
			t.Errorf("%s: %v", g, err)
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
		{"c7i.large", false, "L-1216C47A"},
		{"x2.large", false, ""},
	} {
		if q, _ := EC2QuotaOf(c.kind, c.spot); q.Code != c.code {
			t.Errorf("%s (spot: %v) counts against %q, want %q", c.kind, c.spot, q.Code, c.code)
		}
	}
}
