package deploy_test

import (
	"testing"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
)

// An operator can only choose what service.yaml allows.
func TestChooseClass(t *testing.T) {
	gpus := []service.GPU{{Type: "L4"}, {Type: "H100", Count: 8}}
	rented := service.RegionSpec{Name: "aws/us-east-1", Capacity: []service.CapacityType{service.CapacitySpot, service.CapacityOnDemand}}
	for _, tt := range []struct {
		name          string
		gpus          []service.GPU
		region        service.RegionSpec
		gpu, capacity string
		want          provision.ReplicaClass
		err           string
	}{
		{"any", gpus, rented, "", "", provision.ReplicaClass{}, ""},
		{"a GPU", gpus, rented, "L4", "", provision.ReplicaClass{GPU: "L4", GPUs: 1}, ""},
		{"several GPUs, on spot", gpus, rented, "8xH100", "spot", provision.ReplicaClass{GPU: "H100", GPUs: 8, Capacity: "spot"}, ""},
		{"on demand, whatever the GPU", gpus, rented, "", "on_demand", provision.ReplicaClass{Capacity: "on_demand"}, ""},
		{"another GPU", gpus, rented, "A100", "", provision.ReplicaClass{}, `--gpu must be a GPU of m in service.yaml (L4, 8xH100), got "A100"`},
		{"too few GPUs", gpus, rented, "H100", "", provision.ReplicaClass{}, `--gpu must be a GPU of m in service.yaml (L4, 8xH100), got "H100"`},
		{"a GPU of a model without", nil, rented, "L4", "", provision.ReplicaClass{}, `--gpu must be a GPU of m in service.yaml (none configured), got "L4"`},
		{"reserved without a commitment", gpus, rented, "", "reserved", provision.ReplicaClass{}, `--capacity must be a capacity type of aws/us-east-1 in service.yaml (spot, on_demand), got "reserved"`},
		{"on this computer", gpus, service.RegionSpec{Name: "local/us"}, "", "spot", provision.ReplicaClass{}, `--capacity must be a capacity type of local/us in service.yaml (none configured), got "spot"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := deploy.ChooseClass(&service.Model{Name: "m", GPUs: tt.gpus}, tt.region, tt.gpu, tt.capacity)
			if tt.err == "" && (err != nil || got != tt.want) || tt.err != "" && (err == nil || err.Error() != tt.err) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}
