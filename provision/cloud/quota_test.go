package cloud_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// formatNeeds formats quota needs.
func formatNeeds(needs []cloud.QuotaNeed) []string {
	var words []string
	for _, n := range needs {
		words = append(words, strings.Join([]string{string(n.Region), n.Code, strings.Repeat("|", int(n.Needs)), n.Unit}, " "))
	}
	return words
}

// Two replicas of each model in us-east-1, one of them on demand: g6.xlarge has 4 vCPUs,
// a balancer's machine 2.
var minNeeds = []string{
	"aws/ap-northeast-1 L-1216C47A |||| vcpus",
	"aws/ap-northeast-1 L-DB2E81BA |||||||| vcpus",
	"aws/us-east-1 L-1216C47A || vcpus",
	"aws/us-east-1 L-3819A6DF |||||||| vcpus",
	"aws/us-east-1 L-DB2E81BA |||||||| vcpus",
	"gcp/ CPUS_ALL_REGIONS |||||| vcpus",
	"gcp/ GPUS_ALL_REGIONS | gpus",
	"gcp/europe-west4 CPUS || vcpus",
	"gcp/europe-west4 IN_USE_ADDRESSES || addresses",
	"gcp/europe-west4 NVIDIA_L4_GPUS | gpus",
	"gcp/europe-west4 SSD_TOTAL_GB " + strings.Repeat("|", 280) + " gb",
}

func TestQuotaNeeds(t *testing.T) {
	spec := parse(t, threeRegions)
	if got := formatNeeds(cloud.CompareQuotas(cloud.QuotaNeeds(spec), nil)); !slices.Equal(got, minNeeds) {
		t.Errorf("the fewest machines: got %q, want %q", got, minNeeds)
	}
	// a service without machines requires the quotas of all its launches
	changes := provision.Diff(plan(t, input(spec)).Desired, nil)
	if got := formatNeeds(cloud.CompareQuotas(cloud.QuotaNeedsOfChanges(changes), nil)); !slices.Equal(got, minNeeds) {
		t.Errorf("all launches: got %q, want %q", got, minNeeds)
	}
	for _, c := range changes {
		c.Action = provision.ActionReplace
		if got := cloud.QuotaNeedsOfChanges(provision.Changes{c}); len(got) > 0 {
			t.Errorf("replacing %s needs %v more", c.ID(), got)
		}
	}
}

// Replicas of on_demand_base are launched on demand and count so, whichever capacity type precedes it.
func TestOnDemandBaseBeforeOtherCapacity(t *testing.T) {
	const text = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models: [{name: llama, engine: {kind: vllm}, gpus: [{type: L4}]}]
regions: [{name: gcp/us-central1, replicas: {min: 2, max: 4}, on_demand_base: 1, capacity: CAPACITY}]
`
	for capacity, second := range map[string]service.CapacityType{
		"[spot, on_demand]":             service.CapacitySpot,
		"[flex_start, on_demand]":       service.CapacityFlexStart,
		"[flex_start, spot, on_demand]": service.CapacityFlexStart,
		"[on_demand, flex_start]":       service.CapacityOnDemand,
	} {
		t.Run(capacity, func(t *testing.T) {
			in := input(parse(t, strings.Replace(text, "CAPACITY", capacity, 1)))
			for region, all := range in.Offerings {
				for _, o := range all {
					if o.Capacity == service.CapacitySpot {
						o.Capacity = service.CapacityFlexStart
						in.Offerings[region] = append(in.Offerings[region], o)
					}
				}
			}
			desired := plan(t, in).Desired
			for _, w := range desired {
				switch w.ID {
				case "us-central1-0":
					for _, o := range w.Offerings {
						if o.Capacity != service.CapacityOnDemand {
							t.Errorf("the first replica may be launched as %s", o.Capacity)
						}
					}
				case "us-central1-1":
					if got := w.Offerings[0].Capacity; got != second {
						t.Errorf("the second replica is launched as %s, want %s", got, second)
					}
				}
			}
			needs, launched := cloud.QuotaNeeds(in.Spec), cloud.QuotaNeedsOfChanges(provision.Diff(desired, nil))
			if !maps.Equal(needs, launched) {
				t.Errorf("the service needs %v, its launches %v", needs, launched)
			}
		})
	}
}

// A launch is over quota if none of its offerings is within the remaining quotas.
func TestOverQuota(t *testing.T) {
	const east, spot, demand = service.Region("aws/us-east-1"), "L-3819A6DF", "L-DB2E81BA"
	quota := func(code string, limit, used float64) provision.Quota {
		return provision.Quota{Region: east, Code: code, Name: "a quota", Unit: "vcpus", Limit: limit, Used: used}
	}
	for _, tt := range []struct {
		name   string
		quotas []provision.Quota
		over   string // replicas: two of each model, the first on demand, the second as spot or else on demand; llama has H100 too
		known  int    // the quotas that the first offerings exceed
	}{
		{"nothing known", nil, "", 0},
		{"sufficient quotas", []provision.Quota{quota(spot, 8, 0), quota(demand, 8, 0)}, "", 0},
		{"no spot quota, sufficient on-demand quota", []provision.Quota{quota(spot, 0, 0), quota(demand, 16, 0)}, "", 1},
		{"no spot quota, on-demand quota too small by one", []provision.Quota{quota(spot, 0, 0), quota(demand, 16, 4)}, "us-east-1-qwen-1", 1},
		{"no spot quota, unknown on-demand quota", []provision.Quota{quota(spot, 0, 0)}, "", 1},
		{"nothing at all", []provision.Quota{quota(spot, 0, 0), quota(demand, 3, 0)}, "us-east-1-qwen-0 us-east-1-qwen-1", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			changes := provision.Diff(plan(t, input(parse(t, threeRegions))).Desired, nil)
			changes = slices.DeleteFunc(changes, func(c provision.Change) bool { return c.Region() != east || c.Kind() != provision.KindReplica })
			var over []string
			for _, c := range cloud.LaunchesOverQuota(changes, tt.quotas) {
				over = append(over, c.ID())
			}
			if got := strings.Join(over, " "); got != tt.over {
				t.Errorf("over quota: got %q, want %q", got, tt.over)
			}
			exceeded := 0
			for _, n := range cloud.CompareQuotas(cloud.QuotaNeedsOfChanges(changes), tt.quotas) {
				if n.Exceeded() {
					exceeded++
				}
			}
			if exceeded != tt.known {
				t.Errorf("%d quotas are exceeded, want %d", exceeded, tt.known)
			}
		})
	}
}

func TestQuotaRequestText(t *testing.T) {
	limit, used := 8.0, 4.0
	for want, n := range map[string]cloud.QuotaNeed{
		"--quota-code L-DB2E81BA --desired-value 16 --region us-east-1":          {Region: "aws/us-east-1", Code: "L-DB2E81BA", Needs: 12, Limit: &limit, Used: &used},
		"request a limit of 6 for NVIDIA_L4_GPUS in us-central1 at":              {Region: "gcp/us-central1", Code: "NVIDIA_L4_GPUS", Needs: 2, Limit: &limit, Used: &used},
		"request a limit of 8 for GPUS_PER_GPU_FAMILY (NVIDIA_H100) in us-east4": {Region: "gcp/us-east4", Code: "GPUS_PER_GPU_FAMILY (NVIDIA_H100)", Needs: 8},
		"request a limit of 1 for GPUS_ALL_REGIONS in all regions at":            {Region: "gcp/", Code: "GPUS_ALL_REGIONS", Needs: 1},
	} {
		if got := n.IncreaseRequest(); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q in it", got, want)
		}
	}
}
