package service

import (
	"strings"
	"testing"
)

// An image that cloud machines pull by tag causes a warning, because only a digest is immutable.
func TestWarningsReportUnpinnedImages(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0a", 32)
	for _, tt := range []struct {
		name, engine, region string
		want                 string // a part of the warning; empty = there is none
	}{
		{"by tag", "{image: 'vllm/vllm-openai:v1'}", "aws/us-east-1", "models[0].engine.image: vllm/vllm-openai:v1 is not pinned by a digest"},
		{"by neither", "{image: vllm/vllm-openai}", "gcp/us-central1", "is not pinned by a digest"},
		{"the default", "{kind: vllm}", "aws/us-east-1", "models[0].engine.image: the default image of vllm is not pinned by a digest"},
		{"by digest", "{image: 'vllm/vllm-openai" + digest + "'}", "aws/us-east-1", ""},
		{"by both", "{image: 'vllm/vllm-openai:v1" + digest + "'}", "aws/us-east-1", ""},
		{"simulated", "{kind: sim}", "aws/us-east-1", ""},
		{"nothing is rented", "{kind: vllm}", "local/us", ""},
	} {
		public := "balancer: {insecure: true}\n"
		if strings.HasPrefix(tt.region, "local/") {
			public = ""
		}
		spec, err := Parse("service.yaml", []byte("name: chat\nmodels: [{name: m, engine: "+tt.engine+"}]\nregions: [{name: "+tt.region+"}]\n"+public))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		got := strings.Join(spec.Warnings(), "\n")
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s: warned of %q, want %q", tt.name, got, tt.want)
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
