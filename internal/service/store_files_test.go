package service

import (
	"strings"
	"testing"
)

func TestStoreFiles(t *testing.T) {
	const text = "name: chat\nBALANCERmodels: [{name: m, engine: {kind: sim}}]\nregions: [{name: REGION, replicas: {min: 1, max: 2}}]\nstore: {files: \"FILES\"}\n"
	for _, c := range []struct{ region, files, problem string }{
		{"local/us", "s3://batches/chat", ""},
		{"local/us", "gs://batches", ""},
		{"local/us", "s3://batches/../other?x", "must be a bucket or a folder of one"},
		{"local/us", "https://example.com/x", "must be a bucket or a folder of one"},
		{"aws/us-east-1", "s3://batches/chat", ""},
		{"gcp/us-central1", "gs://batches", ""},
		{"gcp/us-central1", "s3://batches/chat", "the machines of regions[0], gcp/us-central1, have no identity in aws"},
		{"aws/us-east-1", "gs://batches/chat", "the machines of regions[0], aws/us-east-1, have no identity in gcp"},
	} {
		rented, balancer := !strings.HasPrefix(c.region, "local"), ""
		if rented {
			balancer = "balancer: {insecure: true, auth: {keys_from: env:KEYS}}\n"
		}
		_, err := Parse("service.yaml", []byte(strings.NewReplacer("REGION", c.region, "FILES", c.files, "BALANCER", balancer).Replace(strings.Replace(text, "kind: sim", map[bool]string{true: "kind: vllm", false: "kind: sim"}[rented], 1))))
		switch {
		case c.problem == "" && err != nil, c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)):
			t.Errorf("%s in %s: %v, want %q", c.files, c.region, err, c.problem)
		}
	}
}

// Services that share a folder of a bucket have different folders in it.
func TestFilesFolderOf(t *testing.T) {
	for files, want := range map[string]FilesFolder{
		"s3://batches": {"aws", "batches", "chat"}, "gs://batches/a/b": {"gcp", "batches", "a/b/chat"}, "": {}, "ftp://x/y": {}, "s3://": {},
	} {
		got, ok := FilesFolderOf(files, "chat")
		if ok != (want != FilesFolder{}) || ok && got != want {
			t.Errorf("%q: %+v, %v, want %+v", files, got, ok, want)
		}
	}
}
