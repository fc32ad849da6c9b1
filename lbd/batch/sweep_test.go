package batch

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/lbd/batch/job"
)

// A balancer that dies during an upload, or while it records a large result, leaves an object that nothing
// refers to. It is removed, those in use are not.
func TestSweepRemovesObjectsOfCrashes(t *testing.T) {
	n := startNode(t, serveStore(t), nil, Options{})
	ctx, now := t.Context(), time.Now()
	kept := n.mustUpload(Caller{}, line("a", "x"))
	open := n.submitFile(Caller{}, "720h", kept)
	ended := n.submitFile(Caller{}, "24h", kept)
	if _, _, err := n.updateBatch(ctx, batchKey("", ended.ID), func(r *job.Record) error { r.Batch.Status = job.Expired; return nil }); err != nil {
		t.Fatal(err)
	}
	crashed, uploading := newID("file-", now.Add(-2*orphanAge)), newID("file-", now)
	result, late := resultName(open.ID, now), resultName(ended.ID, now)
	for _, name := range []string{crashed, uploading, result, late, "other"} {
		if _, err := n.store.WriteObject(ctx, name, strings.NewReader("part")); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.sweep(ctx); err != nil {
		t.Fatal(err)
	}
	var left []string
	if err := n.store.SweepObjects(ctx, time.Hour, func(names []string) ([]string, error) { left = names; return nil, nil }); err != nil {
		t.Fatal(err)
	}
	want := []string{kept, uploading, result, "other"}
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("%q remain, want %q", left, want)
	}
}

// An expired file that an open batch reads is kept until the batch has ended: without it no request could be sent.
func TestSweepKeepsInputsOfOpenBatches(t *testing.T) {
	n := startNode(t, serveStore(t), nil, Options{})
	status, body := n.upload(Caller{}, line("a", "x"), "purpose", "batch", "expires_after[anchor]", "created_at", "expires_after[seconds]", "3600")
	var f job.File
	if json.Unmarshal(body, &f) != nil || status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	open := n.submitFile(Caller{}, "24h", f.ID)
	later := time.Now().Add(2 * time.Hour)
	n.now = func() time.Time { return later }
	files := func() int {
		if err := n.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		left, err := n.records.Keys(t.Context(), "file.")
		if err != nil {
			t.Fatal(err)
		}
		return len(left)
	}
	if files() != 1 {
		t.Error("the input of an open batch was removed")
	}
	if _, _, err := n.updateBatch(t.Context(), batchKey("", open.ID), func(r *job.Record) error { r.Batch.Status = job.Expired; return nil }); err != nil {
		t.Fatal(err)
	}
	if files() != 0 {
		t.Error("the expired input of a batch that has ended was kept")
	}
}
