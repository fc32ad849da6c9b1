package service

import (
	"strings"
	"testing"
)

func TestStoreFiles(t *testing.T) {
	const text = "name: chat\nmodels: [{name: m, engine: {kind: sim}}]\nregions: [{name: REGION, replicas: {min: 1, max: 2}}]\nstore: {files: \"FILES\"}\n"
	for _, c := range []struct{ region, files, problem string }{
		{"local/us", "s3://batches/chat", ""},
		{"local/us", "gs://batches", ""},
		{"local/us", "s3://batches/../other?x", "must be a bucket or a folder of one"},
		{"local/us", "https://example.com/x", "must be a bucket or a folder of one"},
		{"aws/us-east-1", "s3://batches/chat", "requires balancers on your own machines"},
	} {
		_, err := Parse("service.yaml", []byte(strings.NewReplacer("REGION", c.region, "FILES", c.files).Replace(strings.Replace(text, "kind: sim", map[bool]string{true: "kind: vllm", false: "kind: sim"}[strings.HasPrefix(c.region, "aws")], 1))))
		switch {
		case c.problem == "" && err != nil, c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)):
			t.Errorf("%s in %s: %v, want %q", c.files, c.region, err, c.problem)
		}
	}
}
