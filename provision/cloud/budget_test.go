package cloud_test

import (
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision/cloud"
)

// A budget below the smallest service is a conflict where the prices are known.
func TestBudgetProblem(t *testing.T) {
	const file = `
name: chat
models: [{name: m, engine: {kind: vllm}, gpus: [{type: L4, price: 1.00}, {type: H100, price: 9.00}]}]
regions: [{name: aws/us-east-1, replicas: {min: 3, max: 9}}]
balancer: {insecure: true}
autoscale: {budget: {per_hour: 3.00}}
`
	google := func(budget string) string { // two balancers cost $0.13402
		return "name: chat\nmodels: [{name: m, engine: {kind: vllm}, gpus: [{type: L4}]}]\nregions: [{name: gcp/us-central1, balancers: 2, replicas: {min: 0, max: 9}}]\nbalancer: {insecure: true}\nautoscale: {budget: {per_hour: " + budget + "}}\n"
	}
	for _, tt := range []struct{ name, old, new, want string }{
		{name: "too low", want: "must be at least $3.09, the price of the balancers and of replicas.min"},
		{name: "enough", old: "per_hour: 3.00", new: "per_hour: 3.10"},
		{name: "none", old: "autoscale: {budget: {per_hour: 3.00}}", new: ""},
		{name: "spot prices are unknown", old: "max: 9}", new: "max: 9}, capacity: [spot, on_demand]"},
		{name: "one balancer more", old: "max: 9}", new: "max: 9}, balancers: 2", want: "must be at least $3.18, the price of the balancers and of replicas.min"},
		{name: "local SSDs at Google", old: "gpus: [{type: L4, price: 1.00}, {type: H100, price: 9.00}]}]\nregions: [{name: aws/us-east-1, replicas: {min: 3", new: "gpus: [{type: L4, local_ssds: 1}]}]\nregions: [{name: gcp/us-central1, replicas: {min: 4", want: "must be at least $3.06, the price of the balancers and of replicas.min"},
		{name: "no replica", old: "min: 3", new: "min: 0"},
		{name: "cents are rounded up", old: file, new: google("0.13"), want: "must be at least $0.14, the price of the balancers and of replicas.min"},
		{name: "rounded up", old: file, new: google("0.14")},
	} {
		spec, err := service.Parse("service.yaml", []byte(strings.Replace(file, tt.old, tt.new, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if got := cloud.BudgetProblem(spec); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
