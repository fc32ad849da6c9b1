package static_test

import (
	"testing"

	"skyserve/internal/service"
	"skyserve/provision/static"
)

func TestReplicas(t *testing.T) {
	region := service.RegionSpec{Name: "static/paris", Endpoints: []service.Endpoint{{URL: "http://10.0.0.7:8000/"}, {URL: "http://10.0.0.8:8000", APIKey: "env:EIGHT"}}}
	one := &service.Spec{Models: []service.Model{{Name: "m", Engine: service.Engine{Kind: service.EngineVLLM}, GPUs: []service.GPU{{Type: "L4"}}}}}
	two := &service.Spec{Models: []service.Model{{Name: "m"}, {Name: "n"}}}
	tests := []struct {
		name string
		spec *service.Spec
		want service.ReplicaConfig
	}{
		{"one model", one, service.ReplicaConfig{ID: "paris-10-0-0-7-8000", URL: "http://10.0.0.7:8000", Region: "static/paris", Model: "m", Kind: "vllm", GPU: "L4"}},
		{"several models", two, service.ReplicaConfig{ID: "paris-10-0-0-7-8000", URL: "http://10.0.0.7:8000", Region: "static/paris"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := static.Replicas(tt.spec, region)
			if len(got) != 2 || got[0] != tt.want || got[1].ID != "paris-10-0-0-8-8000" {
				t.Errorf("got %+v, want first %+v", got, tt.want)
			}
		})
	}
	named := service.RegionSpec{Name: "static/paris", Endpoints: []service.Endpoint{{URL: "http://10.0.0.7:8000"}, {URL: "dns+http://engines.example.com:8000"}}}
	if got := static.Replicas(one, named); len(got) != 1 || got[0].URL != "http://10.0.0.7:8000" {
		t.Errorf("beside a DNS name: got %+v", got)
	}
	if got := static.Names(one, named); len(got) != 1 || got[0].URL != named.Endpoints[1].URL || got[0].ID != "paris-engines-example-com-8000" || got[0].Model != "m" {
		t.Errorf("DNS names: got %+v", got)
	}
	if got := static.Replicas(one, service.RegionSpec{Name: "static/paris"}); len(got) != 0 {
		t.Errorf("a region without endpoints: got %+v", got)
	}
}
