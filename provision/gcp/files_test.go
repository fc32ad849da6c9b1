package gcp_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/provision/gcp"
)

func TestFiles(t *testing.T) {
	g, ctx := newGCEWithReplicaAccount(t, &testcloud.Faults{}), t.Context()
	p := gcp.New(downloads(g))
	if _, err := p.Launch(ctx, program(t, "first")); err != nil {
		t.Fatal(err)
	}
	bucket := g.Buckets()[0]
	f := p.Files(bucket, "/batches/chat")
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<19)
	for i, part := range [][]byte{large, []byte("end")} {
		name := fmt.Sprint("file-1.", i)
		if err := f.PutPart(ctx, name, part); err != nil {
			t.Fatal(err)
		}
		if got, err := f.GetPart(ctx, name); err != nil || !bytes.Equal(got, part) {
			t.Errorf("part %d: %d bytes, %v", i, len(got), err)
		}
	}
	if err := f.PutPart(ctx, "file-1.1", []byte("other")); err != nil {
		t.Error(err)
	}
	if got, err := f.GetPart(ctx, "file-1.1"); err != nil || string(got) != "other" {
		t.Errorf("a replaced part: %q, %v", got, err)
	}
	if err := f.PutPart(ctx, "file-2.0", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if names, err := f.PartNames(ctx, "file-1."); err != nil || !slices.Equal(names, []string{"file-1.0", "file-1.1"}) {
		t.Errorf("%q, %v", names, err)
	}
	if all, err := f.PartNames(ctx, ""); err != nil || len(all) != 3 {
		t.Errorf("files of others are listed: %q, %v", all, err)
	}
	for range 2 { // a missing part is not an error
		if err := f.DeletePart(ctx, "file-1.0"); err != nil {
			t.Error(err)
		}
	}
	if _, err := f.GetPart(ctx, "file-1.0"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a deleted part: %v", err)
	}
	if stored, _ := g.StoredObjects(); !slices.ContainsFunc(stored, func(name string) bool { return strings.HasSuffix(name, "batches/chat/file-2.0") }) {
		t.Errorf("%q", stored)
	}
	if err := p.Files("none", "").PutPart(ctx, "file-1.0", []byte("x")); err == nil || !strings.Contains(err.Error(), "gs://none/file-1.0") {
		t.Errorf("a part in a bucket that does not exist: %v", err)
	}
}
