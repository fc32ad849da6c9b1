package gcp_test

import (
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/internal/testcloud/conformance"
	"skyserve/provision/gcp"
)

func TestFiles(t *testing.T) {
	g := newGCEWithReplicaAccount(t, &testcloud.Faults{})
	p := gcp.New(downloads(g))
	if _, err := p.Launch(t.Context(), program(t, "first")); err != nil {
		t.Fatal(err)
	}
	bucket := g.Buckets()[0]
	conformance.RunFiles(t, p.Files(bucket, "/batches/chat"), bucket+"/batches/chat/", func() []string { stored, _ := g.StoredObjects(); return stored })
	conformance.RunMissingFiles(t, p.Files("none", ""), "gs://none/")
}
