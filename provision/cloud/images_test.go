package cloud_test

import (
	"maps"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// A machine's configuration contains the images that one of its offerings can boot, the most specific of each,
// and no images of other regions or GPUs.
func TestMachinesHaveImagesOfTheirOfferings(t *testing.T) {
	offer := func(gpu string) provision.Offering { return provision.Offering{GPU: gpu} }
	for _, tt := range []struct {
		name    string
		images  map[string]string
		offers  provision.Offerings
		want    map[string]string
		another bool // another region
	}{
		{"none configured", nil, provision.Offerings{offer("L4")}, nil, false},
		{"without a GPU", map[string]string{"cpu": "a", "gpu": "b", "L4": "c"}, provision.Offerings{offer("")}, map[string]string{"cpu": "a"}, false},
		{"a GPU with its own image", map[string]string{"cpu": "a", "gpu": "b", "L4": "c"}, provision.Offerings{offer("L4")}, map[string]string{"L4": "c"}, false},
		{"a GPU without one", map[string]string{"gpu": "b", "H100": "c"}, provision.Offerings{offer("L4")}, map[string]string{"gpu": "b"}, false},
		{"two GPUs", map[string]string{"gpu": "b", "H100": "c"}, provision.Offerings{offer("L4"), offer("H100")}, map[string]string{"gpu": "b", "H100": "c"}, false},
		{"only images of others", map[string]string{"cpu": "a", "H100": "c"}, provision.Offerings{offer("L4")}, nil, false},
		{"another region", map[string]string{"gpu": "b"}, provision.Offerings{offer("L4")}, nil, true},
	} {
		region := service.Region("aws/us-east-1")
		spec := &service.Spec{Regions: []service.RegionSpec{{Name: region, Images: tt.images}, {Name: "aws/eu-west-1"}}}
		if tt.another {
			region = "aws/eu-west-1"
		}
		if got := cloud.ImagesFor(spec, region, tt.offers); !maps.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
