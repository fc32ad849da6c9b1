package cloud_test

import (
	"slices"
	"strings"
	"testing"

	"skyserve/provision/cloud"
)

// A file whose replicas no machine can run is an error; what is only never used is a warning.
func TestGPUsThatNoCloudRents(t *testing.T) {
	const two = `[{name: aws/us-east-1}, {name: gcp/us-central1}]`
	for _, tt := range []struct {
		gpus, bounds, regions string
		errors, warnings      []string
	}{
		{gpus: "{type: L4}", regions: two},
		{gpus: "{type: L4, count: 4}", regions: two},
		{
			gpus: "{type: L4, count: 3}", regions: "[{name: aws/us-east-1, replicas: {min: 1, max: 4}}]",
			errors: []string{"models[0].gpus[0].count: must be 1, 4 or 8 for L4 in aws/us-east-1, got 3; or let no replica of m start there: models[0].regions: {aws/us-east-1: {max: 0}}"},
		},
		{
			gpus: "{type: L4, count: 3}", regions: "[{name: aws/us-east-1, replicas: {min: 0, max: 4}}]",
			warnings: []string{"models[0].gpus[0].count: must be 1, 4 or 8 for L4 in aws/us-east-1, got 3; or let no replica of m start there: models[0].regions: {aws/us-east-1: {max: 0}}"},
		},
		{gpus: "{type: L4, count: 3}", bounds: "aws/us-east-1: {max: 0}, gcp/us-central1: {max: 0}", regions: two},
		{
			gpus: "{type: A10G}", regions: "[{name: gcp/us-central1, replicas: {min: 1}}]",
			errors: []string{"models[0].gpus[0].type: must be A100, H100, H200 or L4 in gcp/us-central1, got A10G; or let no replica of m start there: models[0].regions: {gcp/us-central1: {max: 0}}"},
		},
		{
			gpus: "{type: A10G}, {type: L4, count: 3}", regions: "[{name: gcp/us-central1, replicas: {min: 1}}]",
			errors: []string{
				"models[0].gpus[0].type: must be A100, H100, H200 or L4 in gcp/us-central1, got A10G; or let no replica of m start there: models[0].regions: {gcp/us-central1: {max: 0}}",
				"models[0].gpus[1].count: must be 1, 2, 4 or 8 for L4 in gcp/us-central1, got 3; or let no replica of m start there: models[0].regions: {gcp/us-central1: {max: 0}}",
			},
		},
		{gpus: "{type: A10G}, {type: L4}", regions: two},
		{
			gpus: "{type: L4}, {type: L4, count: 3}", regions: two,
			warnings: []string{"models[0].gpus[1].count: must be 1, 4 or 8 for L4 in aws/us-east-1, got 3; this entry is never used"},
		},
		{gpus: "{type: A10G, count: 3}", regions: "[{name: local/us}]"},
		{
			gpus: "{type: L4}", regions: "[{name: aws/us-east-1, capacity: [reserved]}]",
			warnings: []string{"regions[0].capacity: allows only reserved machines, and regions[0].reserved lists none, so plan finds no capacity there; list them, or add on_demand or spot"},
		},
		{gpus: "{type: L4}", regions: "[{name: aws/us-east-1, capacity: [reserved], reserved: [{type: g6.xlarge, count: 1}]}]"},
	} {
		engine, balancer := "", "balancer: {insecure: true, auth: {keys_from: file:k}}"
		if strings.Contains(tt.regions, "local/") {
			engine, balancer = ", engine: {kind: sim}", ""
		}
		spec := parse(t, "name: chat\nmodels: [{name: m"+engine+", gpus: ["+tt.gpus+"], regions: {"+tt.bounds+"}}]\nregions: "+tt.regions+"\n"+balancer+"\n")
		var got []string
		for _, p := range cloud.GPUProblems(spec) {
			got = append(got, strings.TrimPrefix(p.Message(), ": "))
		}
		if !slices.Equal(got, tt.errors) {
			t.Errorf("%s in %s: errors\n%s\nwant\n%s", tt.gpus, tt.regions, strings.Join(got, "\n"), strings.Join(tt.errors, "\n"))
		}
		if got := cloud.Warnings(spec); !slices.Equal(got, tt.warnings) {
			t.Errorf("%s in %s: warnings\n%s\nwant\n%s", tt.gpus, tt.regions, strings.Join(got, "\n"), strings.Join(tt.warnings, "\n"))
		}
	}
}
