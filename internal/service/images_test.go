package service

import (
	"strings"
	"testing"
)

// Only images of containers on rented machines are looked up at their registries.
func TestRentsContainers(t *testing.T) {
	for _, tt := range []struct {
		engine, region string
		want           bool
	}{
		{"{image: 'vllm/vllm-openai:v1'}", "aws/us-east-1", true},
		{"{kind: vllm}", "gcp/us-central1", true},
		{"{kind: vllm}, regions: {aws/us-east-1: {min: 0, max: 0}}", "aws/us-east-1", false},
		{"{kind: sim}", "aws/us-east-1", false},
		{"{kind: vllm}", "local/us", false},
	} {
		public := "balancer: {insecure: true}\n"
		if strings.HasPrefix(tt.region, "local/") {
			public = ""
		}
		spec, err := Parse("service.yaml", []byte("name: chat\nmodels: [{name: m, engine: "+tt.engine+"}]\nregions: [{name: "+tt.region+"}]\n"+public))
		if err != nil {
			t.Errorf("%s: %v", tt.engine, err)
			continue
		}
		if got := spec.RentsContainers(&spec.Models[0]); got != tt.want {
			t.Errorf("%s in %s: %t", tt.engine, tt.region, got)
		}
		if w := spec.Warnings(); strings.Contains(strings.Join(w, " "), "image") {
			t.Errorf("%s: warned of %q: 'up' pins images", tt.engine, w)
		}
	}
}

// An invalid digest is rejected before a machine is rented.
func TestParseRejectsInvalidDigests(t *testing.T) {
	for _, image := range []string{"x@sha256:abc", "x@" + strings.Repeat("0a", 32), "x@sha256:" + strings.Repeat("0A", 32), "x@md5:" + strings.Repeat("0a", 16), "x@@sha256:" + strings.Repeat("0a", 32), "x@sha256:" + strings.Repeat("0a", 32) + ":v1"} {
		_, err := Parse("service.yaml", []byte("name: chat\nmodels:\n  - name: m\n    engine: {image: '"+image+"'}\nregions: [{name: aws/us-east-1}]\n"))
		if err == nil || !strings.Contains(err.Error(), "service.yaml:4:21: models[0].engine.image: must have a digest of @sha256: and 64 hexadecimal digits") {
			t.Errorf("%s: got %v", image, err)
		}
	}
}
